package dpud

import (
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/record"
	"dpud/pkg/table"
	"dpud/pkg/wire"
)

func pinIn(t *testing.T) string { return filepath.Join(t.TempDir(), "pin") }

func TestLifeOfANode(t *testing.T) {
	k, c := newMemory(), newFakeController(t)
	d := start(t, k, pinIn(t), c.url)
	eventually(t, "lease", func() bool { return d.ready(t) == nil })
	if res := d.push(t, testGrant(1, record.Granted, 1), testEntry(1, 1)); len(res.GetRefused()) != 0 || res.GetInstance() == "" {
		t.Fatalf("push answered %v", res)
	}
	eventually(t, "programmed", func() bool { return c.has(1, record.Programmed) })
	want := table.Tables{
		{Map: table.NodeState, Node: 1}:                             {Epoch: 1, Generation: 1, Revision: 1},
		{Map: table.EndpointMAC, MAC: record.MAC{2, 0, 0, 0, 0, 1}}: {Node: 1, Ifindex: 11, MAC: record.MAC{2, 0, 0, 0, 0, 1}},
		{Map: table.NodeTenant, Node: 1}:                            {Node: 1, Tenant: 7},
	}
	have, err := k.Read()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, have, cmp.Comparer(func(a, b table.Key) bool { return a == b })); diff != "" {
		t.Errorf("kernel (-want +got):\n%s", diff)
	}
	before := len(k.after(0))
	d.push(t, testGrant(1, record.Revoked, 1))
	eventually(t, "cleared", func() bool { return c.has(1, record.Cleared) })
	order := []string{"delete node_tenant[1]", "delete endpoint_mac[02:00:00:00:00:01]", "barrier", "delete node_state[1]"}
	if got := k.after(before)[:len(order)]; !slices.Equal(got, order) {
		t.Errorf("removed by %q, want %q", got, order)
	}
	eventually(t, "nothing left to tell", func() bool {
		v, err := d.loop.look(t.Context(), false)
		return err == nil && v.unanswered == 0
	})
}

func (r *running) ready(t *testing.T) error { return service{r.daemon}.ready(t.Context()) }

func TestConfirmationsAreRepeatedUntilAnswered(t *testing.T) {
	k, c := newMemory(), newFakeController(t)
	d := start(t, k, pinIn(t), "unix:///nobody/answers", c.url)
	eventually(t, "lease from the second controller", func() bool { return d.ready(t) == nil })
	c.set(func() { c.down = true })
	d.push(t, testGrant(1, record.Granted, 1), testEntry(1, 1))
	eventually(t, "told several times", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.calls >= 3
	})
	if c.has(1, record.Programmed) {
		t.Fatal("a controller that is down took a confirmation")
	}
	c.set(func() { c.down = false })
	eventually(t, "told", func() bool { return c.has(1, record.Programmed) })
}

func TestNothingIsAddedWithoutALease(t *testing.T) {
	k, c, pin := newMemory(), newFakeController(t), pinIn(t)
	c.set(func() { c.refuse = "DPU d1 is not in the site" })
	if err := saveSite(pin, testSite); err != nil {
		t.Fatal(err)
	}
	d := start(t, k, pin, c.url)
	d.push(t, testGrant(1, record.Granted, 1), testEntry(1, 1))
	eventually(t, "refusal is told", func() bool {
		err := d.ready(t)
		return err != nil && strings.Contains(err.Error(), "not in the site")
	})
	if have, _ := k.Read(); len(have) != 0 {
		t.Errorf("kernel holds %v without a lease", have)
	}
}

// Only a lease that answers a dpud's own request makes it join a site: neither what others push, nor a refusal.
func TestJoinsTheSiteThatAnswers(t *testing.T) {
	k, c, pin := newMemory(), newFakeController(t), pinIn(t)
	c.set(func() { c.refuse = "DPU d1 is not in the site" })
	d := start(t, k, pin, c.url)
	eventually(t, "refusal is told", func() bool {
		err := d.ready(t)
		return err != nil && strings.Contains(err.Error(), "not in the site")
	})
	for _, r := range []record.Record{
		testGrant(1, record.Granted, 1), testEntry(1, 1),
		&record.Lease{DPU: "d1", Instance: d.instance, Boot: 1, Nonce: 1, Epoch: 1},
		&record.Lease{DPU: "d1", Instance: "other", Boot: 1, Nonce: 1, Epoch: 1},
	} {
		e, err := wire.Seal("site-2", 1, r)
		if err != nil {
			t.Fatal(err)
		}
		_, err = d.client.Push(t.Context(), connect.NewRequest(&dpudv1.PushRequest{Records: []*dpudv1.Envelope{e}}))
		if connect.CodeOf(err) != connect.CodeUnavailable || !strings.Contains(err.Error(), "send them again") {
			t.Errorf("push of another site's %s: %v", r.Key(), err)
		}
	}
	if err := d.loop.call(t.Context(), func() {}); err != nil {
		t.Fatal(err)
	}
	if site, err := loadSite(pin); err != nil || site != "" || d.records.Site() != "" {
		t.Errorf("site is %q, %q, %v", site, d.records.Site(), err)
	}
	c.set(func() { c.refuse = "" })
	eventually(t, "lease", func() bool { return d.ready(t) == nil })
	if site, err := loadSite(pin); err != nil || site != testSite {
		t.Errorf("site is %q, %v", site, err)
	}
	d.push(t, testGrant(1, record.Granted, 1), testEntry(1, 1))
	eventually(t, "programmed", func() bool { return c.has(1, record.Programmed) })
}

