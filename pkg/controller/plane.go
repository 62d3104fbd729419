package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"dpud/pkg/control/management"
	"dpud/pkg/record"
	"dpud/pkg/store"
)

// managementPrefix is where the management plane's objects are in the store, as JSON.
const managementPrefix = "/dpud/management/"

// errConflict: another change got in between, several times.
var errConflict = errors.New("lost a race with another change; ask again")

// maxAttempts bounds how often a command is decided again after a conflict.
const maxAttempts = 8

// plane runs the management plane's core against its store. Its methods are safe for concurrent use.
type plane struct {
	kv *store.KV
	// shared: other controllers may write to the store, so a refusal needs a fresh read.
	shared  bool
	log     *slog.Logger
	metrics *metrics
	// publish is told every object that is new or changed, without the lock.
	publish func([]management.Object)
	// fail is told why the plane can't go on.
	fail  func(error)
	reads sharedRead

	mu     sync.Mutex
	core   *management.Core
	grants map[record.NodeID]*management.Grant
	proofs map[management.Key]*management.Confirmation
	known  map[management.Key]int64 // revision at which a key is known; deleted ones too
	upTo   int64                    // every change up to this revision of the store is known
	// inventory is a revision of the site up to which its deletions are known, beyond upTo.
	inventory int64
}

// siteKey is put by every change of the inventory, hence with every deletion.
var siteKey = (*management.Meta)(nil).Key()

func newPlane(kv *store.KV, shared bool, m *metrics, log *slog.Logger) *plane {
	return &plane{
		kv: kv, shared: shared, log: log, metrics: m, publish: func([]management.Object) {}, fail: func(error) {}, core: management.New(),
		grants: make(map[record.NodeID]*management.Grant), proofs: make(map[management.Key]*management.Confirmation),
		known: make(map[management.Key]int64),
	}
}

// read calls f with the core, which must not be kept.
func (p *plane) read(f func(*management.Core)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p.core)
}

// fact is an object as the store held it at a revision; nil for a deleted one.
type fact struct {
	key      management.Key
	object   management.Object
	revision int64
}

// load reads everything, and learns what is gone.
func (p *plane) load(ctx context.Context) error {
	list, revision, err := p.kv.List(ctx, "", 0)
	if err != nil {
		return err
	}
	return p.take(store.Batch{Changes: list, Revision: revision, All: true})
}

// take learns a batch that lacks nothing up to its revision.
func (p *plane) take(b store.Batch) error {
	if err := p.hear(b.Changes); err != nil {
		return err
	}
	if b.All {
		p.forget(b)
	}
	p.mu.Lock()
	p.upTo = max(p.upTo, b.Revision)
	p.mu.Unlock()
	return nil
}

// learnDeletions makes the inventory whole: an answer of the store may have told of the site as another
// controller, or another goroutine, has just changed it, and not of what was deleted with that.
func (p *plane) learnDeletions(ctx context.Context) error {
	p.mu.Lock()
	whole := p.whole()
	p.mu.Unlock()
	if whole {
		return nil
	}
	return p.load(ctx)
}

// whole says whether the inventory's deletions are known as far as the site is. The lock is held.
func (p *plane) whole() bool { return p.known[siteKey] <= max(p.upTo, p.inventory) }

// follow learns what the store reports until ctx ends. What it can't read ends it: a hole among the grants
// would go unseen into every later lease.
func (p *plane) follow(ctx context.Context) {
	p.mu.Lock()
	after := p.upTo
	p.mu.Unlock()
	for b := range p.kv.Watch(ctx, after) {
		if b.Err != nil {
			p.log.Warn("management plane's store", "err", b.Err)
			continue
		}
		if err := p.take(b); err != nil {
			p.fail(fmt.Errorf("follow the store: %w", err))
			return
		}
	}
}

// forget learns that keys which a complete list lacks are gone.
func (p *plane) forget(b store.Batch) {
	there := make(map[management.Key]bool, len(b.Changes))
	for _, kv := range b.Changes {
		there[management.Key(kv.Key)] = true
	}
	var gone []fact
	p.mu.Lock()
	for k, revision := range p.known {
		if !there[k] && revision < b.Revision {
			gone = append(gone, fact{key: k, revision: b.Revision})
		}
	}
	p.mu.Unlock()
	p.learn(gone)
}

// hear learns keys as the store held them.
func (p *plane) hear(list []store.KeyValue) error {
	facts := make([]fact, 0, len(list))
	for _, kv := range list {
		f := fact{key: management.Key(kv.Key), revision: kv.Revision}
		if kv.Value != nil {
			if f.object = management.NewObject(f.key); f.object == nil {
				return fmt.Errorf("read %s%s: a newer version of this program wrote it", managementPrefix, kv.Key)
			}
			if err := json.Unmarshal(kv.Value, f.object); err != nil {
				return fmt.Errorf("read %s%s: %w", managementPrefix, kv.Key, err)
			}
		}
		facts = append(facts, f)
	}
	p.learn(facts)
	return nil
}

// learn hands news to the core and publishes what is new.
func (p *plane) learn(facts []fact) {
	var news []management.Object
	p.mu.Lock()
	for _, f := range facts {
		if f.revision <= p.known[f.key] {
			continue
		}
		p.known[f.key] = f.revision
		done := p.observe(f)
		p.core.Learn(f.key, f.object, f.revision)
		done()
		if f.object != nil {
			news = append(news, f.object)
		}
	}
	p.mu.Unlock()
	if len(news) > 0 {
		p.publish(news)
	}
}

