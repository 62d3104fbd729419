package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/api/dpudv1/dpudv1connect"
	"dpud/pkg/site"
)

// testNow is the time of every ctl in the scripts.
var testNow = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

// fakeController answers as a controller would, always in the same way, and misbehaves when a script tells
// it to. Its DPUs d1 and d2 serve every node; each confirms a moment after it is watched.
type fakeController struct {
	dpudv1connect.UnimplementedControllerServiceHandler
	socket string

	mu      sync.Mutex
	server  *http.Server
	site    []byte
	nodes   []*dpudv1.NodeStatus
	hold    map[string]bool           // DPUs that do not confirm
	fail    map[string]*connect.Error // by procedure, once
	hang    map[string]bool           // procedures that do not answer
	breaks  int                       // watches still to break after their first message
	watched map[string]bool           // what watches have sent: node, phase, generation
	changed chan struct{}             // closed at each change
}

func newFakeController(socket string) *fakeController {
	f := &fakeController{socket: socket, hold: map[string]bool{}, fail: map[string]*connect.Error{}, hang: map[string]bool{}, watched: map[string]bool{}, changed: make(chan struct{})}
	for i := range 3 {
		f.nodes = append(f.nodes, &dpudv1.NodeStatus{
			Id: uint32(i + 1), Name: fmt.Sprintf("n%d", i+1), Rack: "r1", Mac: fmt.Sprintf("02:00:00:00:00:%02d", i+1),
			Addresses: []string{fmt.Sprintf("10.0.0.%d", i+1), fmt.Sprintf("2001:db8::%d", i+1)},
			Ports:     []*dpudv1.NodePort{{Dpu: "d1", Port: fmt.Sprintf("n%d", i+1)}, {Dpu: "d2", Port: "uplink0", Vlan: uint32(i)}},
			Phase:     dpudv1.Phase_PHASE_FREE, Next: "assign it",
		})
	}
	n2 := f.nodes[1]
	n2.Phase, n2.Generation, n2.Epoch, n2.Revision, n2.Tenant, n2.Since = dpudv1.Phase_PHASE_GRANTED, 2, 1, 3, "t2", ago(26*time.Hour)
	n2.Dpus, n2.Next = []*dpudv1.DPUProof{proof("d1", dpudv1.State_STATE_PROGRAMMED, 2), proof("d2", dpudv1.State_STATE_PROGRAMMED, 2)}, "nothing: it is in use"
	return f
}

func ago(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(testNow.Add(-d)) }

func proof(dpu string, s dpudv1.State, generation uint64) *dpudv1.DPUProof {
	return &dpudv1.DPUProof{Dpu: dpu, State: s, Generation: generation, Boot: 1, Sequence: 7, At: ago(90 * time.Second)}
}

func (f *fakeController) start() error {
	l, err := net.Listen("unix", f.socket)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle(dpudv1connect.NewControllerServiceHandler(f, connect.WithInterceptors(interceptor{f})))
	server := &http.Server{Handler: mux}
	f.mu.Lock()
	f.server = server
	f.mu.Unlock()
	go func() { _ = server.Serve(l) }()
	return nil
}

func (f *fakeController) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	_ = f.server.Close()
}

// interceptor makes calls fail or hang as the script wants.
type interceptor struct{ f *fakeController }

func (i interceptor) before(ctx context.Context, procedure string) error {
	name := procedure[strings.LastIndex(procedure, "/")+1:]
	i.f.mu.Lock()
	err, hang := i.f.fail[name], i.f.hang[name]
	delete(i.f.fail, name)
	i.f.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	return nil
}

func (i interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		if err := i.before(ctx, r.Spec().Procedure); err != nil {
			return nil, err
		}
		return next(ctx, r)
	}
}

func (i interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (i interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, c connect.StreamingHandlerConn) error {
		if err := i.before(ctx, c.Spec().Procedure); err != nil {
			return err
		}
		return next(ctx, c)
	}
}

// change wakes the watches; the caller holds mu.
func (f *fakeController) change() {
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeController) node(name string) (*dpudv1.NodeStatus, error) {
	for _, n := range f.nodes {
		if n.GetName() == name {
			return n, nil
		}
	}
	return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("node %q is not in the site; see `ctl get nodes`", name))
}

