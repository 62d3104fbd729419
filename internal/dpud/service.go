package dpud

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/api/dpudv1/dpudv1connect"
	"dpud/pkg/record"
	"dpud/pkg/table"
)

// service is dpud's API.
type service struct{ *daemon }

var _ dpudv1connect.DPUServiceHandler = service{}

// Push answers once the loop has heard the records. Before a site is joined it fails, so that it is repeated.
func (s service) Push(ctx context.Context, req *connect.Request[dpudv1.PushRequest]) (*connect.Response[dpudv1.PushResponse], error) {
	res := &dpudv1.PushResponse{Instance: s.instance}
	for _, e := range req.Msg.GetRecords() {
		if _, err := s.records.Take(e); errors.Is(err, errNoSite) {
			return nil, connect.NewError(connect.CodeUnavailable, err)
		} else if err != nil {
			res.Refused = append(res.Refused, err.Error())
		}
	}
	if err := s.loop.call(ctx, func() {}); err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	return connect.NewResponse(res), nil
}

// DumpMaps reads the kernel; names come from the grants that were heard.
func (s service) DumpMaps(ctx context.Context, req *connect.Request[dpudv1.DumpMapsRequest]) (*connect.Response[dpudv1.DumpMapsResponse], error) {
	wanted, err := mapsNamed(req.Msg.GetMaps())
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	entries, err := s.machine.tables.Read()
	if err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	v, err := s.loop.look(ctx, true)
	if err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	links := make(map[uint32]string)
	for _, p := range s.machine.ports() {
		links[uint32(p.Index)] = p.Name
	}
	var keys []table.Key
	for k := range entries {
		if wanted[k.Map] {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, table.CompareKeys)
	res := &dpudv1.DumpMapsResponse{}
	for _, k := range keys {
		m := mapEntry(k, entries[k])
		m.NodeName, m.TenantName, m.Port = v.nodes[record.NodeID(m.Node)], v.tenants[record.TenantID(m.Tenant)], links[m.Ifindex]
		res.Entries = append(res.Entries, m)
	}
	return connect.NewResponse(res), nil
}

// mapsNamed returns the maps of the names; all when there are none.
func mapsNamed(names []string) (map[table.Map]bool, error) {
	wanted := make(map[table.Map]bool)
	for m := table.NodeState; m <= table.Service6; m++ {
		wanted[m] = len(names) == 0 || slices.Contains(names, m.String())
	}
	for _, n := range names {
		if !slices.ContainsFunc([]table.Map{
			table.NodeState, table.Endpoint4, table.Endpoint6, table.EndpointMAC, table.NodeTenant, table.Service4, table.Service6,
		}, func(m table.Map) bool { return m.String() == n }) {
			return nil, fmt.Errorf("there is no map %q", n)
		}
	}
	return wanted, nil
}

func mapEntry(k table.Key, v table.Value) *dpudv1.MapEntry {
	m := &dpudv1.MapEntry{
		Map: k.Map.String(), Node: uint32(cmp.Or(k.Node, v.Node)), Tenant: uint32(v.Tenant), Epoch: uint64(v.Epoch),
		Generation: uint64(v.Generation), Revision: uint64(v.Revision), Ifindex: v.Ifindex, Vlan: uint32(v.VLAN),
	}
	if v.MAC != (record.MAC{}) {
		m.Mac = v.MAC.String()
	}
	switch k.Map {
	case table.Endpoint4, table.Endpoint6:
		m.Key = k.Addr.String()
	case table.EndpointMAC:
		m.Key = k.MAC.String()
	case table.Service4, table.Service6:
		m.Key = k.Prefix.String()
	default:
		m.Key = strconv.FormatUint(uint64(k.Node), 10)
	}
	return m
}

// Counters reads the kernel's counters; those at zero are left out.
func (s service) Counters(context.Context, *connect.Request[dpudv1.CountersRequest]) (*connect.Response[dpudv1.CountersResponse], error) {
	counters, err := s.machine.tables.Counters()
	if err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	res := &dpudv1.CountersResponse{}
	for _, c := range counters {
		if c.Packets == 0 {
			continue
		}
		res.Counters = append(res.Counters, &dpudv1.Counter{
			Hook: c.Hook, Verdict: verdict(c.Reason.Dropped()), Reason: c.Reason.Label(), Packets: c.Packets, Bytes: c.Bytes,
		})
	}
	return connect.NewResponse(res), nil
}

func verdict(dropped bool) string {
	if dropped {
		return "drop"
	}
	return "pass"
}

// DPUStatus says how this dpud does.
func (s service) DPUStatus(ctx context.Context, _ *connect.Request[dpudv1.DPUStatusRequest]) (*connect.Response[dpudv1.DPUStatusResponse], error) {
	v, err := s.loop.look(ctx, false)
	if err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	mode, err := s.machine.tables.Mode()
	if err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	res := &dpudv1.DPUStatusResponse{
		Name: s.cfg.Name, Version: s.version, Instance: s.instance, Boot: uint64(v.boot), SiteId: string(s.records.Site()), Mode: mode.String(),
		EntriesWanted: uint32(v.wanted), EntriesProgrammed: uint32(v.programmed), Unconfirmed: uint32(v.unanswered), LeaseAgeSeconds: -1,
	}
	if v.held {
		res.LeaseAgeSeconds = time.Since(v.asked).Seconds()
	}
	if err := cmp.Or(v.stats.LastErr, s.noLease(v)); err != nil {
		res.Error = err.Error()
	}
	for _, p := range s.machine.ports() {
		res.Ports = append(res.Ports, &dpudv1.PortStatus{
			Name: p.Name, Ifindex: uint32(p.Index), Role: p.Role.String(), Xdp: p.XDP, Egress: p.Egress, Guarded: p.Guarded, Problem: p.Problem,
		})
	}
	return connect.NewResponse(res), nil
}

// noLease says why no lease is held, or nil.
func (s service) noLease(v view) error {
	switch other := s.records.other(); {
	case v.held:
		return nil
	case v.refusal != nil:
		return v.refusal
	case other != "":
		return otherSite(s.records.Site(), other)
	}
	return errors.New("no lease is held: no controller has answered yet")
}

// ready says why dpud can't do its work, or nil.
func (s service) ready(ctx context.Context) error {
	v, err := s.loop.look(ctx, false)
	if err != nil {
		return err
	}
	errs := []error{s.noLease(v)}
	guarded := 0
	for _, p := range s.machine.ports() {
		switch {
		case p.Guarded:
			guarded++
		case p.Index != 0:
			errs = append(errs, fmt.Errorf("port %s is not guarded: %s", p.Name, p.Problem))
		}
	}
	if guarded == 0 {
		errs = append(errs, errors.New("no port is guarded"))
	}
	return errors.Join(errs...)
}
