package dpud

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"dpud/internal/dpud/ports"
	"dpud/pkg/control/agent"
	"dpud/pkg/record"
	"dpud/pkg/table"
)

// loop owns the agent's core: one goroutine, [loop.run], hears news, carries out one operation at a time and
// passes on what the core has to say. Everything else posts to it and does not wait for the kernel.
type loop struct {
	core   *agent.Core
	kernel Kernel
	log    *slog.Logger
	audit  time.Duration
	out    outgoing

	mu   sync.Mutex
	news []func()
	wake chan struct{}

	// Owned by run.
	lastRetry, lastAudit time.Time
	forward              bool           // the bridge's entries have to be looked at
	confirmed            record.Version // newest confirmation passed on
	said                 string         // last error that was logged, and when
	saidAt               time.Time
	granted              bool  // a lease is held, and that was logged
	refusal              error // why the newest answer was no lease
}

// outgoing is where the loop passes on what the core says. Its methods do not block.
type outgoing interface {
	// ask sends a lease request; the answer is posted to the loop.
	ask(*record.LeaseRequest)
	// confirm tells everything that is unanswered, of which fresh are new.
	confirm(fresh, unanswered []*record.Confirmation)
	// barrier reports how long one took.
	barrier(time.Duration)
}

const (
	// beatEvery is how often time is looked at: leases, retries and audits are this late at most.
	beatEvery = 50 * time.Millisecond
	// retryEvery is the time after which the core goes on after an error.
	retryEvery = time.Second
	// sayEvery is how often an error that stays is logged.
	sayEvery = 30 * time.Second
	// maxNews bounds how much is heard between two operations, so that removals are not held up by chatter.
	maxNews = 1024
)

func newLoop(core *agent.Core, kernel Kernel, audit time.Duration, out outgoing, log *slog.Logger) *loop {
	return &loop{core: core, kernel: kernel, audit: audit, out: out, log: log, wake: make(chan struct{}, 1)}
}

// post has f run by the loop's goroutine, after everything posted before. It never blocks.
func (l *loop) post(f func()) {
	l.mu.Lock()
	l.news = append(l.news, f)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// call has f run by the loop's goroutine and waits for it.
func (l *loop) call(ctx context.Context, f func()) error {
	done := make(chan struct{})
	l.post(func() {
		f()
		close(done)
	})
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("ask reconcile loop: %w", context.Cause(ctx))
	}
}

// hear posts a record that came in, if it concerns this DPU.
func (l *loop) hear(r record.Record) {
	switch r.(type) {
	case *record.Grant, *record.Entry, *record.Services:
		l.post(func() { l.core.Hear(r) })
	}
}

// setPorts posts which ports there are.
func (l *loop) setPorts(list []ports.Port) {
	ready := make(map[string]uint32)
	for _, p := range list {
		if p.Ready() {
			ready[p.Name] = uint32(p.Index)
		}
	}
	l.post(func() {
		l.core.SetPorts(ready)
		l.core.Retry() // what failed for want of a port may work now
		l.forward = true
	})
}

// run ends with ctx. What was begun is left as a crash would leave it: the next run adopts it.
func (l *loop) run(ctx context.Context) error {
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	l.lastRetry, l.lastAudit = time.Now(), time.Now()
	l.beat(time.Now())
	for ctx.Err() == nil {
		more := l.takeNews()
		if l.forward && l.core.Kernel() != nil {
			l.forward = false
			l.say(l.kernel.Forward(l.core.Kernel()))
		}
		op, busy := l.core.Next()
		if busy {
			l.carryOut(op)
		}
		if busy || more {
			select {
			case now := <-beat.C:
				l.beat(now)
			default:
			}
			continue
		}
		select {
		case <-ctx.Done():
		case <-l.wake:
		case now := <-beat.C:
			l.beat(now)
		}
	}
	return nil
}

// takeNews runs what was posted, up to maxNews, and says whether more waits.
func (l *loop) takeNews() (more bool) {
	l.mu.Lock()
	news := l.news
	if len(news) > maxNews {
		news, l.news, more = news[:maxNews:maxNews], news[maxNews:], true
	} else {
		l.news = nil
	}
	l.mu.Unlock()
	for _, f := range news {
		f()
	}
	return more
}

