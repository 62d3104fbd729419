package controller

import (
	"context"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/control/management"
	"dpud/pkg/site"
	"dpud/pkg/store"
)

// deaf is the plane of another controller on the world's store, whose watch has not reported anything yet.
func (w *world) deaf() *plane {
	w.t.Helper()
	p := newPlane(w.c.store.Prefix(managementPrefix), true, w.c.metrics, w.c.log)
	if err := p.load(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return p
}

// remove takes something out of the site, by an apply.
func (w *world) remove(change func(*site.Site)) {
	w.t.Helper()
	var s *site.Site
	w.c.plane.read(func(core *management.Core) { s = core.Site() })
	change(s)
	b, err := site.Format(s)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.client.Apply(w.t.Context(), connect.NewRequest(&dpudv1.ApplyRequest{SiteFile: b})); err != nil {
		w.t.Fatal(err)
	}
}

func knows(p *plane, node string) bool {
	var err error
	p.read(func(core *management.Core) { _, err = core.Node(node) })
	return err == nil
}

// TestConflictTeachesDeletions: who learns of a changed site from a conflict decides again without what was
// removed with that change, whether or not the conflict named it.
func TestConflictTeachesDeletions(t *testing.T) {
	w := newWorld(t).start().apply()
	p := w.deaf()
	tries := 0
	err := p.do(t.Context(), func(core *management.Core) (management.Txn, error) {
		if tries++; tries == 1 {
			txn, err := core.Assign("n1", "t1", time.Now())
			w.remove(func(s *site.Site) { s.Nodes = s.Nodes[:3] })
			return txn, err
		}
		if n, err := core.Node("n4"); err == nil {
			t.Errorf("try %d knows %s, which is removed", tries, n.Name)
		}
		return core.Assign("n1", "t1", time.Now())
	})
	if err != nil || tries != 2 {
		t.Fatalf("after %d tries: %v", tries, err)
	}
}

// TestCommandKnowsDeletions: a command decides without what another controller has removed.
func TestCommandKnowsDeletions(t *testing.T) {
	w := newWorld(t).start().apply()
	p := w.deaf()
	w.remove(func(s *site.Site) { s.Nodes = s.Nodes[:3] })
	err := p.command(t.Context(), func(core *management.Core) (management.Txn, error) {
		if _, err := core.Node("n4"); err == nil {
			t.Error("the command knows n4, which is removed")
		}
		return core.Assign("n4", "t1", time.Now())
	})
	if err == nil || !strings.Contains(err.Error(), `node "n4" is not in the site`) {
		t.Errorf("assign a removed node: %v", err)
	}
}

// TestLeaseKnowsDeletions: the same before a lease is answered.
func TestLeaseKnowsDeletions(t *testing.T) {
	w := newWorld(t).start().apply()
	p := w.deaf()
	w.remove(func(s *site.Site) { s.Nodes = s.Nodes[:3] })
	if _, err := p.readGrants(t.Context()); err != nil {
		t.Fatal(err)
	}
	if knows(p, "n4") {
		t.Error("a lease would rest on an inventory with a removed node")
	}
}

// TestOwnChangeIsWhole: a controller that changed the site itself need not read everything again.
func TestOwnChangeIsWhole(t *testing.T) {
	w := newWorld(t).start().apply()
	p := w.deaf()
	err := p.command(t.Context(), func(core *management.Core) (management.Txn, error) {
		s := core.Site()
		s.Nodes = s.Nodes[:3]
		txn, _, err := core.ApplySite(s)
		return txn, err
	})
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.whole() || p.known[siteKey] <= p.upTo {
		t.Errorf("site at %d, inventory at %d, watched up to %d", p.known[siteKey], p.inventory, p.upTo)
	}
}

// TestUnreadableNews: a controller that can't read a batch stops, or its later leases would lack a grant.
func TestUnreadableNews(t *testing.T) {
	w := newWorld(t).start().apply()
	bad := store.Txn{Put: map[string][]byte{"grant/1": []byte("{")}}
	if _, err := w.c.store.Prefix(managementPrefix).Commit(t.Context(), bad); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	select {
	case err := <-w.c.Failed():
		if !strings.Contains(err.Error(), "read "+managementPrefix+"grant/1: ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("failed with %q", err)
		}
	case <-ctx.Done():
		t.Fatal("the controller goes on")
	}
	if w.c.ready.Load() {
		t.Error("it is still ready")
	}
}

// TestRename: a file of another site is not applied by mistake.
func TestRename(t *testing.T) {
	w := newWorld(t).start().apply()
	apply := func(rename bool) error {
		r := &dpudv1.ApplyRequest{SiteFile: []byte("site: other\n"), Rename: rename, DryRun: true}
		_, err := w.client.Apply(t.Context(), connect.NewRequest(r))
		return err
	}
	wantCode(t, apply(false), connect.CodeFailedPrecondition)
	if err := apply(true); err != nil {
		t.Error(err)
	}
}

// TestWatchTimeout: a watch that ends because the caller's time is over says so.
func TestWatchTimeout(t *testing.T) {
	w := newWorld(t).start().apply()
	// The client's own clock must not be what ends it, so the time is asked for in the protocol's header alone.
	r := connect.NewRequest(&dpudv1.WatchNodeRequest{Node: "n1"})
	r.Header().Set("Connect-Timeout-Ms", "50")
	stream, err := w.client.WatchNode(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
	}
	wantCode(t, stream.Err(), connect.CodeDeadlineExceeded)
}
