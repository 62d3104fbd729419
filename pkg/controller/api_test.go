package controller

import (
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/site"
)

func TestApply(t *testing.T) {
	w := newWorld(t).start()
	file, err := os.ReadFile("../../docs/examples/site.yaml")
	if err != nil {
		t.Fatal(err)
	}
	apply := func(file string, dry bool) ([]*dpudv1.Change, error) {
		res, err := w.client.Apply(t.Context(), connect.NewRequest(&dpudv1.ApplyRequest{SiteFile: []byte(file), DryRun: dry}))
		if err != nil {
			return nil, err
		}
		return res.Msg.GetChanges(), nil
	}
	if changes, err := apply(string(file), true); err != nil || len(changes) == 0 {
		t.Fatalf("dry run: %v, %v", changes, err)
	}
	if n := w.statusOf().GetNodesByPhase()["free"]; n != 0 {
		t.Fatalf("a dry run made %d nodes", n)
	}
	if changes, err := apply(string(file), false); err != nil || len(changes) == 0 {
		t.Fatalf("apply: %v, %v", changes, err)
	}
	if changes, err := apply(string(file), false); err != nil || len(changes) != 0 {
		t.Fatalf("apply again: %v, %v", changes, err)
	}
	ids := map[string]uint32{"n1": w.node("n1").GetId(), "n4": w.node("n4").GetId()}
	_, err = apply(strings.ReplaceAll(string(file), "dpu: d2", "dpu: d3")+"\nextra: 1\n", false)
	wantCode(t, err, connect.CodeInvalidArgument)
	if !strings.Contains(err.Error(), "extra") || strings.Count(err.Error(), "d3") < 4 {
		t.Errorf("not every error is reported: %v", err)
	}

	w.assign("n1", "t1")
	without := strings.Replace(string(file), "{name: t1, vni: 1001}", "{name: t1, vni: 1003}", 1)
	_, err = apply(without, false)
	wantCode(t, err, connect.CodeFailedPrecondition)
	// Elsewhere the site may change, and the order of lists means nothing, even for an assigned node.
	reordered := strings.Replace(string(file), `[10.0.0.1, "2001:db8::1"]`, `["2001:db8::1", 10.0.0.1]`, 1)
	changed := strings.Replace(reordered, "{name: t2, vni: 1002}", "{name: t2, vni: 1003}", 1)
	if changes, err := apply(changed, false); err != nil || len(changes) != 1 {
		t.Fatalf("apply beside an assigned node: %v, %v", changes, err)
	}
	for name, id := range ids {
		if got := w.node(name).GetId(); got != id {
			t.Errorf("node %s became %d after %d", name, got, id)
		}
	}
	res, err := w.client.GetSite(t.Context(), connect.NewRequest(&dpudv1.GetSiteRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	got, err := site.Parse(res.Msg.GetSiteFile())
	if err != nil {
		t.Fatal(err)
	}
	want, err := site.Parse([]byte(changed))
	if err != nil {
		t.Fatal(err)
	}
	if diff := site.Compare(got, want); len(diff) > 0 || res.Msg.GetSiteId() == "" {
		t.Errorf("site differs: %v", diff)
	}
}

func (w *world) statusOf() *dpudv1.StatusResponse {
	w.t.Helper()
	res, err := w.client.Status(w.t.Context(), connect.NewRequest(&dpudv1.StatusRequest{}))
	if err != nil {
		w.t.Fatal(err)
	}
	return res.Msg
}

func TestErrors(t *testing.T) {
	w := newWorld(t).start().apply()
	ctx := t.Context()
	_, err := w.client.Assign(ctx, connect.NewRequest(&dpudv1.AssignRequest{Node: "n9", Tenant: "t1"}))
	wantCode(t, err, connect.CodeNotFound)
	_, err = w.client.Assign(ctx, connect.NewRequest(&dpudv1.AssignRequest{Node: "n1", Tenant: "t9"}))
	wantCode(t, err, connect.CodeNotFound)
	_, err = w.client.Reclaim(ctx, connect.NewRequest(&dpudv1.ReclaimRequest{Node: "n9"}))
	wantCode(t, err, connect.CodeNotFound)
	_, err = w.client.DumpMaps(ctx, connect.NewRequest(&dpudv1.ControllerDumpMapsRequest{Dpu: "d9"}))
	wantCode(t, err, connect.CodeNotFound)
	_, err = w.client.Counters(ctx, connect.NewRequest(&dpudv1.ControllerCountersRequest{Dpu: "d1"}))
	wantCode(t, err, connect.CodeUnavailable)
	if !strings.Contains(err.Error(), "start dpud on it") {
		t.Errorf("error says not what to do: %v", err)
	}
	stream, err := w.client.WatchNode(ctx, connect.NewRequest(&dpudv1.WatchNodeRequest{Node: "n9"}))
	if err != nil {
		t.Fatal(err)
	}
	if stream.Receive() {
		t.Fatal("watched a node that is not there")
	}
	wantCode(t, stream.Err(), connect.CodeNotFound)
	_, err = w.plane.Lease(ctx, connect.NewRequest(&dpudv1.LeaseCall{Request: &dpudv1.Envelope{SiteId: "other"}}))
	wantCode(t, err, connect.CodeFailedPrecondition)
	_, err = w.plane.Lease(ctx, connect.NewRequest(&dpudv1.LeaseCall{Request: &dpudv1.Envelope{Payload: []byte("garbage")}}))
	wantCode(t, err, connect.CodeInvalidArgument)
}

// TestStatus: what waits says for whom and why, and the lists agree.
func TestStatus(t *testing.T) {
	w := newWorld(t).start().apply()
	w.dpu("d1")
	w.assign("n1", "t1")
	s := w.await("n1", waitsFor("d2"))
	if !strings.Contains(s.GetNext(), "d2 to confirm programmed") || !strings.Contains(s.GetNext(), "never registered") {
		t.Errorf("next: %s", s.GetNext())
	}
	status := w.statusOf()
	if len(status.GetWaiting()) != 1 || status.GetNodesByPhase()["free"] != 3 || status.GetNodesByPhase()["granted"] != 1 || status.GetSite() != "example" {
		t.Errorf("status %v", status)
	}
	d2 := w.dpu("d2")
	w.await("n1", programmed)
	tenants, err := w.client.ListTenants(t.Context(), connect.NewRequest(&dpudv1.ListTenantsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	if list := tenants.Msg.GetTenants(); len(list) != 2 || len(list[0].GetNodes()) != 1 || len(list[1].GetNodes()) != 0 {
		t.Errorf("tenants %v", list)
	}
	entries, err := w.client.ListEntries(t.Context(), connect.NewRequest(&dpudv1.ListEntriesRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	if list := entries.Msg.GetEntries(); len(list) != 1 || list[0].GetNode() != "n1" || list[0].GetTenant() != "t1" {
		t.Errorf("entries %v", list)
	}
	counters, err := w.client.Counters(t.Context(), connect.NewRequest(&dpudv1.ControllerCountersRequest{Dpu: "d2"}))
	if err != nil || len(counters.Msg.GetCounters()) != 1 || counters.Msg.GetCounters()[0].GetPackets() != 7 {
		t.Errorf("counters %v, %v", counters, err)
	}
	_, err = w.client.DumpMaps(t.Context(), connect.NewRequest(&dpudv1.ControllerDumpMapsRequest{Dpu: "d2"}))
	wantCode(t, err, connect.CodeUnimplemented) // the DPU's own answer
	d2.kill()
	_, err = w.client.Counters(t.Context(), connect.NewRequest(&dpudv1.ControllerCountersRequest{Dpu: "d2"}))
	wantCode(t, err, connect.CodeUnavailable)
	if !strings.Contains(err.Error(), "check that dpud runs there") {
		t.Errorf("error says not what to do: %v", err)
	}
}

func TestMetrics(t *testing.T) {
	w := newWorld(t).start().apply()
	w.dpu("d1")
	w.dpu("d2")
	w.assign("n1", "t1")
	w.await("n1", programmed)
	w.reclaim("n1")
	w.await("n1", free)
	w.assign("n2", "t1")
	w.await("n2", programmed)
	problems, err := testutil.GatherAndLint(w.c.metrics.registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if !strings.HasPrefix(p.Metric, "go_") {
			t.Error(promlint.Problem(p))
		}
	}
	text := w.get("/metrics", http.StatusOK)
	for _, line := range []string{
		`dpud_controller_nodes{phase="free"} 3`, `dpud_controller_nodes{phase="granted"} 1`, `dpud_controller_nodes{phase="revoked"} 0`,
		`dpud_controller_confirmations{state="programmed"} 2`, `dpud_controller_confirmations{state="cleared"} 2`,
		`dpud_controller_assign_duration_seconds_count 2`, `dpud_controller_reclaim_duration_seconds_count 1`,
		`dpud_controller_dpu_reachable{dpu="d1"} 1`, `dpud_controller_lease_age_seconds{dpu="d2"}`, "process_cpu_seconds_total",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("metrics lack %s", line)
		}
	}
	w.get("/healthz", http.StatusOK)
	w.get("/readyz", http.StatusOK)
	w.c.ready.Store(false)
	w.get("/readyz", http.StatusServiceUnavailable)
}

func (w *world) get(path string, status int) string {
	w.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://controller"+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	res, err := unixClient(w.socket()).Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != status {
		w.t.Fatalf("%s: status %d, want %d: %v", path, res.StatusCode, status, err)
	}
	return string(b)
}