func (l *loop) beat(now time.Time) {
	if now.Sub(l.lastRetry) >= retryEvery {
		l.lastRetry = now
		l.core.Retry()
	}
	if now.Sub(l.lastAudit) >= l.audit {
		l.lastAudit = now
		l.core.Audit()
	}
	if req, ok := l.core.LeaseRequest(now); ok {
		l.out.ask(req)
	}
}

func (l *loop) carryOut(op agent.Op) {
	res := l.execute(op)
	l.core.Done(op, res)
	l.say(l.core.Stats().LastErr)
	switch op.Verb {
	case agent.ReadAll:
		l.forward = res.Err == nil
	case agent.Verify:
		l.passOn()
	}
}

func (l *loop) execute(op agent.Op) agent.Result {
	switch op.Verb {
	case agent.ReadAll:
		t, err := l.kernel.Read()
		return agent.Result{Err: err, Tables: t}
	case agent.Delete:
		return agent.Result{Err: l.kernel.Delete(op.Key)}
	case agent.Put:
		return agent.Result{Err: l.kernel.Put(op.Key, op.Value)}
	case agent.Barrier:
		begin := time.Now()
		err := l.kernel.Barrier()
		l.out.barrier(time.Since(begin))
		return agent.Result{Err: err}
	case agent.Verify:
		return l.verify(op)
	}
	return agent.Result{Err: fmt.Errorf("carry out %s: unknown operation", op.Verb)}
}

func (l *loop) verify(op agent.Op) agent.Result {
	found := make(table.Tables, len(op.Keys))
	for _, k := range op.Keys {
		v, ok, err := l.kernel.Get(k)
		if err != nil {
			return agent.Result{Err: err}
		}
		if ok {
			found[k] = v
		}
	}
	return agent.Result{Tables: found, Unguarded: l.kernel.Guarded()}
}

// passOn hands over what the core has confirmed since the last time.
func (l *loop) passOn() {
	unanswered := l.core.Unanswered()
	var fresh []*record.Confirmation
	newest := l.confirmed
	for _, f := range unanswered {
		if f.Version().Compare(l.confirmed) <= 0 {
			continue
		}
		fresh = append(fresh, f)
		if f.Version().Compare(newest) > 0 {
			newest = f.Version()
		}
	}
	l.confirmed = newest
	if len(fresh) > 0 {
		l.out.confirm(fresh, unanswered)
	}
}

// hearLease takes an answer; the caller is the loop's goroutine.
func (l *loop) hearLease(r *record.Lease) {
	if l.refusal = l.core.HearLease(r); l.refusal != nil {
		l.say(l.refusal)
		l.granted = false
		return
	}
	boot, _, held := l.core.Lease()
	if held && !l.granted {
		l.log.Info("lease granted", "boot", boot, "rack", r.Rack, "grants", len(r.Grants))
		l.core.Retry() // what waited for a lease
	}
	l.granted = held
}

// say logs an error, if there is one; the same one at most once in sayEvery.
func (l *loop) say(err error) {
	if err == nil {
		return
	}
	now, text := time.Now(), err.Error()
	if text == l.said && now.Sub(l.saidAt) < sayEvery {
		return
	}
	l.said, l.saidAt = text, now
	l.log.Error("reconcile failed, tried again", "err", err)
}

// view is what others may know of the loop, as of one instant.
type view struct {
	stats              agent.Stats
	wanted, programmed int
	unanswered         int
	boot               record.Boot
	asked              time.Time
	held               bool
	refusal            error
	nodes              map[record.NodeID]string
	tenants            map[record.TenantID]string
}

// look returns a view. names says whether nodes' and tenants' are wanted.
func (l *loop) look(ctx context.Context, names bool) (view, error) {
	var v view
	err := l.call(ctx, func() {
		v.stats = l.core.Stats()
		v.wanted, v.programmed = l.core.Counts()
		v.unanswered = len(l.core.Unanswered())
		v.boot, v.asked, v.held = l.core.Lease()
		v.refusal = l.refusal
		if !names {
			return
		}
		v.nodes, v.tenants = make(map[record.NodeID]string), make(map[record.TenantID]string)
		for _, g := range l.core.Grants() {
			v.nodes[g.Node], v.tenants[g.Tenant] = g.Name, g.TenantName
		}
	})
	if err != nil {
		return view{}, err // f may still run
	}
	return v, nil
}
