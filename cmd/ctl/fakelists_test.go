package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"dpud/pkg/api/dpudv1"
)

func (f *fakeController) GetSite(context.Context, *connect.Request[dpudv1.GetSiteRequest]) (*connect.Response[dpudv1.GetSiteResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return connect.NewResponse(&dpudv1.GetSiteResponse{SiteId: "5f0c", Epoch: 1, SiteFile: f.site}), nil
}

func (f *fakeController) ListNodes(context.Context, *connect.Request[dpudv1.ListNodesRequest]) (*connect.Response[dpudv1.ListNodesResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return connect.NewResponse(&dpudv1.ListNodesResponse{Nodes: f.cloneNodes()}), nil
}

func (f *fakeController) cloneNodes() []*dpudv1.NodeStatus {
	var nodes []*dpudv1.NodeStatus
	for _, n := range f.nodes {
		nodes = append(nodes, proto.CloneOf(n))
	}
	return nodes
}

func (f *fakeController) ListTenants(context.Context, *connect.Request[dpudv1.ListTenantsRequest]) (*connect.Response[dpudv1.ListTenantsResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t1, t2 := &dpudv1.TenantStatus{Id: 1, Name: "t1", Vni: 1001}, &dpudv1.TenantStatus{Id: 2, Name: "t2", Vni: 1002}
	for _, n := range f.nodes {
		switch n.GetTenant() {
		case "t1":
			t1.Nodes = append(t1.Nodes, n.GetName())
		case "t2":
			t2.Nodes = append(t2.Nodes, n.GetName())
		}
	}
	return connect.NewResponse(&dpudv1.ListTenantsResponse{Tenants: []*dpudv1.TenantStatus{t1, t2}}), nil
}

func fakeDPUs() []*dpudv1.DPUStatus {
	return []*dpudv1.DPUStatus{
		{Name: "d1", Rack: "r1", Boot: 1, HardwareId: "hw-1", KernelBoot: "6a7c", Address: "unix:///run/dpud/d1.sock", LeaseAsked: ago(2 * time.Second), Reachable: true},
		{Name: "d2", Rack: "r1", Boot: 4, HardwareId: "hw-2", KernelBoot: "90b1", Address: "http://10.0.0.9:7701", LeaseAsked: ago(10 * time.Minute), Error: "connection refused", Pending: 3},
		{Name: "d3", Rack: "r1"},
	}
}

func (f *fakeController) ListDPUs(context.Context, *connect.Request[dpudv1.ListDPUsRequest]) (*connect.Response[dpudv1.ListDPUsResponse], error) {
	return connect.NewResponse(&dpudv1.ListDPUsResponse{Dpus: fakeDPUs()}), nil
}

func (f *fakeController) ListEntries(context.Context, *connect.Request[dpudv1.ListEntriesRequest]) (*connect.Response[dpudv1.ListEntriesResponse], error) {
	return connect.NewResponse(&dpudv1.ListEntriesResponse{Entries: []*dpudv1.EntryStatus{
		{Tenant: "t1", Node: "n1", Entry: &dpudv1.Entry{Tenant: 1, Node: 1, Epoch: 1, Generation: 2, Revision: 2, Deleted: true}},
		{Tenant: "t2", Node: "n2", Entry: &dpudv1.Entry{Tenant: 2, Node: 2, Epoch: 1, Generation: 2, Revision: 1}},
	}}), nil
}

func (f *fakeController) Status(context.Context, *connect.Request[dpudv1.StatusRequest]) (*connect.Response[dpudv1.StatusResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &dpudv1.StatusResponse{Site: "example", SiteId: "5f0c", Epoch: 1, Version: "v1.2.3", NodesByPhase: map[string]uint32{}, Dpus: fakeDPUs(), GossipMembers: 3}
	for _, n := range f.cloneNodes() {
		r.NodesByPhase[strings.ToLower(strings.TrimPrefix(n.GetPhase().String(), "PHASE_"))]++
		if len(n.GetWaitingFor()) > 0 {
			r.Waiting = append(r.Waiting, n)
		}
	}
	return connect.NewResponse(r), nil
}

func (f *fakeController) DumpMaps(_ context.Context, r *connect.Request[dpudv1.ControllerDumpMapsRequest]) (*connect.Response[dpudv1.DumpMapsResponse], error) {
	if r.Msg.GetDpu() != "d1" {
		return nil, connect.NewError(connect.CodeUnavailable, fmt.Errorf("DPU %s does not answer: connection refused", r.Msg.GetDpu()))
	}
	out := &dpudv1.DumpMapsResponse{}
	for _, e := range []*dpudv1.MapEntry{
		{Map: "node_tenant", Key: "2", Node: 2, Tenant: 2, NodeName: "n2", TenantName: "t2"},
		{Map: "node_state", Key: "2", Node: 2, Epoch: 1, Generation: 2, Revision: 3, NodeName: "n2"},
		{Map: "endpoint4", Key: "10.0.0.2", Node: 2, Ifindex: 7, Mac: "02:00:00:00:00:02", NodeName: "n2", Port: "n2"},
		{Map: "services4", Key: "10.255.0.53/32", Mac: "02:00:00:00:ff:01"},
	} {
		if only := r.Msg.GetRequest().GetMaps(); len(only) == 0 || slices.Contains(only, e.GetMap()) {
			out.Entries = append(out.Entries, e)
		}
	}
	return connect.NewResponse(out), nil
}

func (f *fakeController) Counters(_ context.Context, r *connect.Request[dpudv1.ControllerCountersRequest]) (*connect.Response[dpudv1.CountersResponse], error) {
	if r.Msg.GetDpu() != "d1" {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("DPU %q is not in the site; see `ctl get dpus`", r.Msg.GetDpu()))
	}
	return connect.NewResponse(&dpudv1.CountersResponse{Counters: []*dpudv1.Counter{
		{Hook: "ingress", Verdict: "pass", Reason: "passed", Packets: 1200, Bytes: 96000},
		{Hook: "egress", Verdict: "pass", Reason: "passed", Packets: 1190, Bytes: 95200},
		{Hook: "ingress", Verdict: "drop", Reason: "tenant_mismatch", Packets: 10, Bytes: 800},
		{Hook: "ingress", Verdict: "drop", Reason: "hairpin"},
	}}), nil
}

func (f *fakeController) Version(context.Context, *connect.Request[dpudv1.VersionRequest]) (*connect.Response[dpudv1.VersionResponse], error) {
	return connect.NewResponse(&dpudv1.VersionResponse{Version: "v1.2.2"}), nil
}
