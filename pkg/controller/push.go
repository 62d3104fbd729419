package controller

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/api/dpudv1/dpudv1connect"
	"dpud/pkg/control/management"
	"dpud/pkg/record"
	"dpud/pkg/wire"
)

// Bounds of direct messages.
const (
	maxBatchRecords = 500
	maxBatchBytes   = 1 << 20
	pushTimeout     = 5 * time.Second
	minBackoff      = 50 * time.Millisecond
	maxBackoff      = 10 * time.Second
)

// link pushes to one DPU what it has not acknowledged. A DPU that does not answer costs a goroutine and a
// try every 5 to 10 s.
type link struct {
	dpu  record.DPU
	f    *fanout
	rack record.Rack // guarded by fanout.mu

	wake chan struct{} // something to push
	kick chan struct{} // try again now

	mu       sync.Mutex
	address  string
	client   dpudv1connect.DPUServiceClient // nil without an address
	idle     func()                         // closes idle connections of client
	instance string                         // of the registered run
	pending  map[record.Key]record.Record
	acked    map[record.Key]record.Version // by instance
	answered bool
	err      error // of the last message
}

func newLink(dpu record.DPU, f *fanout) *link {
	return &link{
		dpu: dpu, f: f, wake: make(chan struct{}, 1), kick: make(chan struct{}, 1), idle: func() {},
		pending: make(map[record.Key]record.Record), acked: make(map[record.Key]record.Version),
	}
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// offer queues a record unless the DPU has it or a newer one.
func (l *link) offer(r record.Record) {
	k, v := r.Key(), r.Version()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.acked[k].Compare(v) >= 0 {
		return
	}
	if old := l.pending[k]; old != nil && old.Version().Compare(v) >= 0 {
		return
	}
	l.pending[k] = r
	signal(l.wake)
}

// register takes the DPU's address and run. A new run has forgotten what the one before acknowledged.
func (l *link) register(r *management.Registration) {
	l.mu.Lock()
	if r.Instance != l.instance {
		l.instance = r.Instance
		clear(l.acked)
	}
	if r.Address != l.address {
		l.idle()
		l.address, l.err, l.answered = r.Address, nil, false
		l.client, l.idle = newClient(r.Address, l.f.dial)
	}
	l.mu.Unlock()
	signal(l.kick)
	signal(l.wake)
}

// newClient returns a client for the API at http://host:port or unix:///path; nil for an empty address.
func newClient(address string, dial dialFunc) (client dpudv1connect.DPUServiceClient, idle func()) {
	if address == "" {
		return nil, func() {}
	}
	t := &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 2, DisableCompression: true}
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		address = "http://dpud"
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, "unix", path) }
	}
	plain := connect.WithAcceptCompression("gzip", nil, nil)
	return dpudv1connect.NewDPUServiceClient(&http.Client{Transport: t}, address, plain), t.CloseIdleConnections
}

// run pushes until ctx ends.
func (l *link) run(ctx context.Context) {
	backoff := minBackoff
	for {
		select {
		case <-ctx.Done():
			l.mu.Lock()
			l.idle()
			l.mu.Unlock()
			return
		case <-l.wake:
		}
		for {
			more, err := l.push(ctx)
			if err == nil {
				backoff = minBackoff
				if more {
					continue
				}
				break
			}
			select {
			case <-ctx.Done():
			case <-l.kick:
				backoff = minBackoff
			case <-time.After(backoff/2 + rand.N(backoff/2)):
				backoff = min(2*backoff, maxBackoff)
			}
			if ctx.Err() != nil {
				break
			}
		}
	}
}

// push sends one batch and takes its answer. It says whether there is more to send.
func (l *link) push(ctx context.Context) (more bool, err error) {
	l.mu.Lock()
	client, instance := l.client, l.instance
	batch := l.batch()
	l.mu.Unlock()
	if client == nil || len(batch) == 0 {
		return false, nil
	}
	res, err := l.send(ctx, client, batch)
	if err == nil && res.GetInstance() != instance {
		err = errors.New("another run of dpud answered, which has not registered yet")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if err != nil {
		if l.err == nil {
			l.f.log.Warn("push to DPU", "dpu", l.dpu, "address", l.address, "err", err)
		}
		l.err, l.answered = err, false
		l.f.metrics.pushErrors.WithLabelValues(string(l.dpu)).Inc()
		return false, err
	}
	if l.err != nil {
		l.f.log.Info("DPU answers again", "dpu", l.dpu)
	}
	l.err, l.answered = nil, true
	if l.instance == instance {
		l.acknowledge(batch)
	}
	return len(l.pending) > 0, nil
}

// batch returns pending records, in the order in which a receiver applies them; the lock is held.
func (l *link) batch() []record.Record {
	all := make([]record.Record, 0, len(l.pending))
	for _, r := range l.pending {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b record.Record) int { return record.CompareKeys(a.Key(), b.Key()) })
	return all[:min(len(all), maxBatchRecords)]
}

// acknowledge notes that the DPU holds a batch or newer; the lock is held.
func (l *link) acknowledge(batch []record.Record) {
	for _, r := range batch {
		k, v := r.Key(), r.Version()
		if l.acked[k].Compare(v) < 0 {
			l.acked[k] = v
		}
		if p := l.pending[k]; p != nil && p.Version().Compare(v) <= 0 {
			delete(l.pending, k)
		}
	}
}

// send delivers a batch in as many messages as its size needs.
func (l *link) send(ctx context.Context, client dpudv1connect.DPUServiceClient, batch []record.Record) (*dpudv1.PushResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	for {
		req, size := new(dpudv1.PushRequest), 0
		for len(batch) > 0 {
			e, err := wire.Seal(l.f.seal.site, l.f.seal.epoch, batch[0])
			if err != nil {
				return nil, err
			}
			if size += proto.Size(e); size > maxBatchBytes && len(req.GetRecords()) > 0 {
				break
			}
			req.Records = append(req.Records, e)
			batch = batch[1:]
		}
		res, err := client.Push(ctx, connect.NewRequest(req))
		if err != nil {
			return nil, fmt.Errorf("push %d records: %w", len(req.GetRecords()), err)
		}
		for _, why := range res.Msg.GetRefused() {
			// Repeating it would not help; the DPU says the same in its own log.
			l.f.log.Error("DPU refused a record", "dpu", l.dpu, "why", why)
			l.f.metrics.pushErrors.WithLabelValues(string(l.dpu)).Inc()
		}
		if len(batch) == 0 {
			return res.Msg, nil
		}
	}
}

// linkState is what is known of the way to a DPU.
type linkState struct {
	dpu       record.DPU
	address   string
	reachable bool
	err       error
	pending   int
	asked     time.Time // when it last asked for a lease; zero: never
	trouble   string    // what is wrong with it beyond that
}

func (l *link) state() linkState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return linkState{dpu: l.dpu, address: l.address, reachable: l.answered, err: l.err, pending: len(l.pending)}
}

// api returns a client for the DPU's API, or nil.
func (l *link) api() (client dpudv1connect.DPUServiceClient, address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.client, l.address
}
