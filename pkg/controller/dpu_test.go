package controller

import (
	"context"
	"crypto/rand"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/api/dpudv1/dpudv1connect"
	"dpud/pkg/control/agent"
	"dpud/pkg/gossip"
	"dpud/pkg/record"
	"dpud/pkg/table"
	"dpud/pkg/wire"
)

// fakeDPU is a dpud with the real core and protocol over tables in memory.
type fakeDPU struct {
	dpudv1connect.UnimplementedDPUServiceHandler
	t       testing.TB
	name    record.DPU
	replica *wire.Replica
	gossip  *gossip.Gossip                   // nil: none
	plane   dpudv1connect.PlaneServiceClient // nil: no direct messages
	server  *httptest.Server                 // nil: no direct messages
	stop    context.CancelFunc
	done    chan struct{}
	wake    chan struct{}

	mu       sync.Mutex
	core     *agent.Core
	instance string
	kernel   table.Tables
	frozen   bool                          // does nothing but take messages
	heard    map[record.Key]record.Version // by push
	leases   int
	refused  error
}

type dpuOptions struct {
	controller string         // unix socket of the controller's API; "": no direct messages
	seed       netip.AddrPort // of gossip; not valid: none
	hardware   string         // default: of the name
	kernel     table.Tables   // from an earlier run
}

func startDPU(t testing.TB, name record.DPU, o dpuOptions) *fakeDPU {
	t.Helper()
	d := &fakeDPU{
		t: t, name: name, wake: make(chan struct{}, 1), done: make(chan struct{}), instance: rand.Text(),
		kernel: make(table.Tables), heard: make(map[record.Key]record.Version),
	}
	maps.Copy(d.kernel, o.kernel)
	if o.hardware == "" {
		o.hardware = "hw-" + string(name)
	}
	cfg := agent.Config{DPU: name, Instance: d.instance, HardwareID: o.hardware, KernelBoot: "k1"}
	d.replica = wire.NewReplica("", d.hear)
	if o.controller != "" {
		mux := http.NewServeMux()
		mux.Handle(dpudv1connect.NewDPUServiceHandler(d))
		d.server = httptest.NewServer(mux)
		cfg.Address = d.server.URL
		d.plane = dpudv1connect.NewPlaneServiceClient(unixClient(o.controller), "http://controller")
	}
	d.core = agent.New(cfg)
	d.core.SetPorts(map[string]uint32{"uplink0": 1, "n1": 2, "n2": 3, "n34": 4})
	if o.seed.IsValid() {
		g, err := gossip.Join(gossip.Config{
			Name: string(name) + "-" + d.instance, Bind: netip.MustParseAddrPort("127.0.0.1:0"), Seeds: []string{o.seed.String()}, Records: d.replica,
			GossipInterval: 20 * time.Millisecond, SyncInterval: 100 * time.Millisecond, RejoinInterval: 100 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		d.gossip = g
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.stop = cancel
	go d.run(ctx)
	t.Cleanup(d.kill)
	return d
}

// unixClient speaks HTTP over a unix socket.
func unixClient(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
}

// kill ends the run; the kernel's tables stay.
func (d *fakeDPU) kill() {
	d.stop()
	<-d.done
	if d.server != nil {
		d.server.CloseClientConnections()
		d.server.Close()
	}
	if d.gossip != nil {
		_ = d.gossip.Close()
		d.gossip = nil
	}
}

func (d *fakeDPU) freeze(frozen bool) {
	d.mu.Lock()
	d.frozen = frozen
	d.mu.Unlock()
	signal(d.wake)
}

// tenant returns the tenant that the kernel holds for a node.
func (d *fakeDPU) tenant(n record.NodeID) record.TenantID {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.kernel[table.Key{Map: table.NodeTenant, Node: n}].Tenant
}

// hear takes records from the replica.
func (d *fakeDPU) hear(r record.Record) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l, ok := r.(*record.Lease); ok && l.DPU == d.name {
		d.leased(l)
	}
	d.core.Hear(r)
	signal(d.wake)
}

func (d *fakeDPU) leased(l *record.Lease) {
	d.leases++
	d.refused = d.core.HearLease(l)
}

// Push implements DPUService.
func (d *fakeDPU) Push(_ context.Context, r *connect.Request[dpudv1.PushRequest]) (*connect.Response[dpudv1.PushResponse], error) {
	res := &dpudv1.PushResponse{Instance: d.instance}
	for _, e := range r.Msg.GetRecords() {
		if d.replica.Site() == "" {
			d.replica.SetSite(record.SiteID(e.GetSiteId()))
		}
		if _, err := d.replica.Take(e); err != nil {
			res.Refused = append(res.Refused, err.Error())
			continue
		}
		rec, _ := wire.Open("", e)
		d.mu.Lock()
		d.heard[rec.Key()] = rec.Version()
		d.mu.Unlock()
	}
	return connect.NewResponse(res), nil
}

// Counters implements DPUService.
func (d *fakeDPU) Counters(context.Context, *connect.Request[dpudv1.CountersRequest]) (*connect.Response[dpudv1.CountersResponse], error) {
	return connect.NewResponse(&dpudv1.CountersResponse{Counters: []*dpudv1.Counter{{Hook: "xdp", Verdict: "pass", Packets: 7}}}), nil
}

// run drives the core until ctx ends. The short tick stands in for dpud's timers.
func (d *fakeDPU) run(ctx context.Context) {
	defer close(d.done)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		case <-tick.C:
		}
		d.mu.Lock()
		frozen := d.frozen
		d.mu.Unlock()
		if !frozen {
			d.ask(ctx)
			d.program()
			d.confirm(ctx)
		}
	}
}

