package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"dpud/pkg/record"
	"dpud/pkg/table"
	"dpud/test/prober"
	"dpud/test/rack"
)

// The main job: traffic within a tenant, none between two, and a node that changes tenants meanwhile.
func TestNodeChangesTenantsUnderTraffic(t *testing.T) {
	f := start(t)
	p := f.probe()
	for from := range rack.Nodes {
		for to := range rack.Nodes {
			if from != to {
				p.drops(from, to) // an empty map passes nothing
			}
		}
	}
	f.assignAll()
	for _, pair := range [][2]int{{n1, n3}, {n3, n1}, {n2, n4}, {n4, n2}} {
		p.passes(pair[0], pair[1])
	}
	before := f.drops("d1")
	for _, pair := range [][2]int{{n1, n2}, {n2, n1}, {n1, n4}, {n3, n4}} {
		p.drops(pair[0], pair[1])
	}
	after := f.drops("d1")
	for _, reason := range []string{
		"tenant_mismatch", "source_spoofed", "destination_mac", "destination_multicast", "gratuitous", "vlan_stacked",
	} {
		if after[reason] <= before[reason] {
			t.Errorf("nothing was dropped for %s: %v", reason, after)
		}
	}

	f.must(f.Reclaim("n1"))
	for _, dpu := range rack.DPUs {
		for _, m := range []table.Map{table.NodeTenant, table.NodeState} {
			if f.holds(dpu, m, n1) {
				t.Errorf("n1 is free and %s of %s holds it", m, dpu)
			}
		}
	}
	for _, to := range []int{n2, n3, n4} {
		p.drops(n1, to)
		p.drops(to, n1)
	}
	f.must(f.Assign("n1", "t2"))
	p.passes(n1, n2)
	p.passes(n4, n1)
	p.drops(n1, n3)
	p.drops(n3, n1)
	r := p.finish()
	t.Logf("\n%s", r)
	if r.Total.Passed == 0 {
		t.Error("nothing passed")
	}
}

// drops returns how many packets a DPU's ports have dropped at ingress, by reason.
func (f *fixture) drops(dpu record.DPU) map[string]uint64 {
	f.t.Helper()
	counters, err := f.Counters(dpu)
	f.must(err)
	drops := make(map[string]uint64)
	for name, n := range counters {
		if reason, ok := strings.CutPrefix(name, "ingress drop "); ok {
			drops[reason] = n
		}
	}
	return drops
}

// Without enforcement the same prober counts crossings: it would see them.
func TestCrossingsAreSeenWithoutEnforcement(t *testing.T) {
	f := start(t)
	f.assignAll()
	for _, mode := range []string{"off", "audit"} {
		t.Run(mode, func(t *testing.T) {
			f := f.in(t)
			f.must(f.SetMode(mode))
			p := f.probe()
			for _, pair := range [][2]int{{n1, n2}, {n3, n4}} {
				f.until("frames between tenants", func() (bool, error) {
					return p.Received(pair[0], pair[1], prober.V4) > 0 && p.Received(pair[0], pair[1], prober.V6) > 0, nil
				})
			}
			r, err := p.stop()
			f.must(err)
			if r.Total.Crossed == 0 {
				t.Errorf("nothing crossed:\n%s", r)
			}
		})
	}
	f.must(f.SetMode("enforce"))
	p := f.probe()
	p.passes(n1, n3)
	p.drops(n1, n2)
	p.finish()
}

// step is a point in a reclaim of n1 at which a program is killed.
type step struct {
	name string
	// reach asks for the reclaim and returns when it has come to that point.
	reach func(f *fixture)
	// resume undoes what reach did to hold the reclaim there.
	resume func(f *fixture)
}

func (f *fixture) request() {
	f.t.Helper()
	_, err := f.MustCtl("reclaim", "n1", "--no-wait")
	f.must(err)
}

// signal stops a DPU's dpud where it is, as one that hangs (SIGSTOP), or lets it run on (SIGCONT).
func (f *fixture) signal(dpu record.DPU, s os.Signal) {
	f.t.Helper()
	f.must(f.Daemons[dpu].Signal(s))
}

