package controller

import (
	"context"
	"errors"
	"fmt"
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

// lease answers a request: it registers the boot if needed, then reads the grants linearizably, and only then
// answers. A request that comes twice is answered anew. A refusal is a lease too; an error means no answer.
func (c *Controller) lease(ctx context.Context, req *record.LeaseRequest) (*record.Lease, error) {
	err := c.plane.do(ctx, func(core *management.Core) (management.Txn, error) { return core.Register(req) })
	if refusal(err) {
		c.log.Warn("lease refused", "dpu", req.DPU, "why", err)
		c.metrics.refused.WithLabelValues(c.dpuLabel(req.DPU)).Inc()
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
	return l, nil
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

// confirm makes confirmations durable. Whatever it completes is freed by the guard.
func (c *Controller) confirm(ctx context.Context, confirmations []*record.Confirmation) error {
	return c.plane.do(ctx, func(core *management.Core) (management.Txn, error) {
		return core.Confirm(confirmations, time.Now())
	})
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
		return nil, wireError(err)
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
			return nil, wireError(err)
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

// wireError is the answer to an envelope that can't be opened.
func wireError(err error) error {
	if errors.Is(err, wire.ErrSite) {
		return connect.NewError(connect.CodeFailedPrecondition, err)
	}
	return connect.NewError(connect.CodeInvalidArgument, err)
}