// confirm lets the first DPU that is waited for and not held confirm, and says whether there was one.
func (f *fakeController) confirm(n *dpudv1.NodeStatus) bool {
	for i, d := range n.GetWaitingFor() {
		if f.hold[d] {
			continue
		}
		state := dpudv1.State_STATE_PROGRAMMED
		if n.GetPhase() == dpudv1.Phase_PHASE_REVOKED {
			state = dpudv1.State_STATE_CLEARED
		}
		n.WaitingFor = slices.Delete(slices.Clone(n.GetWaitingFor()), i, i+1)
		n.Dpus = slices.DeleteFunc(slices.Clone(n.GetDpus()), func(p *dpudv1.DPUProof) bool { return p.GetDpu() == d })
		n.Dpus = append(n.Dpus, proof(d, state, n.GetGeneration()))
		if len(n.GetWaitingFor()) == 0 && state == dpudv1.State_STATE_CLEARED {
			n.Phase, n.Tenant, n.Next = dpudv1.Phase_PHASE_FREE, "", "assign it"
		}
		f.change()
		return true
	}
	return false
}

func (f *fakeController) WatchNode(ctx context.Context, r *connect.Request[dpudv1.WatchNodeRequest], s *connect.ServerStream[dpudv1.WatchNodeResponse]) error {
	for {
		f.mu.Lock()
		n, err := f.node(r.Msg.GetNode())
		if err != nil {
			f.mu.Unlock()
			return err
		}
		now, changed := proto.CloneOf(n), f.changed
		broken := f.breaks > 0
		if broken {
			f.breaks--
		} else {
			f.confirm(n)
		}
		f.mu.Unlock()
		if err := s.Send(&dpudv1.WatchNodeResponse{Node: now}); err != nil {
			return err
		}
		f.mu.Lock()
		f.watched[fmt.Sprintf("%s%s%d", now.GetName(), now.GetPhase(), now.GetGeneration())] = true
		f.mu.Unlock()
		if broken {
			return connect.NewError(connect.CodeUnavailable, errors.New("the store is away"))
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fakeController) Assign(_ context.Context, r *connect.Request[dpudv1.AssignRequest]) (*connect.Response[dpudv1.AssignResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.node(r.Msg.GetNode())
	switch {
	case err != nil:
		return nil, err
	case r.Msg.GetTenant() != "t1" && r.Msg.GetTenant() != "t2":
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("tenant %q is not in the site; see `ctl get tenants`", r.Msg.GetTenant()))
	case n.GetPhase() != dpudv1.Phase_PHASE_FREE && n.GetTenant() != r.Msg.GetTenant():
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("node %s is assigned to tenant %s; reclaim it first with `ctl reclaim %s`", n.GetName(), n.GetTenant(), n.GetName()))
	case n.GetPhase() == dpudv1.Phase_PHASE_FREE:
		n.Phase, n.Tenant, n.Epoch, n.Revision, n.Since = dpudv1.Phase_PHASE_GRANTED, r.Msg.GetTenant(), 1, n.GetRevision()+1, ago(3*time.Second)
		n.Generation++
		n.WaitingFor, n.Next = []string{"d1", "d2"}, "nothing: the DPUs are programming it"
		f.change()
	}
	return connect.NewResponse(&dpudv1.AssignResponse{Node: proto.CloneOf(n)}), nil
}

func (f *fakeController) Reclaim(_ context.Context, r *connect.Request[dpudv1.ReclaimRequest]) (*connect.Response[dpudv1.ReclaimResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.node(r.Msg.GetNode())
	if err != nil {
		return nil, err
	}
	if n.GetPhase() == dpudv1.Phase_PHASE_GRANTED {
		n.Phase, n.Since, n.WaitingFor = dpudv1.Phase_PHASE_REVOKED, ago(3*time.Second), []string{"d1", "d2"}
		n.Revision++
		n.Next = "wait for the DPUs; if one is dead, repair it: it clears the node as soon as it is back"
		f.change()
	}
	return connect.NewResponse(&dpudv1.ReclaimResponse{Node: proto.CloneOf(n)}), nil
}

func (f *fakeController) Apply(_ context.Context, r *connect.Request[dpudv1.ApplyRequest]) (*connect.Response[dpudv1.ApplyResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	want, err := site.Parse(r.Msg.GetSiteFile())
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	var have *site.Site
	if f.site != nil {
		if have, err = site.Parse(f.site); err != nil {
			return nil, err
		}
	}
	out := &dpudv1.ApplyResponse{}
	for _, c := range site.Compare(have, want) {
		out.Changes = append(out.Changes, &dpudv1.Change{Verb: c.Verb, Kind: c.Kind, Name: c.Name, Field: c.Field, Old: c.Old, New: c.New})
	}
	if !r.Msg.GetDryRun() {
		f.site, err = site.Format(want)
	}
	return connect.NewResponse(out), err
}

func (f *fakeController) GetSite(context.Context, *connect.Request[dpudv1.GetSiteRequest]) (*connect.Response[dpudv1.GetSiteResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return connect.NewResponse(&dpudv1.GetSiteResponse{SiteId: "5f0c", Epoch: 1, SiteFile: f.site}), nil
}

func (f *fakeController) ListNodes(context.Context, *connect.Request[dpudv1.ListNodesRequest]) (*connect.Response[dpudv1.ListNodesResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return connect.NewResponse(&dpudv1.ListNodesResponse{Nodes: f.cloneNodes()}), nil
}

func (f *fakeController) cloneNodes() []*dpudv1.NodeStatus {
	var nodes []*dpudv1.NodeStatus
	for _, n := range f.nodes {
		nodes = append(nodes, proto.CloneOf(n))
	}
	return nodes
}

func (f *fakeController) ListTenants(context.Context, *connect.Request[dpudv1.ListTenantsRequest]) (*connect.Response[dpudv1.ListTenantsResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t1, t2 := &dpudv1.TenantStatus{Id: 1, Name: "t1", Vni: 1001}, &dpudv1.TenantStatus{Id: 2, Name: "t2", Vni: 1002}
	for _, n := range f.nodes {
		switch n.GetTenant() {
		case "t1":
			t1.Nodes = append(t1.Nodes, n.GetName())
		case "t2":
			t2.Nodes = append(t2.Nodes, n.GetName())
		}
	}
	return connect.NewResponse(&dpudv1.ListTenantsResponse{Tenants: []*dpudv1.TenantStatus{t1, t2}}), nil
}

func fakeDPUs() []*dpudv1.DPUStatus {
	return []*dpudv1.DPUStatus{
		{Name: "d1", Rack: "r1", Boot: 1, HardwareId: "hw-1", KernelBoot: "6a7c", Address: "unix:///run/dpud/d1.sock", LeaseAsked: ago(2 * time.Second), Reachable: true},
		{Name: "d2", Rack: "r1", Boot: 4, HardwareId: "hw-2", KernelBoot: "90b1", Address: "http://10.0.0.9:7701", LeaseAsked: ago(10 * time.Minute), Error: "connection refused", Pending: 3},
		{Name: "d3", Rack: "r1"},
	}
}

func (f *fakeController) ListDPUs(context.Context, *connect.Request[dpudv1.ListDPUsRequest]) (*connect.Response[dpudv1.ListDPUsResponse], error) {
	return connect.NewResponse(&dpudv1.ListDPUsResponse{Dpus: fakeDPUs()}), nil
}

func (f *fakeController) ListEntries(context.Context, *connect.Request[dpudv1.ListEntriesRequest]) (*connect.Response[dpudv1.ListEntriesResponse], error) {
	return connect.NewResponse(&dpudv1.ListEntriesResponse{Entries: []*dpudv1.EntryStatus{
		{Tenant: "t1", Node: "n1", Entry: &dpudv1.Entry{Tenant: 1, Node: 1, Epoch: 1, Generation: 2, Revision: 2, Deleted: true}},
		{Tenant: "t2", Node: "n2", Entry: &dpudv1.Entry{Tenant: 2, Node: 2, Epoch: 1, Generation: 2, Revision: 1}},
	}}), nil
}

func (f *fakeController) Status(context.Context, *connect.Request[dpudv1.StatusRequest]) (*connect.Response[dpudv1.StatusResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &dpudv1.StatusResponse{Site: "example", SiteId: "5f0c", Epoch: 1, Version: "v1.2.3", NodesByPhase: map[string]uint32{}, Dpus: fakeDPUs(), GossipMembers: 3}
	for _, n := range f.cloneNodes() {
		r.NodesByPhase[strings.ToLower(strings.TrimPrefix(n.GetPhase().String(), "PHASE_"))]++
		if len(n.GetWaitingFor()) > 0 {
			r.Waiting = append(r.Waiting, n)
		}
	}
	return connect.NewResponse(r), nil
}

func (f *fakeController) DumpMaps(_ context.Context, r *connect.Request[dpudv1.ControllerDumpMapsRequest]) (*connect.Response[dpudv1.DumpMapsResponse], error) {
	if r.Msg.GetDpu() != "d1" {
		return nil, connect.NewError(connect.CodeUnavailable, fmt.Errorf("DPU %s does not answer: connection refused", r.Msg.GetDpu()))
	}
	out := &dpudv1.DumpMapsResponse{}
	for _, e := range []*dpudv1.MapEntry{
		{Map: "node_tenant", Key: "2", Node: 2, Tenant: 2, NodeName: "n2", TenantName: "t2"},
		{Map: "node_state", Key: "2", Node: 2, Epoch: 1, Generation: 2, Revision: 3, NodeName: "n2"},
		{Map: "endpoint4", Key: "10.0.0.2", Node: 2, Ifindex: 7, Mac: "02:00:00:00:00:02", NodeName: "n2", Port: "n2"},
		{Map: "services4", Key: "10.255.0.53/32", Mac: "02:00:00:00:ff:01"},
	} {
		if only := r.Msg.GetRequest().GetMaps(); len(only) == 0 || slices.Contains(only, e.GetMap()) {
			out.Entries = append(out.Entries, e)
		}
	}
	return connect.NewResponse(out), nil
}

func (f *fakeController) Counters(_ context.Context, r *connect.Request[dpudv1.ControllerCountersRequest]) (*connect.Response[dpudv1.CountersResponse], error) {
	if r.Msg.GetDpu() != "d1" {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("DPU %q is not in the site; see `ctl get dpus`", r.Msg.GetDpu()))
	}
	return connect.NewResponse(&dpudv1.CountersResponse{Counters: []*dpudv1.Counter{
		{Hook: "ingress", Verdict: "pass", Reason: "passed", Packets: 1200, Bytes: 96000},
		{Hook: "egress", Verdict: "pass", Reason: "passed", Packets: 1190, Bytes: 95200},
		{Hook: "ingress", Verdict: "drop", Reason: "tenant_mismatch", Packets: 10, Bytes: 800},
		{Hook: "ingress", Verdict: "drop", Reason: "hairpin"},
	}}), nil
}

func (f *fakeController) Version(context.Context, *connect.Request[dpudv1.VersionRequest]) (*connect.Response[dpudv1.VersionResponse], error) {
	return connect.NewResponse(&dpudv1.VersionResponse{Version: "v1.2.2"}), nil
}

// awaitWatch waits until a watch has sent the node in this phase and generation.
func (f *fakeController) awaitWatch(ctx context.Context, node, phase, generation string) error {
	want := node + "PHASE_" + strings.ToUpper(phase) + generation
	for {
		f.mu.Lock()
		watched := f.watched[want]
		f.mu.Unlock()
		if watched {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// do is the script's command `fake`: what to do from now on.
func (f *fakeController) do(ctx context.Context, args []string) error {
	if len(args) == 4 && args[0] == "watched" {
		return f.awaitWatch(ctx, args[1], args[2], args[3])
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case len(args) == 2 && args[0] == "hold": // this DPU does not confirm
		f.hold[args[1]] = true
	case len(args) == 2 && args[0] == "release":
		delete(f.hold, args[1])
		f.change()
	case len(args) == 4 && args[0] == "fail": // the next call of this procedure fails
		var code connect.Code
		if err := code.UnmarshalText([]byte(args[2])); err != nil {
			return err
		}
		f.fail[args[1]] = connect.NewError(code, errors.New(args[3]))
	case len(args) == 2 && args[0] == "hang": // this procedure does not answer
		f.hang[args[1]] = true
	case len(args) == 1 && args[0] == "break": // the next watch breaks after its first message
		f.breaks++
	case len(args) == 2 && args[0] == "free": // as if somebody reclaimed the node
		n, err := f.node(args[1])
		if err != nil {
			return err
		}
		n.Phase, n.Tenant, n.WaitingFor = dpudv1.Phase_PHASE_FREE, "", nil
		f.change()
	default:
		return fmt.Errorf("fake %s: no such thing; hold, release, fail, hang, break, free; failing: %v", strings.Join(args, " "), slices.Sorted(maps.Keys(f.fail)))
	}
	return nil
}