// observe keeps grants and confirmations for listing, and measures how long an assignment or a reclaim took
// when f completes it. What it returns is called once the core has learned f.
func (p *plane) observe(f fact) func() {
	switch o := f.object.(type) {
	case *management.Grant:
		old := p.grants[o.Node]
		p.grants[o.Node] = o
		if old != nil && old.Phase == record.Revoked && o.Phase == record.Free {
			p.metrics.reclaim.Observe(o.At.Sub(old.At).Seconds())
		}
	case *management.Confirmation:
		p.proofs[f.key] = o
		g := p.grants[o.Node]
		if g == nil || g.Phase != record.Granted || o.State != record.Programmed || len(p.core.Unprogrammed(&g.Grant)) == 0 {
			break
		}
		return func() {
			if len(p.core.Unprogrammed(&g.Grant)) == 0 {
				p.metrics.assign.Observe(o.At.Sub(g.At).Seconds())
			}
		}
	}
	return func() {}
}

// do decides, commits and learns, again after a conflict. It returns when the decision is durable, or with
// errConflict or the store's error. A refusal by the core is returned once what the core asks for all the same,
// if anything, is durable.
func (p *plane) do(ctx context.Context, decide func(*management.Core) (management.Txn, error)) error {
	fresh := !p.shared
	for range maxAttempts {
		p.mu.Lock()
		whole := p.whole()
		var txn management.Txn
		var refused error
		if whole {
			txn, refused = decide(p.core)
		}
		p.mu.Unlock()
		switch {
		case !whole:
			if err := p.load(ctx); err != nil {
				return err
			}
			continue
		case refused != nil && !fresh:
			// Another controller may have changed what the refusal rests on.
			if _, err := p.catchUp(ctx, ""); err != nil {
				return err
			}
			fresh = true
			continue
		case txn.Empty():
			return refused
		}
		done, err := p.commit(ctx, txn)
		if err != nil {
			return err
		}
		if done {
			return refused
		}
		p.metrics.conflicts.Inc()
	}
	return errConflict
}

// command is do for operators: it decides on everything that was committed before it began.
func (p *plane) command(ctx context.Context, decide func(*management.Core) (management.Txn, error)) error {
	if p.shared {
		if _, err := p.catchUp(ctx, ""); err != nil {
			return err
		}
	}
	return p.do(ctx, decide)
}

// commit carries out one transaction and learns its outcome; it says whether it was committed.
func (p *plane) commit(ctx context.Context, txn management.Txn) (bool, error) {
	t := store.Txn{If: make(map[string]int64, len(txn.If)), Put: make(map[string][]byte, len(txn.Put))}
	for k, revision := range txn.If {
		t.If[string(k)] = revision
	}
	for _, o := range txn.Put {
		b, err := json.Marshal(o)
		if err != nil {
			return false, fmt.Errorf("encode %s: %w", o.Key(), err)
		}
		t.Put[string(o.Key())] = b
	}
	for _, k := range txn.Delete {
		t.Delete = append(t.Delete, string(k))
	}
	began := time.Now()
	res, err := p.kv.Commit(ctx, t)
	p.metrics.txn.Observe(time.Since(began).Seconds())
	switch {
	case err != nil:
		return false, err
	case !res.OK:
		return false, p.hear(res.Found)
	}
	facts := make([]fact, 0, len(txn.Put)+len(txn.Delete))
	for _, o := range txn.Put {
		facts = append(facts, fact{o.Key(), o, res.Revision})
	}
	for _, k := range txn.Delete {
		facts = append(facts, fact{k, nil, res.Revision})
	}
	p.learn(facts)
	if site, ok := txn.If[siteKey]; ok {
		p.mu.Lock()
		if site <= max(p.upTo, p.inventory) { // nobody else changed the site in between
			p.inventory = max(p.inventory, res.Revision)
		}
		p.mu.Unlock()
	}
	return true, nil
}

// catchUp reads what was put under a part of the prefix, linearizably, and returns the store's revision. It
// does not see deletions: learnDeletions does.
func (p *plane) catchUp(ctx context.Context, under string) (int64, error) {
	p.mu.Lock()
	since := p.upTo
	p.mu.Unlock()
	list, revision, err := p.kv.List(ctx, under, since)
	if err != nil {
		return 0, err
	}
	return revision, p.hear(list)
}

// readGrants learns every grant committed before the call, and whether the inventory lost something, and returns
// the store's revision of the read. Calls that wait at the same time share a read that begins after all of them.
func (p *plane) readGrants(ctx context.Context) (int64, error) {
	return p.reads.do(ctx, func(ctx context.Context) (int64, error) {
		if _, err := p.catchUp(ctx, string(siteKey)); err != nil {
			return 0, err
		}
		if err := p.learnDeletions(ctx); err != nil {
			return 0, err
		}
		return p.catchUp(ctx, "grant/")
	})
}

// sharedRead lets callers share a read that began after each of them asked.
type sharedRead struct {
	mu      sync.Mutex
	next    *sharedCall // not begun
	running bool
}

type sharedCall struct {
	done     chan struct{}
	revision int64
	err      error
}

func (r *sharedRead) do(ctx context.Context, read func(context.Context) (int64, error)) (int64, error) {
	r.mu.Lock()
	if r.next == nil {
		r.next = &sharedCall{done: make(chan struct{})}
	}
	call := r.next
	if !r.running {
		r.running = true
		go r.run(context.WithoutCancel(ctx), read)
	}
	r.mu.Unlock()
	select {
	case <-call.done:
		return call.revision, call.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// run reads until nobody waits. The store bounds each read's time.
func (r *sharedRead) run(ctx context.Context, read func(context.Context) (int64, error)) {
	for {
		r.mu.Lock()
		call := r.next
		r.next = nil
		r.running = call != nil
		r.mu.Unlock()
		if call == nil {
			return
		}
		call.revision, call.err = read(ctx)
		close(call.done)
	}
}
