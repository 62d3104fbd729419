package gossip

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// TestLoopback runs three members over real UDP and TCP.
func TestLoopback(t *testing.T) {
	var members []*Gossip
	var regs []*registers
	var seeds []string
	for i := range 3 {
		r := newRegisters()
		g, err := Join(Config{
			Name:    fmt.Sprintf("d%d", i+1),
			Bind:    netip.MustParseAddrPort("127.0.0.1:0"),
			Seeds:   seeds,
			Label:   "s1/r1",
			Key:     []byte("0123456789abcdef"),
			Records: r,
			Logger:  testLogger(),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		})
		seeds = []string{fmt.Sprintf("localhost:%d", g.Addr().Port())}
		members, regs = append(members, g), append(regs, r)
		for node, size := range []int{300, 2000, 64 << 10} {
			it := grant(10*i+node, 1, size)
			r.put(it)
			g.Announce(it.key)
		}
	}
	hang := time.Now().Add(time.Minute)
	for len(regs[0].versions()) != 9 || !sameVersions(regs[0], regs[1]) || !sameVersions(regs[0], regs[2]) {
		if time.Now().After(hang) {
			for _, g := range members {
				t.Logf("%v %+v", g.Members(), g.Stats())
			}
			t.Fatal("no convergence")
		}
		time.Sleep(10 * time.Millisecond)
	}
	_, err := Join(Config{Name: "d9", Bind: members[0].Addr(), Records: newRegisters(), Logger: testLogger()})
	if err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("join at a taken address: %v", err)
	}
}

func TestMetrics(t *testing.T) {
	g, err := Join(Config{Name: "d1", Bind: netip.MustParseAddrPort("127.0.0.1:0"), Records: newRegisters(), Logger: testLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(g)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) != 12 {
		t.Errorf("%d families", len(families))
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) != 0 {
		t.Errorf("%v %v", problems, err)
	}
}

func TestLogWriter(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	var c counters
	w := newLogWriter(log, &c)
	for _, line := range []string{
		"[DEBUG] memberlist: a\n", "[INFO] memberlist: b\n", "[WARN] memberlist: c\n", "[ERR] memberlist: d\n", "e\n",
		"[ERR] memberlist: discarding packet with unacceptable label \"x\"\n",
	} {
		if n, err := w.Write([]byte(line)); n != len(line) || err != nil {
			t.Errorf("write %q: %d, %v", line, n, err)
		}
	}
	const want = `level=INFO msg="memberlist: b"
level=WARN msg="memberlist: c"
level=WARN msg="memberlist: d"
level=WARN msg=e
level=WARN msg="memberlist: discarding packet with unacceptable label \"x\""
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	if c.strangers.Load() != 1 {
		t.Errorf("%d strangers", c.strangers.Load())
	}
	for range 1000 {
		_, _ = w.Write([]byte("[ERR] flood\n"))
	}
	if n := strings.Count(out.String(), "flood"); n > 100 || c.logsSuppressed.Load() == 0 {
		t.Errorf("%d of 1000 lines logged, %d suppressed", n, c.logsSuppressed.Load())
	}
}
