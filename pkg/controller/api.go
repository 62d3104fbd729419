package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/api/dpudv1/dpudv1connect"
	"dpud/pkg/control/management"
	"dpud/pkg/record"
	"dpud/pkg/site"
	"dpud/pkg/wire"
)

// controllerAPI implements ControllerService, which operators call.
type controllerAPI struct{ *Controller }

// Apply implements ControllerService.
func (a controllerAPI) Apply(ctx context.Context, r *connect.Request[dpudv1.ApplyRequest]) (*connect.Response[dpudv1.ApplyResponse], error) {
	want, err := site.Parse(r.Msg.GetSiteFile())
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	var changes []site.Change
	err = a.plane.command(ctx, func(core *management.Core) (txn management.Txn, err error) {
		if have := core.Meta().Name; have != "" && have != want.Name && !r.Msg.GetRename() {
			return txn, fmt.Errorf("the file is of site %q, this is site %q: is it the right controller? `--rename` gives the site its new name: %w",
				want.Name, have, management.ErrPrecondition)
		}
		txn, changes, err = core.ApplySite(want)
		if r.Msg.GetDryRun() {
			txn = management.Txn{}
		}
		return txn, err
	})
	if err != nil {
		return nil, apiError(err)
	}
	res := new(dpudv1.ApplyResponse)
	for _, c := range changes {
		res.Changes = append(res.Changes, &dpudv1.Change{Verb: c.Verb, Kind: c.Kind, Name: c.Name, Field: c.Field, Old: c.Old, New: c.New})
	}
	if len(changes) > 0 && !r.Msg.GetDryRun() {
		a.log.Info("site applied", "changes", len(changes))
	}
	return connect.NewResponse(res), nil
}

// GetSite implements ControllerService.
func (a controllerAPI) GetSite(context.Context, *connect.Request[dpudv1.GetSiteRequest]) (*connect.Response[dpudv1.GetSiteResponse], error) {
	var s *site.Site
	a.plane.read(func(core *management.Core) { s = core.Site() })
	b, err := site.Format(s)
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(&dpudv1.GetSiteResponse{SiteId: string(a.site), Epoch: uint64(a.epoch), SiteFile: b}), nil
}

// ListNodes implements ControllerService.
func (a controllerAPI) ListNodes(context.Context, *connect.Request[dpudv1.ListNodesRequest]) (*connect.Response[dpudv1.ListNodesResponse], error) {
	return connect.NewResponse(&dpudv1.ListNodesResponse{Nodes: a.nodeStatuses(nil)}), nil
}

// ListTenants implements ControllerService.
func (a controllerAPI) ListTenants(context.Context, *connect.Request[dpudv1.ListTenantsRequest]) (*connect.Response[dpudv1.ListTenantsResponse], error) {
	return connect.NewResponse(&dpudv1.ListTenantsResponse{Tenants: a.tenantStatuses()}), nil
}

// ListDPUs implements ControllerService.
func (a controllerAPI) ListDPUs(context.Context, *connect.Request[dpudv1.ListDPUsRequest]) (*connect.Response[dpudv1.ListDPUsResponse], error) {
	return connect.NewResponse(&dpudv1.ListDPUsResponse{Dpus: a.dpuStatuses()}), nil
}

// ListEntries implements ControllerService.
func (a controllerAPI) ListEntries(context.Context, *connect.Request[dpudv1.ListEntriesRequest]) (*connect.Response[dpudv1.ListEntriesResponse], error) {
	tenants, nodes := make(map[record.TenantID]string), make(map[record.NodeID]string)
	a.plane.read(func(core *management.Core) {
		for _, t := range core.Tenants() {
			tenants[t.ID] = t.Name
		}
		for _, n := range core.Nodes() {
			nodes[n.ID] = n.Name
		}
	})
	res := new(dpudv1.ListEntriesResponse)
	for _, e := range a.fanout.allEntries() {
		res.Entries = append(res.Entries, &dpudv1.EntryStatus{Tenant: tenants[e.Tenant], Node: nodes[e.Node], Entry: wire.EntryToProto(e)})
	}
	return connect.NewResponse(res), nil
}

// Assign implements ControllerService.
func (a controllerAPI) Assign(ctx context.Context, r *connect.Request[dpudv1.AssignRequest]) (*connect.Response[dpudv1.AssignResponse], error) {
	err := a.plane.command(ctx, func(core *management.Core) (management.Txn, error) {
		return core.Assign(r.Msg.GetNode(), r.Msg.GetTenant(), time.Now())
	})
	if err != nil {
		return nil, apiError(err)
	}
	status, err := a.nodeStatus(r.Msg.GetNode())
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(&dpudv1.AssignResponse{Node: status}), nil
}

// Reclaim implements ControllerService.
func (a controllerAPI) Reclaim(ctx context.Context, r *connect.Request[dpudv1.ReclaimRequest]) (*connect.Response[dpudv1.ReclaimResponse], error) {
	err := a.plane.command(ctx, func(core *management.Core) (management.Txn, error) {
		return core.Reclaim(r.Msg.GetNode(), time.Now())
	})
	if err != nil {
		return nil, apiError(err)
	}
	status, err := a.nodeStatus(r.Msg.GetNode())
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(&dpudv1.ReclaimResponse{Node: status}), nil
}

