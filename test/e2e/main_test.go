// Package e2e tests the whole system: the real programs on a rack of network namespaces, with frames of every kind
// on their way from every node to every node.
package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	// What the programs are made of: without these, go test would take an old result for a changed program.
	_ "dpud/internal/cli"
	_ "dpud/internal/dpud"
	"dpud/pkg/maps"
	"dpud/pkg/record"
	"dpud/pkg/table"
	"dpud/test/prober"
	"dpud/test/rack"
)

// bin is the folder of the programs: DPUD_BIN, or one that they are built into.
var bin string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if bin = os.Getenv("DPUD_BIN"); bin != "" || os.Geteuid() != 0 {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "dpud-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	build := exec.Command("go", "build", "-o", dir, "dpud/cmd/ctl", "dpud/cmd/dpud")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build the programs:", err)
		return 1
	}
	bin = dir
	return m.Run()
}

// Indices of the nodes. n1 and n2 hang on d1, n3 and n4 on d2.
const (
	n1 = iota
	n2
	n3
	n4
)

// fixture is a rack under test.
type fixture struct {
	*rack.Rack
	t   *testing.T
	ids []record.NodeID
}

var racks atomic.Int64

// wire makes a rack in which nothing runs yet.
func wire(t *testing.T) *fixture {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for network namespaces and BPF")
	}
	r, err := rack.New(rack.Options{Name: fmt.Sprintf("e2e%d-%d", os.Getpid(), racks.Add(1)), Bin: bin, Deadline: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(r.Logs(60))
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return &fixture{Rack: r, t: t}
}

// start makes a rack and starts its programs.
func start(t *testing.T) *fixture {
	t.Helper()
	f := wire(t)
	f.must(f.Start())
	f.learnIDs()
	return f
}

func (f *fixture) learnIDs() {
	f.t.Helper()
	ids, err := f.IDs()
	f.must(err)
	f.ids = ids
}

// in returns the same rack for a subtest.
func (f *fixture) in(t *testing.T) *fixture { return &fixture{Rack: f.Rack, t: t, ids: f.ids} }

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) until(what string, condition func() (bool, error)) {
	f.t.Helper()
	f.must(rack.Until(f.Deadline, what, condition))
}

// assignAll gives n1 and n3 to t1, n2 and n4 to t2.
func (f *fixture) assignAll() {
	f.t.Helper()
	for i, tenant := range []string{"t1", "t2", "t1", "t2"} {
		f.must(f.Assign(rack.Nodes[i], tenant))
	}
}

// probe starts a prober that ends with the test at the latest.
func (f *fixture) probe() *probe {
	f.t.Helper()
	rate := 2000
	if s := os.Getenv("DPUD_PROBE_RATE"); s != "" { // slower machines
		var err error
		rate, err = strconv.Atoi(s)
		f.must(err)
	}
	p, err := f.Probe(rate, 5*time.Minute, f.ids)
	f.must(err)
	w := &probe{Prober: p, f: f}
	f.t.Cleanup(func() { _, _ = w.stop() })
	return w
}

// probe is a prober in a test.
type probe struct {
	*prober.Prober
	f       *fixture
	stopped bool
}

func (p *probe) stop() (*prober.Report, error) {
	if p.stopped {
		return nil, nil
	}
	p.stopped = true
	return p.Stop()
}

// finish stops the prober and fails the test if anything crossed tenants.
func (p *probe) finish() *prober.Report {
	p.f.t.Helper()
	r, err := p.stop()
	p.f.must(err)
	if r.Total.Crossed != 0 || r.TwoTenants != 0 || r.Total.Unknown != 0 || r.Lost != 0 || r.Total.Sent == 0 {
		p.f.t.Errorf("want no crossing, and everything known:\n%s", r)
	}
	return r
}

// passes waits until honest frames of every kind arrive.
func (p *probe) passes(from, to int) {
	p.f.t.Helper()
	before := p.counts(from, to, p.Received)
	p.f.until(fmt.Sprintf("frames from %s at %s", rack.Nodes[from], rack.Nodes[to]), func() (bool, error) {
		for k, n := range p.counts(from, to, p.Received) {
			if prober.Kind(k).Honest() && n <= before[k] {
				return false, fmt.Errorf("no %s arrives", prober.Kind(k))
			}
		}
		return true, nil
	})
}

// drops waits until frames of every kind were sent, and fails the test if one of them arrived.
func (p *probe) drops(from, to int) {
	p.f.t.Helper()
	sent, received := p.counts(from, to, p.Sent), p.counts(from, to, p.Received)
	p.f.until("frames sent", func() (bool, error) {
		for k, n := range p.counts(from, to, p.Sent) {
			if n < sent[k]+2 {
				return false, nil
			}
		}
		return true, nil
	})
	for k, n := range p.counts(from, to, p.Received) {
		if n != received[k] {
			p.f.t.Errorf("%d frames (%s) from %s reached %s", n-received[k], prober.Kind(k), rack.Nodes[from], rack.Nodes[to])
		}
	}
}

// counts asks for a count of every kind.
func (p *probe) counts(from, to int, count func(from, to int, k prober.Kind) uint64) []uint64 {
	var all []uint64
	for _, k := range prober.Kinds() {
		all = append(all, count(from, to, k))
	}
	return all
}

// holds reads a DPU's map as the kernel has it, without the dpud.
func (f *fixture) holds(dpu record.DPU, m table.Map, node int) bool {
	f.t.Helper()
	t, err := maps.OpenTables(f.PinDir(dpu))
	f.must(err)
	defer func() { _ = t.Close() }()
	_, ok, err := t.Get(table.Key{Map: m, Node: f.ids[node]})
	f.must(err)
	return ok
}

// spin waits for a map entry to go, without a pause: what happens next in dpud takes less than one.
func (f *fixture) spin(dpu record.DPU, m table.Map, node int) {
	f.t.Helper()
	t, err := maps.OpenTables(f.PinDir(dpu))
	f.must(err)
	defer func() { _ = t.Close() }()
	for end := time.Now().Add(f.Deadline); time.Now().Before(end); runtime.Gosched() {
		_, ok, err := t.Get(table.Key{Map: m, Node: f.ids[node]})
		f.must(err)
		if !ok {
			return
		}
	}
	f.t.Fatalf("%s of %s still holds %s", m, dpu, rack.Nodes[node])
}