// A controller may take longer to answer than the first request waits, and another may not answer at all.
func TestSlowController(t *testing.T) {
	k, slow, silent := newMemory(), newFakeController(t), newFakeController(t)
	slow.slow, silent.slow = 1500*time.Millisecond, time.Hour
	d := start(t, k, pinIn(t), silent.url, slow.url)
	eventually(t, "lease", func() bool { return d.ready(t) == nil })
}

func TestRestartAdopts(t *testing.T) {
	k, c, pin := newMemory(), newFakeController(t), pinIn(t)
	d := start(t, k, pin, c.url)
	d.push(t, testGrant(1, record.Granted, 1), testEntry(1, 1))
	eventually(t, "programmed", func() bool { return c.has(1, record.Programmed) })
	d.stop()
	before := len(k.after(0))
	c.set(func() { c.down = true })
	d = start(t, k, pin, c.url)
	eventually(t, "kernel read", func() bool { return slices.Contains(k.after(before), "read") })
	// The next run hears nothing, then only old news: neither changes the kernel.
	d.push(t, testEntry(1, 1))
	if ops := k.after(before); slices.ContainsFunc(ops, func(op string) bool { return op != "read" && op != "barrier" }) {
		t.Errorf("a run that heard nothing did %q", ops)
	}
	// A removal needs no lease.
	d.push(t, testGrant(1, record.Revoked, 1))
	eventually(t, "removed", func() bool {
		have, _ := k.Read()
		return len(have) == 0
	})
}

func TestSiteIsForLife(t *testing.T) {
	k, c, pin := newMemory(), newFakeController(t), pinIn(t)
	d := start(t, k, pin, c.url)
	eventually(t, "lease", func() bool { return d.ready(t) == nil })
	res := d.pushOf(t, "site-2", testGrant(1, record.Granted, 1), testEntry(1, 1))
	if len(res.GetRefused()) != 2 || !strings.Contains(res.GetRefused()[0], "dpud unload") {
		t.Errorf("records of another site: refused %q", res.GetRefused())
	}
	d.stop()
	other := newFakeController(t)
	other.set(func() { other.site = "site-2" })
	d = start(t, k, pin, other.url)
	eventually(t, "the other site's lease is refused", func() bool {
		err := d.ready(t)
		return err != nil && strings.Contains(err.Error(), "belong to site site-1, not to site-2")
	})
	if n := d.records.refusedSite.Load(); n == 0 {
		t.Error("refusals are not counted")
	}
}

func TestErrorsAreRetried(t *testing.T) {
	k, c := newMemory(), newFakeController(t)
	d := start(t, k, pinIn(t), c.url)
	eventually(t, "lease", func() bool { return d.ready(t) == nil })
	k.set(func() { k.fail["put node_tenant[1]"] = errors.New("no memory, as the test wants it") })
	d.push(t, testGrant(1, record.Granted, 1), testEntry(1, 1))
	eventually(t, "programmed in the end", func() bool { return c.has(1, record.Programmed) })
	if v, err := d.loop.look(t.Context(), false); err != nil || v.stats.Errors != 1 {
		t.Errorf("errors counted: %d, %v", v.stats.Errors, err)
	}
}

func TestUnguardedIsNotCleared(t *testing.T) {
	k, c := newMemory(), newFakeController(t)
	d := start(t, k, pinIn(t), c.url)
	d.push(t, testGrant(1, record.Granted, 1), testEntry(1, 1))
	eventually(t, "programmed", func() bool { return c.has(1, record.Programmed) })
	k.set(func() { k.unguarded = errors.New("port p1: XDP is gone") })
	d.push(t, testGrant(1, record.Revoked, 1))
	eventually(t, "the status says why", func() bool {
		s, err := d.client.DPUStatus(t.Context(), connect.NewRequest(&dpudv1.DPUStatusRequest{}))
		return err == nil && strings.Contains(s.Msg.GetError(), "XDP is gone")
	})
	if have, _ := k.Read(); len(have) != 0 {
		t.Errorf("kernel still holds %v", have)
	}
	if c.has(1, record.Cleared) {
		t.Fatal("confirmed as cleared with an unguarded port")
	}
	k.set(func() { k.unguarded = nil })
	eventually(t, "cleared", func() bool { return c.has(1, record.Cleared) })
}

