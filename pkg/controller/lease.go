package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/control/management"
	"dpud/pkg/record"
	"dpud/pkg/wire"
)

// refusal says whether err is the core's answer rather than a failure.
func refusal(err error) bool {
	return errors.Is(err, management.ErrNotFound) || errors.Is(err, management.ErrPrecondition) || errors.Is(err, management.ErrInvalid)
}

// reason is a refusal's text without its kind, which stands behind each line.
func reason(err error) string {
	text := err.Error()
	for _, kind := range []error{management.ErrNotFound, management.ErrPrecondition, management.ErrInvalid} {
		text = strings.TrimSuffix(strings.ReplaceAll(text, ": "+kind.Error()+"\n", "\n"), ": "+kind.Error())
	}
	return text
}

// lease answers a request: it registers the boot if needed, then reads the grants linearizably, and only then
// answers. A request that comes twice is answered anew. A refusal is a lease too; an error means no answer.
func (c *Controller) lease(ctx context.Context, req *record.LeaseRequest) (*record.Lease, error) {
	err := c.plane.do(ctx, func(core *management.Core) (management.Txn, error) { return core.Register(req) })
	if refusal(err) {
		c.refuseLease(req, err)
		if !errors.Is(err, management.ErrNotFound) { // names that anybody can make up are not kept
			c.answered(req)
		}
		return management.Refuse(req, err.Error()), nil
	}
	if err != nil {
		return nil, fmt.Errorf("register DPU %s: %w", req.DPU, err)
	}
	revision, err := c.plane.readGrants(ctx)
	if err != nil {
		return nil, fmt.Errorf("answer lease of DPU %s: %w", req.DPU, err)
	}
	c.asked(req.DPU)
	var l *record.Lease
	c.plane.read(func(core *management.Core) { l = core.Lease(req, revision) })
	if l.Refused == "" {
		c.troubles.granted(req.DPU, req.Instance, time.Now())
	}
	c.answered(req)
	return l, nil
}

// refuseLease makes a refusal visible.
func (c *Controller) refuseLease(req *record.LeaseRequest, why error) {
	c.metrics.refused.WithLabelValues(c.dpuLabel(req.DPU)).Inc()
	if c.troubles.refuseLease(req.DPU, req.Instance, reason(why), time.Now()) {
		c.log.Warn("lease refused", "dpu", req.DPU, "why", why)
	}
}

// answer names a lease request that was answered.
type answer struct {
	instance string
	nonce    record.Nonce
}

func (c *Controller) answered(req *record.LeaseRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers[req.DPU] = answer{req.Instance, req.Nonce}
}

// wasAnswered says whether a request, or a later one of its run, has its answer.
func (c *Controller) wasAnswered(req *record.LeaseRequest) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, ok := c.answers[req.DPU]
	return ok && a.instance == req.Instance && a.nonce >= req.Nonce
}

// dpuLabel keeps names that are not in the site out of the metrics.
func (c *Controller) dpuLabel(d record.DPU) string {
	var known bool
	c.plane.read(func(core *management.Core) { known = core.RackOf(d) != "" })
	if !known {
		return "unknown"
	}
	return string(d)
}

// asked notes that a DPU is alive, and tries anew to reach it if that failed.
func (c *Controller) asked(d record.DPU) {
	c.mu.Lock()
	c.leases[d] = time.Now()
	c.mu.Unlock()
	if l := c.fanout.link(d); l != nil && l.state().err != nil {
		signal(l.kick)
	}
}

// confirm makes confirmations durable. Whatever it completes is freed by the guard. Those that are refused are an
// error if there are no others: else they are only counted, logged and shown, or their batch would be repeated for ever.
func (c *Controller) confirm(ctx context.Context, confirmations []*record.Confirmation) error {
	err := c.plane.do(ctx, func(core *management.Core) (management.Txn, error) {
		return core.Confirm(confirmations, time.Now())
	})
	if !refusal(err) {
		return err
	}
	bad := 1
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		bad = len(joined.Unwrap())
	}
	d := confirmations[0].DPU // all are of the DPU that sent them
	c.metrics.unconfirmed.WithLabelValues(c.dpuLabel(d)).Add(float64(bad))
	why, _, _ := strings.Cut(reason(err), "\n")
	if c.troubles.refuseConfirmation(d, why, time.Now()) {
		c.log.Warn("confirmations refused", "dpu", d, "refused", bad, "of", len(confirmations), "first", why)
	}
	if bad < len(confirmations) {
		return nil
	}
	return err
}

// planeAPI implements PlaneService, which dpud calls.
type planeAPI struct{ *Controller }

// Lease implements PlaneService.
func (a planeAPI) Lease(ctx context.Context, r *connect.Request[dpudv1.LeaseCall]) (*connect.Response[dpudv1.LeaseAnswer], error) {
	site := a.site
	if r.Msg.GetRequest().GetSiteId() == "" {
		site = "" // a dpud that belongs to none yet
	}
	rec, err := wire.Open(site, r.Msg.GetRequest())
	if err != nil {
		return nil, a.wireError(r.Msg.GetRequest(), err)
	}
	req, ok := rec.(*record.LeaseRequest)
	if !ok {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("ask for lease: got a %s", rec.Key().Kind))
	}
	lease, err := a.lease(ctx, req)
	if err != nil {
		return nil, apiError(err)
	}
	e, err := wire.Seal(a.site, a.epoch, lease)
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(&dpudv1.LeaseAnswer{Lease: e}), nil
}

// Confirm implements PlaneService.
func (a planeAPI) Confirm(ctx context.Context, r *connect.Request[dpudv1.ConfirmRequest]) (*connect.Response[dpudv1.ConfirmResponse], error) {
	var confirmations []*record.Confirmation
	for _, e := range r.Msg.GetConfirmations() {
		rec, err := wire.Open(a.site, e)
		if err != nil {
			return nil, a.wireError(e, err)
		}
		f, ok := rec.(*record.Confirmation)
		if !ok {
			return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("confirm: got a %s", rec.Key().Kind))
		}
		confirmations = append(confirmations, f)
	}
	if err := a.confirm(ctx, confirmations); err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(&dpudv1.ConfirmResponse{}), nil
}

// wireError is the answer to an envelope that can't be opened. One of another site is a lasting trouble.
func (a planeAPI) wireError(e *dpudv1.Envelope, err error) error {
	if errors.Is(err, wire.ErrSite) {
		why := fmt.Errorf("it keeps to site %s, and this is site %s", e.GetSiteId(), a.site)
		switch rec, _ := wire.Open("", e); r := rec.(type) {
		case *record.LeaseRequest:
			a.refuseLease(r, why)
		case *record.Confirmation:
			a.refuseLease(&record.LeaseRequest{DPU: r.DPU}, why)
		}
		return connect.NewError(connect.CodeFailedPrecondition, err)
	}
	return connect.NewError(connect.CodeInvalidArgument, err)
}