// WatchNode implements ControllerService.
func (a controllerAPI) WatchNode(ctx context.Context, r *connect.Request[dpudv1.WatchNodeRequest], stream *connect.ServerStream[dpudv1.WatchNodeResponse]) error {
	first, err := a.nodeStatus(r.Msg.GetNode())
	if err != nil {
		return apiError(err)
	}
	wake, stop := a.watchers.watch(record.NodeID(first.GetId()))
	defer stop()
	var last *dpudv1.NodeStatus
	for {
		status, err := a.nodeStatus(r.Msg.GetNode())
		if err != nil {
			return apiError(err)
		}
		if last == nil || !proto.Equal(status, last) {
			if err := stream.Send(&dpudv1.WatchNodeResponse{Node: status}); err != nil {
				return err
			}
			last = status
		}
		select {
		case <-wake:
		case <-ctx.Done():
			if a.ctx.Err() != nil {
				return connect.NewError(connect.CodeUnavailable, errors.New("the controller is stopping"))
			}
			return apiError(ctx.Err()) // the caller's time may be over here before it is there
		}
	}
}

// Status implements ControllerService.
func (a controllerAPI) Status(context.Context, *connect.Request[dpudv1.StatusRequest]) (*connect.Response[dpudv1.StatusResponse], error) {
	res := &dpudv1.StatusResponse{
		SiteId: string(a.site), Epoch: uint64(a.epoch), Version: a.cfg.Version,
		Waiting: a.nodeStatuses(waiting), Dpus: a.dpuStatuses(), NodesByPhase: make(map[string]uint32),
	}
	a.plane.read(func(core *management.Core) { res.Site = core.Meta().Name })
	phases, _ := a.plane.counts()
	for p, n := range phases {
		res.NodesByPhase[p.String()] = uint32(n)
	}
	if a.gossip != nil {
		res.GossipMembers = uint32(len(a.gossip.Members()))
	}
	return connect.NewResponse(res), nil
}

// proxyTimeout bounds a question that is passed on to a DPU.
const proxyTimeout = 10 * time.Second

// DumpMaps implements ControllerService.
func (a controllerAPI) DumpMaps(ctx context.Context, r *connect.Request[dpudv1.ControllerDumpMapsRequest]) (*connect.Response[dpudv1.DumpMapsResponse], error) {
	req := r.Msg.GetRequest()
	if req == nil {
		req = new(dpudv1.DumpMapsRequest)
	}
	return ask(ctx, a.Controller, r.Msg.GetDpu(), dpudv1connect.DPUServiceClient.DumpMaps, req)
}

// Counters implements ControllerService.
func (a controllerAPI) Counters(ctx context.Context, r *connect.Request[dpudv1.ControllerCountersRequest]) (*connect.Response[dpudv1.CountersResponse], error) {
	return ask(ctx, a.Controller, r.Msg.GetDpu(), dpudv1connect.DPUServiceClient.Counters, new(dpudv1.CountersRequest))
}

// ask passes a question on to a DPU.
func ask[Req, Res any](
	ctx context.Context, c *Controller, name string,
	call func(dpudv1connect.DPUServiceClient, context.Context, *connect.Request[Req]) (*connect.Response[Res], error), req *Req,
) (*connect.Response[Res], error) {
	dpu := record.DPU(name)
	var known bool
	c.plane.read(func(core *management.Core) { known = core.RackOf(dpu) != "" })
	if !known {
		return nil, apiError(fmt.Errorf("DPU %q is not in the site; see `ctl get dpus`: %w", name, management.ErrNotFound))
	}
	client, address := c.fanout.api(dpu)
	if client == nil {
		return nil, connect.NewError(connect.CodeUnavailable, fmt.Errorf(
			"ask DPU %s: it has not registered an address here; start dpud on it, or run this command on the DPU itself", name))
	}
	ctx, cancel := context.WithTimeout(ctx, proxyTimeout)
	defer cancel()
	res, err := call(client, ctx, connect.NewRequest(req))
	var answered *connect.Error
	if errors.As(err, &answered) && connect.IsWireError(err) {
		return nil, connect.NewError(answered.Code(), fmt.Errorf("DPU %s: %s", name, answered.Message()))
	}
	if err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, fmt.Errorf(
			"ask DPU %s at %s: no answer; check that dpud runs there, or run this command on the DPU itself: %w", name, address, err))
	}
	return connect.NewResponse(res.Msg), nil
}

// Version implements ControllerService.
func (a controllerAPI) Version(context.Context, *connect.Request[dpudv1.VersionRequest]) (*connect.Response[dpudv1.VersionResponse], error) {
	return connect.NewResponse(&dpudv1.VersionResponse{Version: a.cfg.Version}), nil
}
