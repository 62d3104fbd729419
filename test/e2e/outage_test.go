package e2e

import (
	gomaps "maps"
	"os"
	"syscall"
	"testing"

	"dpud/pkg/maps"
	"dpud/pkg/record"
	"dpud/pkg/table"
	"dpud/test/prober"
	"dpud/test/rack"
)

// moveNode takes n1 from t1 to t2 under traffic.
func (f *fixture) moveNode() {
	f.t.Helper()
	f.assignAll()
	p := f.probe()
	p.passes(n1, n3)
	p.drops(n1, n2)
	f.must(f.Reclaim("n1"))
	p.drops(n1, n3)
	f.must(f.Assign("n1", "t2"))
	p.passes(n1, n2)
	p.drops(n1, n3)
	p.finish()
}

// From the first lease on, with no direct message ever.
func TestGossipAlone(t *testing.T) {
	f := wire(t)
	f.must(f.CutDirect(true))
	f.must(f.Start())
	f.learnIDs()
	f.moveNode()
	var dpus struct {
		DPUs []struct {
			Name      string
			Reachable bool
		}
	}
	f.must(f.JSON(&dpus, "get", "dpus"))
	for _, d := range dpus.DPUs {
		if d.Reachable {
			t.Errorf("%s is reachable, so this was not gossip alone", d.Name)
		}
	}
}

func TestDirectMessagesAlone(t *testing.T) {
	f := wire(t)
	f.must(f.CutGossip(true))
	f.must(f.Start())
	f.learnIDs()
	f.moveNode()
	var status struct {
		Members int `json:"gossip_members"`
	}
	f.must(f.JSON(&status, "status"))
	if status.Members > 1 {
		t.Errorf("gossip has %d members, so this was not direct messages alone", status.Members)
	}
}

// However a dpud ends, the kernel goes on as it was, and a new one takes over without a packet judged otherwise.
func TestDeathAndRestartChangeNoVerdict(t *testing.T) {
	f := start(t)
	f.assignAll()
	for _, end := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(end.String(), func(t *testing.T) {
			f := f.in(t)
			before := f.tables()
			p := f.probe()
			p.passes(n1, n3)
			for _, dpu := range rack.DPUs {
				f.must(f.Daemons[dpu].Stop(end))
			}
			for range 3 {
				p.passes(n1, n3)
				p.drops(n1, n2)
			}
			f.unchanged(before)
			for _, dpu := range rack.DPUs {
				f.must(f.Daemons[dpu].Start())
				f.must(f.DaemonReady(dpu))
			}
			f.must(f.Controller.Restart(end))
			f.must(f.ControllerReady())
			p.passes(n3, n1)
			p.drops(n4, n1)
			f.unchanged(before)
			r := p.finish()
			f.lossless(r, p)
		})
	}
}

// tables is what both kernels hold.
func (f *fixture) tables() map[record.DPU]table.Tables {
	f.t.Helper()
	all := make(map[record.DPU]table.Tables)
	for _, dpu := range rack.DPUs {
		t, err := maps.OpenTables(f.PinDir(dpu))
		f.must(err)
		all[dpu], err = t.Read()
		f.must(err)
		f.must(t.Close())
	}
	return all
}

// unchanged fails the test if the kernels hold anything else than before.
func (f *fixture) unchanged(before map[record.DPU]table.Tables) {
	f.t.Helper()
	now := f.tables()
	for _, dpu := range rack.DPUs {
		if len(before[dpu]) == 0 || !gomaps.Equal(before[dpu], now[dpu]) {
			f.t.Errorf("the maps of %s changed from\n%v to\n%v", dpu, before[dpu], now[dpu])
		}
	}
}

// lossless fails the test if an honest frame within a tenant was lost: each gap in enforcement or in forwarding
// while programs are replaced would show.
func (f *fixture) lossless(r *prober.Report, p *probe) {
	f.t.Helper()
	for _, pair := range [][2]int{{n1, n3}, {n3, n1}, {n2, n4}, {n4, n2}} {
		for _, k := range prober.Kinds() {
			sent, received := p.Sent(pair[0], pair[1], k), p.Received(pair[0], pair[1], k)
			if k.Honest() && sent != received {
				f.t.Errorf("%d of %d frames (%s) from %s to %s arrived:\n%s", received, sent, k, rack.Nodes[pair[0]], rack.Nodes[pair[1]], r)
			}
		}
	}
}

