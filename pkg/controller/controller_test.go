package controller

import (
	"net/netip"
	"testing"

	"connectrpc.com/connect"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/record"
	"dpud/pkg/wire"
)

// TestMainJob goes through a node's life: assigned, programmed, reclaimed, free, and given to another tenant.
func TestMainJob(t *testing.T) {
	w := newWorld(t).start().apply()
	d1, d2 := w.dpu("d1"), w.dpu("d2")
	w.assign("n1", "t1")
	w.await("n1", programmed)
	if d1.tenant(1) != 1 || d2.tenant(1) != 1 {
		t.Fatalf("programmed for tenants %d and %d", d1.tenant(1), d2.tenant(1))
	}
	w.reclaim("n1")
	s := w.await("n1", free)
	if d1.tenant(1) != 0 || d2.tenant(1) != 0 {
		t.Fatal("free while a DPU forwards for it")
	}
	for _, p := range s.GetDpus() {
		if p.GetState() != dpudv1.State_STATE_CLEARED || p.GetGeneration() != 1 {
			t.Errorf("freed on %v", p)
		}
	}
	w.assign("n1", "t2")
	if s := w.await("n1", programmed); s.GetGeneration() != 2 || s.GetTenant() != "t2" {
		t.Fatalf("assigned anew: %v", s)
	}
	if d1.tenant(1) != 2 || d2.tenant(1) != 2 {
		t.Fatalf("programmed for tenants %d and %d", d1.tenant(1), d2.tenant(1))
	}
}

// TestGuard: a node is not free, and can't be assigned, before every DPU has confirmed.
func TestGuard(t *testing.T) {
	w := newWorld(t).start().apply()
	w.dpu("d1")
	d2 := w.dpu("d2")
	w.assign("n1", "t1")
	w.await("n1", programmed)
	d2.freeze(true)
	w.reclaim("n1")
	s := w.await("n1", waitsFor("d2"))
	if s.GetPhase() != dpudv1.Phase_PHASE_REVOKED || s.GetTenant() != "t1" {
		t.Fatalf("status %v", s)
	}
	_, err := w.client.Assign(t.Context(), connect.NewRequest(&dpudv1.AssignRequest{Node: "n1", Tenant: "t2"}))
	wantCode(t, err, connect.CodeFailedPrecondition)
	w.reclaim("n1") // again: asks for nothing
	if s := w.node("n1"); s.GetPhase() != dpudv1.Phase_PHASE_REVOKED || s.GetRevision() != 2 {
		t.Fatalf("status %v", s)
	}
	d2.freeze(false)
	w.await("n1", free)
}

// TestOldConfirmations: duplicates and what an earlier generation left behind prove nothing.
func TestOldConfirmations(t *testing.T) {
	w := newWorld(t).start().apply()
	d1, d2 := w.dpu("d1"), w.dpu("d2")
	w.assign("n1", "t1")
	w.await("n1", programmed)
	w.reclaim("n1")
	w.await("n1", free)
	w.assign("n1", "t1")
	w.await("n1", programmed)
	d1.freeze(true)
	d2.freeze(true)
	w.reclaim("n1")
	confirm := func(f record.Confirmation) error {
		e, err := wire.Seal(w.c.site, w.c.epoch, &f)
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.plane.Confirm(t.Context(), connect.NewRequest(&dpudv1.ConfirmRequest{Confirmations: []*dpudv1.Envelope{e, e}}))
		return err
	}
	old := record.Confirmation{DPU: "d1", Node: 1, Boot: 1, Sequence: 1000, State: record.Cleared, Epoch: w.c.epoch, Generation: 1, Revision: 2}
	if err := confirm(old); err != nil { // newer sequence, older generation
		t.Fatal(err)
	}
	old.Sequence, old.Generation = 2, 2 // older sequence: not stored
	if err := confirm(old); err != nil {
		t.Fatal(err)
	}
	other := old
	other.Sequence, other.Boot = 1001, 2
	wantCode(t, confirm(other), connect.CodeFailedPrecondition) // there is no boot 2
	other.Boot, other.Epoch = 1, w.c.epoch+1
	wantCode(t, confirm(other), connect.CodeFailedPrecondition) // an epoch that never was
	if s := w.node("n1"); len(s.GetWaitingFor()) != 2 || s.GetPhase() != dpudv1.Phase_PHASE_REVOKED {
		t.Fatalf("status %v", s)
	}
	right := old
	right.Sequence, right.Epoch, right.Generation = 1002, w.c.epoch, 2
	for _, d := range []record.DPU{"d1", "d2"} {
		right.DPU = d
		if err := confirm(right); err != nil {
			t.Fatal(err)
		}
	}
	w.await("n1", free)
}