// waitsFor waits until the controller says that n1 waits for these DPUs alone.
func (f *fixture) waitsFor(dpus ...record.DPU) {
	f.t.Helper()
	f.until(fmt.Sprintf("n1 to wait for %v", dpus), func() (bool, error) {
		n, err := f.Node("n1")
		return err == nil && fmt.Sprint(n.WaitingFor) == fmt.Sprint(dpus), err
	})
}

var steps = []step{
	{name: "as it is asked for", reach: (*fixture).request},
	{name: "before d1 hears of it", reach: func(f *fixture) {
		f.signal("d1", syscall.SIGSTOP)
		f.request()
	}},
	{name: "d1 has stopped forwarding, before its barrier", reach: func(f *fixture) {
		f.request()
		f.spin("d1", table.NodeTenant, n1)
	}},
	{name: "d1 has removed the last entry, before it confirms", reach: func(f *fixture) {
		f.request()
		f.spin("d1", table.NodeState, n1)
	}},
	{
		name: "d1 has confirmed, d2 has not", reach: func(f *fixture) {
			f.signal("d2", syscall.SIGSTOP)
			f.request()
			f.waitsFor("d2")
		},
		resume: func(f *fixture) { f.signal("d2", syscall.SIGCONT) },
	},
	{name: "both have removed the last entry, before it is free", reach: func(f *fixture) {
		f.request()
		f.spin("d1", table.NodeState, n1)
		f.spin("d2", table.NodeState, n1)
	}},
	{name: "it is free", reach: func(f *fixture) {
		f.request()
		f.must(f.WaitPhase("n1", "free"))
	}},
}

// Whatever is killed, and whenever: the reclaim completes, the node can go to the other tenant, nothing crosses.
func TestKillDuringReclaim(t *testing.T) {
	f := start(t)
	f.assignAll()
	victims := map[string]*rack.Process{"d1": f.Daemons["d1"], "controller": f.Controller}
	for _, name := range []string{"d1", "controller"} {
		for _, s := range steps {
			t.Run(name+" when "+s.name, func(t *testing.T) { f.in(t).killAt(victims[name], s) })
		}
	}
}

func (f *fixture) killAt(victim *rack.Process, s step) {
	p := f.probe()
	p.passes(n1, n3)
	s.reach(f)
	f.must(victim.Stop(syscall.SIGKILL))
	f.t.Logf("killed with node_tenant on d1: %t, d2: %t; node_state on d1: %t, d2: %t",
		f.holds("d1", table.NodeTenant, n1), f.holds("d2", table.NodeTenant, n1),
		f.holds("d1", table.NodeState, n1), f.holds("d2", table.NodeState, n1))
	if s.resume != nil {
		s.resume(f)
	}
	f.signal("d1", syscall.SIGCONT)
	f.must(victim.Start())
	f.must(f.ControllerReady())
	f.must(f.DaemonReady("d1"))
	f.must(f.WaitPhase("n1", "free"))
	p.drops(n1, n3)
	f.must(f.Assign("n1", "t2"))
	p.passes(n1, n2)
	p.drops(n1, n3)
	p.finish()
	// As it was, for the next one.
	f.must(f.Reclaim("n1"))
	f.must(f.Assign("n1", "t1"))
}

// Both at once, and the other DPU too: only the store and the kernels are left.
func TestKillEverythingDuringReclaim(t *testing.T) {
	f := start(t)
	f.assignAll()
	p := f.probe()
	f.request()
	f.spin("d1", table.NodeTenant, n1)
	for _, victim := range []*rack.Process{f.Controller, f.Daemons["d1"], f.Daemons["d2"]} {
		f.must(victim.Stop(syscall.SIGKILL))
	}
	p.passes(n2, n4) // as the kernels were left
	p.drops(n1, n3)
	for _, victim := range []*rack.Process{f.Daemons["d1"], f.Daemons["d2"], f.Controller} {
		f.must(victim.Start())
	}
	f.must(f.ControllerReady())
	f.must(f.WaitPhase("n1", "free"))
	f.must(f.Assign("n1", "t2"))
	p.passes(n1, n2)
	p.drops(n1, n3)
	p.finish()
}
