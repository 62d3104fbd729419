package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"dpud/pkg/control/management"
	"dpud/pkg/control/tenant"
	"dpud/pkg/record"
	"dpud/pkg/store"
)

// grantFeed is all that a tenant's control plane hears of the management plane.
type grantFeed interface {
	// Follow calls hear with every grant there is and from then on with each newer one, in any goroutine, until
	// ctx ends. The same grant may come twice. hear must not block.
	Follow(ctx context.Context, hear func(*record.Grant))
}

// feed is the grantFeed of a management plane in this process.
type feed struct {
	plane *plane

	mu        sync.Mutex
	followers map[int]func(*record.Grant)
	last      int
}

func newFeed(p *plane) *feed { return &feed{plane: p, followers: make(map[int]func(*record.Grant))} }

// Follow implements grantFeed.
func (f *feed) Follow(ctx context.Context, hear func(*record.Grant)) {
	f.mu.Lock()
	f.last++
	id := f.last
	f.followers[id] = hear
	f.mu.Unlock()
	context.AfterFunc(ctx, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.followers, id)
	})
	for _, g := range f.plane.allGrants() {
		hear(&g.Grant)
	}
}

func (p *plane) allGrants() []*management.Grant {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*management.Grant, 0, len(p.grants))
	for _, g := range p.grants {
		all = append(all, g)
	}
	return all
}

// heard passes on what is new.
func (f *feed) heard(news []management.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range news {
		if g, ok := o.(*management.Grant); ok {
			for _, hear := range f.followers {
				hear(&g.Grant)
			}
		}
	}
}

// tenantPlane is the control plane of one tenant. It sees its own part of the store and the feed, nothing else.
type tenantPlane struct {
	id      record.TenantID
	kv      *store.KV
	publish func(*record.Entry)
	log     *slog.Logger
	core    *tenant.Core

	wake  chan struct{}
	mu    sync.Mutex
	heard map[record.NodeID]*record.Grant // not yet handed to the core
	// mine are the nodes that are or were this tenant's. Other tenants' grants matter for these alone: they end them.
	mine map[record.NodeID]struct{}
}

// tenantPrefix is where a tenant's entries are in the store, as JSON.
func tenantPrefix(t record.TenantID) string { return fmt.Sprintf("/dpud/tenant/%d/", t) }

func newTenantPlane(id record.TenantID, s *store.Store, publish func(*record.Entry), log *slog.Logger) *tenantPlane {
	return &tenantPlane{
		id: id, kv: s.Prefix(tenantPrefix(id)), publish: publish, log: log.With("tenant_id", id), core: tenant.New(id),
		wake: make(chan struct{}, 1), heard: make(map[record.NodeID]*record.Grant), mine: make(map[record.NodeID]struct{}),
	}
}

// run drives the core until ctx ends. A failure of the store delays it and nothing else.
func (t *tenantPlane) run(ctx context.Context, grants grantFeed) {
	if !t.retry(ctx, "list entries", t.list) {
		return
	}
	grants.Follow(ctx, t.hearGrant)
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		}
		t.mu.Lock()
		heard := t.heard
		t.heard = make(map[record.NodeID]*record.Grant)
		t.mu.Unlock()
		for _, g := range heard {
			t.core.HearGrant(g)
		}
		if !t.retry(ctx, "write entries", t.flush) {
			return
		}
	}
}

// retry calls f until it succeeds; false: ctx ended.
func (t *tenantPlane) retry(ctx context.Context, what string, f func(context.Context) error) bool {
	for wait := minBackoff; ; wait = min(2*wait, maxBackoff) {
		err := f(ctx)
		if err == nil || ctx.Err() != nil {
			return ctx.Err() == nil
		}
		t.log.Warn(what, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

func (t *tenantPlane) hearGrant(g *record.Grant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, mine := t.mine[g.Node]; !mine && g.Tenant != t.id {
		return
	}
	t.mine[g.Node] = struct{}{}
	if old := t.heard[g.Node]; old != nil && record.Newest(old, g) == old {
		return
	}
	t.heard[g.Node] = g
	signal(t.wake)
}

func (t *tenantPlane) list(ctx context.Context) error {
	list, _, err := t.kv.List(ctx, "entry/", 0)
	if err != nil {
		return err
	}
	return t.learn(list)
}

// learn takes entries as the store holds them.
func (t *tenantPlane) learn(list []store.KeyValue) error {
	for _, kv := range list {
		if kv.Value == nil {
			continue // entries are marked as deleted, never deleted
		}
		e := new(record.Entry)
		if err := json.Unmarshal(kv.Value, e); err != nil {
			return fmt.Errorf("read %s%s: %w", tenantPrefix(t.id), kv.Key, err)
		}
		t.learnEntry(e, kv.Revision)
	}
	return nil
}

func (t *tenantPlane) learnEntry(e *record.Entry, revision int64) {
	t.core.Learn(e, revision)
	t.mu.Lock()
	t.mine[e.Node] = struct{}{}
	t.mu.Unlock()
	t.publish(e)
}

// flush writes what the core asks for. Whoever else drives this tenant makes a put fail, and is learned from.
func (t *tenantPlane) flush(ctx context.Context) error {
	for {
		put, ok := t.core.Next()
		if !ok {
			return nil
		}
		b, err := json.Marshal(put.Entry)
		if err != nil {
			return fmt.Errorf("encode %s: %w", put.Entry.Key(), err)
		}
		key := fmt.Sprintf("entry/%d", put.Entry.Node)
		res, err := t.kv.Commit(ctx, store.Txn{If: map[string]int64{key: put.If}, Put: map[string][]byte{key: b}})
		switch {
		case err != nil:
			return err
		case res.OK:
			t.learnEntry(put.Entry, res.Revision)
			continue
		}
		if err := t.learn(res.Found); err != nil {
			return err
		}
	}
}
