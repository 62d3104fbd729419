package dpud

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/api/dpudv1/dpudv1connect"
	"dpud/pkg/control/agent"
	"dpud/pkg/record"
	"dpud/pkg/wire"
)

// plane talks to the controllers: it asks one for leases and tells one the confirmations. After a failure it
// turns to the next.
type plane struct {
	controllers []controller
	next        atomic.Int64 // index of the controller to try first
	replica     *records
	log         *slog.Logger
	answer      func(*dpudv1.Envelope) error // a lease request was answered; an error means: with nothing for us
	answered    func([]*record.Confirmation) // confirmations are durable
	giveUp      func()                       // the request under way; owned by the caller of ask
	quiet       atomic.Bool                  // the newest lease request is not answered
	said        atomic.Pointer[string]       // last failure that was logged
	mu          sync.Mutex                   // of unanswered
	unanswered  []*record.Confirmation       // to be sent
	wake        chan struct{}                // unanswered changed
}

type controller struct {
	url    string
	client dpudv1connect.PlaneServiceClient
}

const (
	// confirmTimeout bounds one call that tells confirmations; the controller answers once they are durable.
	confirmTimeout = 3 * time.Second
	// nextAfter is how long one controller alone is asked for a lease.
	nextAfter = 250 * time.Millisecond
	// Backoff between failed calls.
	backoffMin = 50 * time.Millisecond
	backoffMax = 5 * time.Second
	// maxAnswer bounds an answer: a lease with 10,000 grants takes about 2 MB.
	maxAnswer = 64 << 20
)

func newPlane(urls []string, replica *records, log *slog.Logger) *plane {
	p := &plane{replica: replica, log: log, wake: make(chan struct{}, 1)}
	p.giveUp = func() {}
	plain := connect.WithAcceptCompression("gzip", nil, nil) // costs more than it saves here
	for _, u := range urls {
		client, base := dial(u)
		p.controllers = append(p.controllers, controller{url: u, client: dpudv1connect.NewPlaneServiceClient(client, base, connect.WithReadMaxBytes(maxAnswer), plain)})
	}
	return p
}

// dial returns an HTTP client and the base URL for a controller's URL, http://host:port or unix:///path.
func dial(url string) (*http.Client, string) {
	transport := &http.Transport{
		DialContext:        (&net.Dialer{Timeout: agent.AskEvery}).DialContext,
		IdleConnTimeout:    time.Minute,
		DisableCompression: true,
	}
	if file, ok := strings.CutPrefix(url, "unix://"); ok {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", file)
		}
		url = "http://localhost"
	}
	return &http.Client{Transport: transport}, strings.TrimSuffix(url, "/")
}