// A DPU that lost its kernel's state learns again what it must hold, and meanwhile passes nothing.
func TestDPUReboots(t *testing.T) {
	f := start(t)
	f.assignAll()
	p := f.probe()
	p.passes(n1, n3)
	f.must(f.Reboot("d1"))
	p.drops(n1, n3)
	p.drops(n1, n2)
	if _, err := os.Stat(f.PinDir("d1")); err == nil {
		t.Error("the DPU's maps survived")
	}
	// A reclaim waits for it: it may only be away.
	f.request()
	f.waitsFor("d1")
	f.must(f.Daemons["d1"].Start())
	f.must(f.WaitPhase("n1", "free"))
	p.passes(n2, n4)
	p.drops(n1, n3)
	f.must(f.Assign("n1", "t2"))
	p.passes(n1, n4)
	p.finish()
}

// R1: while a DPU still has the node, it does not return to the pool.
func TestNodeIsNotFreeWhileADPUHasIt(t *testing.T) {
	f := start(t)
	f.assignAll()
	p := f.probe()
	f.signal("d2", syscall.SIGSTOP)
	a, err := f.Ctl("reclaim", "n1", "--timeout", "1s")
	f.must(err)
	if a.Code != 4 {
		t.Errorf("reclaim with d2 hanging: exit code %d (%s%s), want 4", a.Code, a.Stdout, a.Stderr)
	}
	f.waitsFor("d2")
	a, err = f.Ctl("assign", "n1", "t2", "--timeout", "1s")
	f.must(err)
	if a.Code != 3 {
		t.Errorf("assign while d2 has the node: exit code %d (%s%s), want 3", a.Code, a.Stdout, a.Stderr)
	}
	if !f.holds("d2", table.NodeTenant, n1) || f.holds("d1", table.NodeTenant, n1) {
		t.Error("want the node on d2, which hangs, and not on d1")
	}
	p.drops(n1, n3)
	f.signal("d2", syscall.SIGCONT)
	f.must(f.WaitPhase("n1", "free"))
	f.must(f.Assign("n1", "t2"))
	p.passes(n1, n4)
	p.finish()
}

// R2: a DPU that slept through assignment and reclaim, and wakes with the old grant in its socket, does not keep
// what it makes of it.
func TestStaleGrantAfterReclaim(t *testing.T) {
	f := start(t)
	p := f.probe()
	for _, node := range []string{"n2", "n3", "n4"} {
		f.must(f.Assign(node, "t1"))
	}
	f.signal("d2", syscall.SIGSTOP)
	a, err := f.Ctl("assign", "n1", "t1", "--timeout", "1s")
	f.must(err)
	if a.Code != 4 {
		t.Errorf("assign with d2 hanging: exit code %d (%s%s), want 4", a.Code, a.Stdout, a.Stderr)
	}
	f.request()
	f.waitsFor("d2")
	f.signal("d2", syscall.SIGCONT)
	f.must(f.WaitPhase("n1", "free"))
	f.must(f.Assign("n1", "t2"))
	p.drops(n1, n2)
	p.drops(n3, n1)
	for _, dpu := range rack.DPUs {
		entries, err := f.Entries(dpu, table.NodeTenant.String())
		f.must(err)
		for _, e := range entries {
			if e.Node == f.ids[n1] && e.Tenant == entryOf(entries, f.ids[n2]).Tenant {
				t.Errorf("%s: n1 is of the tenant that it left: %v", dpu, entries)
			}
		}
	}
	p.finish()
}

func entryOf(entries []rack.MapEntry, node record.NodeID) rack.MapEntry {
	for _, e := range entries {
		if e.Node == node {
			return e
		}
	}
	return rack.MapEntry{}
}

// R3: a DPU that restarts has forgotten that it cleared the node, and hears the old grant from a peer that missed
// the reclaim, with no controller to ask.
func TestStalePeer(t *testing.T) {
	f := start(t)
	f.assignAll()
	p := f.probe()
	f.must(f.CutDirect(true, "d2"))
	f.must(f.CutGossip(true, "d2"))
	f.request()
	f.waitsFor("d2")
	f.must(f.Daemons["d1"].Stop(syscall.SIGKILL))
	f.must(f.Controller.Stop(syscall.SIGKILL))
	f.must(f.CutGossip(false, "d2"))
	if !f.holds("d2", table.NodeTenant, n1) {
		t.Error("d2 heard of the reclaim, so it is no stale peer")
	}
	f.must(f.Daemons["d1"].Start())
	f.until("d1 to hear of d2's records, and to want the node", func() (bool, error) {
		metrics, err := f.Metrics("d1")
		return metrics["dpud_entries_wanted"] == float64(len(f.ids)), err
	})
	p.passes(n2, n4)
	p.drops(n1, n3)
	if f.holds("d1", table.NodeTenant, n1) {
		t.Error("d1 programmed the node again")
	}
	f.must(f.CutDirect(false, "d2"))
	f.must(f.Controller.Start())
	f.must(f.ControllerReady())
	f.must(f.WaitPhase("n1", "free"))
	f.must(f.Assign("n1", "t2"))
	p.passes(n1, n2)
	p.drops(n1, n3)
	p.finish()
}
