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
	turn    int                       // of the newest write or watch; an older watch lets nobody confirm
	changed chan struct{}             // closed at each change
}

func newFakeController(socket string) *fakeController {
	f := &fakeController{socket: socket, hold: map[string]bool{}, fail: map[string]*connect.Error{}, hang: map[string]bool{}, watched: map[string]bool{}, changed: make(chan struct{})}
	for i := range 3 {
		f.nodes = append(f.nodes, &dpudv1.NodeStatus{
			Id: uint32(i + 1), Name: fmt.Sprintf("n%d", i+1), Rack: "r1", Mac: fmt.Sprintf("02:00:00:00:00:%02d", i+1),
			Addresses: []string{fmt.Sprintf("10.0.0.%d", i+1), fmt.Sprintf("2001:db8::%d", i+1)},
			Ports:     []*dpudv1.NodePort{{Dpu: "d1", Port: fmt.Sprintf("n%d", i+1)}, {Dpu: "d2", Port: "uplink0", Vlan: uint32(i)}},
			Phase:     dpudv1.Phase_PHASE_FREE, Next: fmt.Sprintf("free; `ctl assign n%d TENANT` gives it to a tenant", i+1),
		})
	}
	n2 := f.nodes[1]
	n2.Phase, n2.Generation, n2.Epoch, n2.Revision, n2.Tenant, n2.Since = dpudv1.Phase_PHASE_GRANTED, 2, 1, 3, "t2", ago(26*time.Hour)
	n2.Dpus, n2.Next = []*dpudv1.DPUProof{proof("d1", dpudv1.State_STATE_PROGRAMMED, 2), proof("d2", dpudv1.State_STATE_PROGRAMMED, 2)}, "programmed; `ctl reclaim n2` takes it back"
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

// next is the controller's sentence of what happens or what to do now.
func next(n *dpudv1.NodeStatus) string {
	seen := map[string]string{
		"d1": "d1 last asked for a lease 2s ago",
		"d2": "d2 last asked for a lease 10m0s ago: check that dpud runs there; the node stays as it is until it answers",
	}
	var facts []string
	for _, d := range n.GetWaitingFor() {
		facts = append(facts, seen[d])
	}
	state := "programmed"
	switch {
	case n.GetPhase() == dpudv1.Phase_PHASE_FREE:
		return fmt.Sprintf("free; `ctl assign %s TENANT` gives it to a tenant", n.GetName())
	case n.GetPhase() == dpudv1.Phase_PHASE_REVOKED:
		state = "cleared"
	case len(facts) == 0:
		return fmt.Sprintf("programmed; `ctl reclaim %s` takes it back", n.GetName())
	}
	return fmt.Sprintf("waiting for %s to confirm %s; %s", strings.Join(n.GetWaitingFor(), ", "), state, strings.Join(facts, "; "))
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
			n.Phase, n.Tenant = dpudv1.Phase_PHASE_FREE, ""
		}
		n.Next = next(n)
		f.change()
		return true
	}
	return false
}

func (f *fakeController) WatchNode(ctx context.Context, r *connect.Request[dpudv1.WatchNodeRequest], s *connect.ServerStream[dpudv1.WatchNodeResponse]) error {
	f.mu.Lock()
	f.turn++
	turn := f.turn
	f.mu.Unlock()
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
		} else if turn == f.turn {
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
	f.turn++
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
		n.WaitingFor = []string{"d1", "d2"}
		n.Next = next(n)
		f.change()
	}
	return connect.NewResponse(&dpudv1.AssignResponse{Node: proto.CloneOf(n)}), nil
}

func (f *fakeController) Reclaim(_ context.Context, r *connect.Request[dpudv1.ReclaimRequest]) (*connect.Response[dpudv1.ReclaimResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.turn++
	n, err := f.node(r.Msg.GetNode())
	if err != nil {
		return nil, err
	}
	if n.GetPhase() == dpudv1.Phase_PHASE_GRANTED {
		n.Phase, n.Since, n.WaitingFor = dpudv1.Phase_PHASE_REVOKED, ago(3*time.Second), []string{"d1", "d2"}
		n.Revision++
		n.Next = next(n)
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