func (d *fakeDPU) ask(ctx context.Context) {
	d.mu.Lock()
	req, ok := d.core.LeaseRequest(time.Now())
	d.mu.Unlock()
	if !ok {
		return
	}
	if d.plane != nil {
		e, err := wire.Seal(d.replica.Site(), 0, req)
		if err != nil {
			d.t.Error(err)
			return
		}
		res, err := d.plane.Lease(ctx, connect.NewRequest(&dpudv1.LeaseCall{Request: e}))
		if err != nil {
			return
		}
		d.replica.SetSite(record.SiteID(res.Msg.GetLease().GetSiteId()))
		rec, err := wire.Open("", res.Msg.GetLease())
		if err != nil {
			d.t.Error(err)
			return
		}
		d.mu.Lock()
		d.leased(rec.(*record.Lease))
		d.mu.Unlock()
	}
	d.publish(req)
}

// publish puts a record of this DPU into gossip, once it knows the site.
func (d *fakeDPU) publish(r record.Record) {
	if d.gossip == nil {
		return
	}
	if d.replica.Site() == "" {
		d.adoptSite()
	}
	if d.replica.Site() != "" {
		if changed, err := d.replica.Put(0, r); err != nil {
			d.t.Error(err)
		} else if changed {
			d.gossip.Announce(r.Key())
		}
	}
}

// adoptSite takes the site of what gossip brought.
func (d *fakeDPU) adoptSite() {
	var first record.Key
	d.replica.Versions(func(k record.Key, _ record.Version) bool {
		first = k
		return false
	})
	if _, b, ok := d.replica.Get(first); ok {
		d.replica.SetSite(siteOf(d.t, b))
	}
}

func (d *fakeDPU) program() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.core.Retry()
	for {
		op, ok := d.core.Next()
		if !ok {
			return
		}
		var res agent.Result
		switch op.Verb {
		case agent.ReadAll:
			res.Tables = maps.Clone(d.kernel)
		case agent.Delete:
			delete(d.kernel, op.Key)
		case agent.Put:
			d.kernel[op.Key] = op.Value
		case agent.Verify:
			res.Tables = make(table.Tables)
			for _, k := range op.Keys {
				if v, ok := d.kernel[k]; ok {
					res.Tables[k] = v
				}
			}
		}
		d.core.Done(op, res)
	}
}

func (d *fakeDPU) confirm(ctx context.Context) {
	d.mu.Lock()
	unanswered := slices.Clone(d.core.Unanswered())
	d.mu.Unlock()
	if len(unanswered) == 0 {
		return
	}
	for _, f := range unanswered {
		d.publish(f)
	}
	if d.plane == nil {
		return
	}
	req := new(dpudv1.ConfirmRequest)
	for _, f := range unanswered {
		e, err := wire.Seal(d.replica.Site(), f.Epoch, f)
		if err != nil {
			d.t.Error(err)
			return
		}
		req.Confirmations = append(req.Confirmations, e)
	}
	if _, err := d.plane.Confirm(ctx, connect.NewRequest(req)); err == nil {
		d.mu.Lock()
		d.core.Answered(unanswered)
		d.mu.Unlock()
	}
}