// A push that comes while the kernel is busy is heard before the next addition.
func TestNewsIsTakenBetweenOperations(t *testing.T) {
	k, c := newMemory(), newFakeController(t)
	hold := make(chan struct{})
	k.hold = hold
	d := start(t, k, pinIn(t), c.url)
	eventually(t, "lease", func() bool {
		v, err := d.loop.look(t.Context(), false)
		return err == nil && v.held
	})
	pushed := make(chan struct{})
	go func() {
		defer close(pushed)
		d.push(t, testGrant(1, record.Granted, 1), testEntry(1, 1)) // makes the loop wait in a barrier
		d.push(t, testGrant(1, record.Revoked, 1))
	}()
	eventually(t, "barrier begun", func() bool { return slices.Contains(k.after(0), "barrier") })
	eventually(t, "the revocation waits", func() bool {
		d.loop.mu.Lock()
		defer d.loop.mu.Unlock()
		return len(d.loop.news) > 0
	})
	close(hold)
	<-pushed
	eventually(t, "cleared", func() bool { return c.has(1, record.Cleared) })
	if ops := k.after(0); slices.Contains(ops, "put node_tenant[1]") {
		t.Errorf("a node was added whose revocation had been pushed: %q", ops)
	}
}

func TestServes(t *testing.T) {
	k, c := newMemory(), newFakeController(t)
	d := start(t, k, pinIn(t), c.url)
	d.push(t, testGrant(1, record.Granted, 1), testEntry(1, 1))
	eventually(t, "programmed", func() bool { return c.has(1, record.Programmed) })

	dump, err := d.client.DumpMaps(t.Context(), connect.NewRequest(&dpudv1.DumpMapsRequest{Maps: []string{"node_tenant"}}))
	if err != nil || len(dump.Msg.GetEntries()) != 1 {
		t.Fatalf("dump: %v, %v", dump, err)
	}
	if e := dump.Msg.GetEntries()[0]; e.GetNode() != 1 || e.GetNodeName() != "n1" || e.GetTenant() != 7 || e.GetTenantName() != "t7" {
		t.Errorf("dumped %v", e)
	}
	if dump, err := d.client.DumpMaps(t.Context(), connect.NewRequest(&dpudv1.DumpMapsRequest{})); err != nil || len(dump.Msg.GetEntries()) != 3 {
		t.Errorf("dump of all: %v, %v", dump, err)
	}
	if _, err := d.client.DumpMaps(t.Context(), connect.NewRequest(&dpudv1.DumpMapsRequest{Maps: []string{"nodes"}})); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("dump of a map that is not there: %v", err)
	}
	counters, err := d.client.Counters(t.Context(), connect.NewRequest(&dpudv1.CountersRequest{}))
	if err != nil || len(counters.Msg.GetCounters()) != 1 || counters.Msg.GetCounters()[0].GetPackets() != 3 {
		t.Errorf("counters: %v, %v", counters, err)
	}
	s, err := d.client.DPUStatus(t.Context(), connect.NewRequest(&dpudv1.DPUStatusRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	if m := s.Msg; m.GetName() != "d1" || m.GetBoot() != 1 || m.GetSiteId() != testSite || m.GetMode() != "enforce" || m.GetEntriesProgrammed() != 1 ||
		m.GetLeaseAgeSeconds() < 0 || len(m.GetPorts()) != 1 || !m.GetPorts()[0].GetGuarded() || m.GetError() != "" {
		t.Errorf("status %v", m)
	}
	for path, want := range map[string]string{
		"/healthz": "ok\n",
		"/readyz":  "ok\n",
		"/metrics": `dpud_packets_total{hook="ingress",reason="passed",verdict="pass"} 3`,
	} {
		res, err := d.http.Get("http://localhost" + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s: %s\n%s", path, res.Status, body)
		}
	}
}

func TestMetrics(t *testing.T) {
	k, c := newMemory(), newFakeController(t)
	d := start(t, k, pinIn(t), c.url)
	d.push(t, testGrant(1, record.Granted, 1), testEntry(1, 1))
	eventually(t, "programmed", func() bool { return c.has(1, record.Programmed) })
	problems, err := testutil.GatherAndLint(d.metrics.registry("test"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	want := `
		# HELP dpud_confirmations_total Confirmations issued, by state.
		# TYPE dpud_confirmations_total counter
		dpud_confirmations_total{state="cleared"} 0
		dpud_confirmations_total{state="programmed"} 1
		dpud_confirmations_total{state="withdrawn"} 0
		# HELP dpud_entries_programmed Nodes that the kernel holds a tenant for.
		# TYPE dpud_entries_programmed gauge
		dpud_entries_programmed 1
		# HELP dpud_lease_held 1 if this run holds a lease.
		# TYPE dpud_lease_held gauge
		dpud_lease_held 1
		# HELP dpud_ports_guarded Ports that run the programs.
		# TYPE dpud_ports_guarded gauge
		dpud_ports_guarded 1
	`
	if err := testutil.CollectAndCompare(d.metrics, strings.NewReader(want),
		"dpud_confirmations_total", "dpud_entries_programmed", "dpud_lease_held", "dpud_ports_guarded"); err != nil {
		t.Error(err)
	}
}