// TestHardware: another hardware identity does not take a name over.
func TestHardware(t *testing.T) {
	w := newWorld(t).start().apply()
	w.dpu("d1")
	eventually(t, "d1 registered", func() bool { return w.dpuStatus("d1").GetBoot() == 1 })
	d := startDPU(t, "d1", dpuOptions{controller: w.socket(), hardware: "other"})
	eventually(t, "the impostor is refused", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.refused != nil
	})
	if s := w.dpuStatus("d1"); s.GetBoot() != 1 || s.GetHardwareId() != "hw-d1" {
		t.Fatalf("registered %v", s)
	}
}

func (w *world) dpuStatus(name string) *dpudv1.DPUStatus {
	w.t.Helper()
	res, err := w.client.ListDPUs(w.t.Context(), connect.NewRequest(&dpudv1.ListDPUsRequest{}))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, d := range res.Msg.GetDpus() {
		if d.GetName() == name {
			return d
		}
	}
	w.t.Fatalf("no DPU %s", name)
	return nil
}

// TestRestartedDPU: a new run of dpud is told everything again, and adopts what its kernel holds.
func TestRestartedDPU(t *testing.T) {
	w := newWorld(t).start().apply()
	d1 := w.dpu("d1")
	w.dpu("d2")
	w.assign("n1", "t1")
	w.await("n1", programmed)
	d1.kill()
	w.reclaim("n1")
	w.await("n1", waitsFor("d1"))
	d1 = startDPU(t, "d1", dpuOptions{controller: w.socket(), kernel: d1.kernel})
	w.await("n1", free)
	if d1.tenant(1) != 0 {
		t.Fatal("free while d1 forwards for it")
	}
	eventually(t, "everything is answered", func() bool {
		s := w.dpuStatus("d1")
		return s.GetBoot() == 2 && s.GetReachable() && s.GetPending() == 0 && s.GetError() == ""
	})
}

// TestGossipAlone: with every direct message cut, the rack converges by gossip.
func TestGossipAlone(t *testing.T) {
	w := newWorld(t)
	w.cfg.Gossip.Bind = netip.MustParseAddrPort("127.0.0.1:0")
	w.cfg.Dial = refuseDial
	w.start().apply()
	for _, name := range []record.DPU{"d1", "d2"} {
		startDPU(t, name, dpuOptions{seed: w.c.GossipAddr()})
	}
	w.assign("n1", "t1")
	w.await("n1", programmed)
	w.reclaim("n1")
	w.await("n1", free)
	w.assign("n1", "t2")
	w.await("n1", programmed)
	// A controller that restarts with an empty replica is told again what it missed.
	w.stop()
	w.cfg.Gossip.Bind = w.c.GossipAddr()
	w.start()
	w.reclaim("n1")
	w.await("n1", free)
}

// TestPush: a DPU is pushed what concerns it and nothing else.
func TestPush(t *testing.T) {
	w := newWorld(t).start().apply()
	d1 := w.dpu("d1")
	w.dpu("d2")
	w.assign("n1", "t1")
	w.await("n1", programmed)
	d1.mu.Lock()
	defer d1.mu.Unlock()
	for _, r := range []record.Record{
		&record.Services{Epoch: w.c.epoch, Revision: 1},
		&record.Grant{Node: 1, Epoch: w.c.epoch, Generation: 1, Phase: record.Granted, Revision: 1},
		&record.Entry{Tenant: 1, Node: 1, Epoch: w.c.epoch, Generation: 1, Revision: 1},
	} {
		if got := d1.heard[r.Key()]; got != r.Version() {
			t.Errorf("%s: pushed version %v, want %v", r.Key(), got, r.Version())
		}
	}
	if len(d1.heard) != 3 {
		t.Errorf("pushed %v", d1.heard)
	}
}