// each calls one controller after the other until one succeeds. It remembers which.
func (p *plane) each(ctx context.Context, call func(controller) error) error {
	if len(p.controllers) == 0 {
		return errNoControllers
	}
	var errs []error
	for range p.controllers {
		first := p.next.Load()
		c := p.controllers[first%int64(len(p.controllers))]
		err := call(c)
		if err == nil {
			p.succeeded(c)
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", c.url, err))
		p.next.CompareAndSwap(first, first+1)
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

var (
	errNoControllers = errors.New("no controllers are configured")
	errUnanswered    = errors.New("no controller has answered yet")
)

func (p *plane) succeeded(c controller) {
	if text := p.said.Swap(nil); text != nil {
		p.log.Info("controller answers", "controller", c.url)
	}
}

// failed logs that no controller answers, once until one does.
func (p *plane) failed(what string, err error) {
	if len(p.controllers) == 0 || errors.Is(err, context.Canceled) {
		return
	}
	text := what + ": " + err.Error()
	if old := p.said.Swap(&text); old == nil {
		p.log.Warn("no controller answers, tried again", "request", what, "err", err)
	}
}

// ask sends a lease request; an earlier one that is still under way is given up, as its answer would be dropped.
// elsewhere is called, once, when the direct way may not do: it failed, took AskEvery, or left the earlier request
// unanswered.
func (p *plane) ask(ctx context.Context, r *record.LeaseRequest, epoch record.Epoch, elsewhere func()) {
	p.giveUp()
	ctx, p.giveUp = context.WithTimeout(ctx, agent.AskAtMost)
	elsewhere = sync.OnceFunc(elsewhere)
	if p.quiet.Swap(true) {
		p.failed("lease", errUnanswered)
		elsewhere()
	}
	go func() {
		late := time.AfterFunc(agent.AskEvery, elsewhere)
		defer late.Stop()
		e, err := wire.Seal(p.replica.Site(), epoch, r)
		if err == nil {
			err = p.first(ctx, func(ctx context.Context, c controller) error {
				a, err := c.client.Lease(ctx, connect.NewRequest(&dpudv1.LeaseCall{Request: e}))
				if err != nil {
					return err
				}
				return p.answer(a.Msg.GetLease())
			})
		}
		switch {
		case err == nil:
			p.quiet.Store(false)
		case !errors.Is(ctx.Err(), context.Canceled):
			p.failed("lease", err)
			elsewhere()
		}
	}()
}

// first calls the controllers side by side, each nextAfter the one before or as soon as that failed, and returns
// when one succeeds, with nil, or when all have failed. A slow one thus has time until ctx ends, whoever else is
// asked.
func (p *plane) first(ctx context.Context, call func(context.Context, controller) error) error {
	if len(p.controllers) == 0 {
		return errNoControllers
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		index int64
		err   error
	}
	results := make(chan result, len(p.controllers))
	index := p.next.Load()
	begun := 0
	begin := func() {
		if begun == len(p.controllers) {
			return
		}
		i := (index + int64(begun)) % int64(len(p.controllers))
		begun++
		go func() { results <- result{i, call(ctx, p.controllers[i])} }()
	}
	begin()
	next := time.NewTicker(nextAfter)
	defer next.Stop()
	var errs []error
	for len(errs) < len(p.controllers) {
		select {
		case <-next.C:
			begin()
		case r := <-results:
			if r.err == nil {
				p.next.CompareAndSwap(index, r.index)
				p.succeeded(p.controllers[r.index])
				return nil
			}
			errs = append(errs, fmt.Errorf("%s: %w", p.controllers[r.index].url, r.err))
			begin()
		}
	}
	return errors.Join(errs...)
}

// confirm replaces what is to be told.
func (p *plane) confirm(unanswered []*record.Confirmation) {
	p.mu.Lock()
	p.unanswered = unanswered
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run tells confirmations until ctx ends, each again until it is answered.
func (p *plane) run(ctx context.Context) error {
	if len(p.controllers) == 0 {
		return nil // gossip carries them
	}
	wait := backoffMin
	for {
		p.mu.Lock()
		batch := p.unanswered
		p.mu.Unlock()
		var retry <-chan time.Time
		if len(batch) > 0 {
			if err := p.tell(ctx, batch); err != nil {
				p.failed("confirm", err)
				retry = time.After(wait)
				wait = min(2*wait, backoffMax)
			} else {
				wait = backoffMin
				p.settle(batch)
				continue
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
			// News goes out at once, even while an older one is waiting to be told again.
		case <-retry:
		}
	}
}

func (p *plane) tell(ctx context.Context, batch []*record.Confirmation) error {
	req := &dpudv1.ConfirmRequest{Confirmations: make([]*dpudv1.Envelope, len(batch))}
	for i, f := range batch {
		e, err := wire.Seal(p.replica.Site(), f.Epoch, f)
		if err != nil {
			return err
		}
		req.Confirmations[i] = e
	}
	return p.each(ctx, func(c controller) error {
		ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
		defer cancel()
		_, err := c.client.Confirm(ctx, connect.NewRequest(req))
		return err
	})
}

// settle takes what was told off the list and reports it.
func (p *plane) settle(told []*record.Confirmation) {
	done := make(map[*record.Confirmation]bool, len(told))
	for _, f := range told {
		done[f] = true
	}
	p.mu.Lock()
	var rest []*record.Confirmation
	for _, f := range p.unanswered {
		if !done[f] {
			rest = append(rest, f)
		}
	}
	p.unanswered = rest
	p.mu.Unlock()
	p.answered(told)
}
