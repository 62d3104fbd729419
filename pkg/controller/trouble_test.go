package controller

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/record"
	"dpud/pkg/wire"
)

// TestRefusedDPUsAreShown: a DPU that is refused does not look healthy, whatever the reason.
func TestRefusedDPUsAreShown(t *testing.T) {
	w := newWorld(t).start().apply()
	w.dpu("d1")
	eventually(t, "d1 registered", func() bool { return w.dpuStatus("d1").GetBoot() == 1 })
	w.assign("n1", "t1")
	ask := func(site record.SiteID, r record.LeaseRequest) {
		t.Helper()
		e, err := wire.Seal(site, 0, &r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = w.plane.Lease(t.Context(), connect.NewRequest(&dpudv1.LeaseCall{Request: e}))
	}
	shows := func(dpu, text string) {
		t.Helper()
		if got := w.dpuStatus(dpu).GetError(); !strings.Contains(got, text) {
			t.Errorf("status of %s is %q, want %q", dpu, got, text)
		}
	}
	ask(w.c.site, record.LeaseRequest{DPU: "d1", Instance: "other", HardwareID: "other", Nonce: 1})
	shows("d1", "lease refused 0s ago: DPU d1 is bound to hardware hw-d1, this is other")
	ask(w.c.site, record.LeaseRequest{DPU: "d1", Instance: "old", HardwareID: "hw-d1", Boot: 7, Nonce: 1})
	shows("d1", "boot 7 of DPU d1 is over")
	ask(w.c.site, record.LeaseRequest{DPU: "d9", Instance: "i", HardwareID: "hw", Nonce: 1})
	shows("d9", `DPU "d9" is not in the site`)
	ask("elsewhere", record.LeaseRequest{DPU: "d2", Instance: "i", HardwareID: "hw", Nonce: 1})
	shows("d2", "it keeps to site elsewhere, and this is site "+string(w.c.site))
	if next := w.node("n1").GetNext(); !strings.Contains(next, "d2: lease refused 0s ago: it keeps to site elsewhere") {
		t.Errorf("next of n1 is %q", next)
	}
	w.dpu("d2") // another run is granted one; the refused one may still be there
	w.await("n1", programmed)
	shows("d2", "elsewhere")
}

// TestRefusalsEnd: a refusal is shown until its run has a lease, or nobody repeats it.
func TestRefusalsEnd(t *testing.T) {
	now := time.Unix(1000, 0)
	x := newTroubles()
	if !x.refuseLease("d1", "a", "why", now) || x.refuseLease("d1", "a", "why", now.Add(5*time.Second)) ||
		!x.refuseLease("d1", "a", "other", now) || !x.refuseLease("d1", "a", "other", now.Add(logEvery)) {
		t.Error("want a line in the log for each reason and each minute")
	}
	now = now.Add(logEvery)
	x.granted("d1", "b", now)
	if got := x.texts(now)["d1"]; got != "lease refused 0s ago: other" {
		t.Errorf("another run's lease: %q", got)
	}
	x.granted("d1", "a", now)
	if got := x.texts(now); len(got) != 0 {
		t.Errorf("after its lease: %q", got)
	}
	x.refuseLease("d1", "a", "why", now)
	x.granted("d1", "b", now.Add(quiet))
	if got := x.texts(now); len(got) != 0 {
		t.Errorf("long after: %q", got)
	}
}

// TestTwinsAreShown: two live runs with one name and hardware identity take the boot from each other.
func TestTwinsAreShown(t *testing.T) {
	w := newWorld(t).start().apply()
	for i, run := range []string{"a", "b", "a", "b"} {
		if got := w.dpuStatus("d1").GetError(); got != "" {
			t.Errorf("after %d registrations: %q", i, got)
		}
		if _, err := w.c.lease(t.Context(), &record.LeaseRequest{DPU: "d1", Instance: run, HardwareID: "hw-d1", Nonce: record.Nonce(i + 1)}); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.dpuStatus("d1").GetError(); got != twinsSentence("d1") {
		t.Errorf("status %q", got)
	}
}

// TestNoTwins: restarts, and one late message of an earlier run, are no twins; those who were are so for a while.
func TestNoTwins(t *testing.T) {
	now := time.Unix(1000, 0)
	for runs, want := range map[string]bool{"abcdef": false, "aba": false, "abac": false, "abab": true, "ababa": true, "aabb": false} {
		x := newTroubles()
		told := 0
		for _, run := range runs {
			if x.registered("d1", string(run), now) {
				told++
			}
		}
		if got := x.texts(now)["d1"] != ""; got != want || (told == 1) != want {
			t.Errorf("runs %s: shown %t, told %d times", runs, got, told)
		}
		if got := x.texts(now.Add(2 * twinsWithin)); len(got) != 0 {
			t.Errorf("runs %s: still shown: %v", runs, got)
		}
	}
	x := newTroubles()
	for i, run := range []string{"a", "b", "a", "b"} {
		if x.registered("d1", run, now.Add(time.Duration(i)*2*twinsWithin)) {
			t.Error("slow turns count as twins")
		}
	}
}

// TestBadConfirmation: one that can't be true spoils no other of its batch, and does not go unseen.
func TestBadConfirmation(t *testing.T) {
	w := newWorld(t).start().apply()
	d1 := w.dpu("d1")
	w.assign("n1", "t1")
	w.await("n1", waitsFor("d2"))
	d1.freeze(true)
	good := &record.Confirmation{DPU: "d1", Node: 1, Boot: 1, Sequence: 100, State: record.Withdrawn, Epoch: w.c.epoch, Generation: 1}
	bad := &record.Confirmation{DPU: "d1", Node: 2, Boot: 9, Sequence: 101, State: record.Cleared, Epoch: 1, Generation: 1}
	if err := w.c.confirm(t.Context(), []*record.Confirmation{bad, good}); err != nil {
		t.Errorf("a batch with a good one: %v", err)
	}
	w.await("n1", waitsFor("d1", "d2"))
	if got := w.dpuStatus("d1").GetError(); !strings.HasPrefix(got, `confirmation refused 0s ago: confirm node 2: DPU "d1" has no boot 9`) {
		t.Errorf("status %q", got)
	}
	if got := w.dpuStatus("d1").GetError(); strings.HasSuffix(got, ": refused") {
		t.Errorf("status %q", got)
	}
	if err := w.c.confirm(t.Context(), []*record.Confirmation{bad}); !refusal(err) {
		t.Errorf("nothing but a bad one: %v", err)
	}
}

// TestGossipAnswersOnce: gossip answers a request only if the direct way did not, and once.
func TestGossipAnswersOnce(t *testing.T) {
	w := newWorld(t)
	w.cfg.Gossip = Gossip{Bind: netip.MustParseAddrPort("127.0.0.1:0")}
	w.start().apply()
	inGossip := func() record.Record {
		return w.c.fanout.replica.Record((&record.Lease{DPU: "d1"}).Key())
	}
	req := &record.LeaseRequest{DPU: "d1", Instance: "i", HardwareID: "hw", Nonce: 5}
	e, err := wire.Seal(w.c.site, 0, req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.plane.Lease(t.Context(), connect.NewRequest(&dpudv1.LeaseCall{Request: e})); err != nil {
		t.Fatal(err)
	}
	if err := w.c.hear(t.Context(), req); err != nil || inGossip() != nil {
		t.Fatalf("answered again: %v, %v", inGossip(), err)
	}
	later := *req
	later.Nonce++
	if err := errors.Join(w.c.hear(t.Context(), &later), w.c.hear(t.Context(), req)); err != nil {
		t.Fatal(err)
	}
	if l, ok := inGossip().(*record.Lease); !ok || l.Nonce != later.Nonce {
		t.Fatalf("in gossip: %v", inGossip())
	}
}
