package dpud

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"dpud/internal/dpud/config"
	"dpud/internal/dpud/ports"
	"dpud/pkg/api/dpudv1"
	"dpud/pkg/api/dpudv1/dpudv1connect"
	"dpud/pkg/control/agent"
	dmaps "dpud/pkg/maps"
	"dpud/pkg/record"
	"dpud/pkg/table"
	"dpud/pkg/wire"
)

// memory is a kernel of plain Go maps that remembers what was done to it.
type memory struct {
	mu        sync.Mutex
	entries   table.Tables
	done      []string
	fail      map[string]error // by operation, as in done; once
	unguarded error
	hold      chan struct{} // barriers wait for it when it is not nil
	forwards  int
}

func newMemory() *memory {
	return &memory{entries: make(table.Tables), fail: make(map[string]error)}
}

func (m *memory) do(op string) error {
	m.done = append(m.done, op)
	err := m.fail[op]
	delete(m.fail, op)
	return err
}

func (m *memory) Put(k table.Key, v table.Value) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.do("put " + k.String()); err != nil {
		return err
	}
	if _, ok := m.entries[k]; ok && k.Map != table.NodeState {
		return dmaps.ErrExists
	}
	m.entries[k] = v
	return nil
}

func (m *memory) Delete(k table.Key) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.do("delete " + k.String()); err != nil {
		return err
	}
	delete(m.entries, k)
	return nil
}

func (m *memory) Barrier() error {
	m.mu.Lock()
	hold, err := m.hold, m.do("barrier")
	m.mu.Unlock()
	if hold != nil {
		<-hold
	}
	return err
}

func (m *memory) Read() (table.Tables, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.entries), m.do("read")
}

func (m *memory) Get(k table.Key) (table.Value, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.entries[k]
	return v, ok, nil
}

func (m *memory) Guarded() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unguarded
}

func (m *memory) Forward(table.Tables) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forwards++
	return nil
}

func (m *memory) Mode() (dmaps.Mode, error) { return dmaps.Enforce, nil }

func (m *memory) Counters() ([]dmaps.Counter, error) {
	return []dmaps.Counter{
		{Hook: "ingress", Reason: dmaps.Passed, Packets: 3, Bytes: 180},
		{Hook: "egress", Reason: dmaps.PassedLocal},
	}, nil
}

func (m *memory) set(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// after returns what was done since and including the n-th operation.
func (m *memory) after(n int) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.done[n:])
}

const testSite = "site-1"

// fakeController is a management plane that grants every lease.
type fakeController struct {
	dpudv1connect.UnimplementedPlaneServiceHandler
	url  string
	site record.SiteID

	mu        sync.Mutex
	boot      record.Boot
	instance  string
	grants    []*record.Grant
	confirmed []*record.Confirmation
	calls     int // of Confirm
	down      bool
	refuse    string
	slow      time.Duration // to grant a lease
}

// newFakeController serves on a unix socket.
func newFakeController(t *testing.T) *fakeController {
	t.Helper()
	f := &fakeController{site: testSite}
	socket := filepath.Join(t.TempDir(), "c.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(dpudv1connect.NewPlaneServiceHandler(f))
	s := &http.Server{Handler: mux}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	f.url = "unix://" + socket
	return f
}

var errDown = connect.NewError(connect.CodeUnavailable, errors.New("down, as the test wants it"))

func (f *fakeController) Lease(ctx context.Context, req *connect.Request[dpudv1.LeaseCall]) (*connect.Response[dpudv1.LeaseAnswer], error) {
	r, err := wire.Open("", req.Msg.GetRequest())
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	q := r.(*record.LeaseRequest)
	select {
	case <-time.After(f.slow):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return nil, errDown
	}
	if q.Instance != f.instance {
		f.instance = q.Instance
		f.boot++
	}
	l := &record.Lease{DPU: q.DPU, Instance: q.Instance, Boot: f.boot, Nonce: q.Nonce, Epoch: 1, Rack: "r1", Grants: f.grants, Refused: f.refuse}
	e, err := wire.Seal(f.site, 1, l)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&dpudv1.LeaseAnswer{Lease: e}), nil
}

func (f *fakeController) Confirm(_ context.Context, req *connect.Request[dpudv1.ConfirmRequest]) (*connect.Response[dpudv1.ConfirmResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.down {
		return nil, errDown
	}
	for _, e := range req.Msg.GetConfirmations() {
		r, err := wire.Open(f.site, e)
		if err != nil {
			return nil, connect.NewError(connect.CodeInvalidArgument, err)
		}
		f.confirmed = append(f.confirmed, r.(*record.Confirmation))
	}
	return connect.NewResponse(&dpudv1.ConfirmResponse{}), nil
}

func (f *fakeController) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// has says whether a state of a node was confirmed.
func (f *fakeController) has(n record.NodeID, s record.State) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.confirmed, func(c *record.Confirmation) bool { return c.Node == n && c.State == s })
}

// eventually polls until ok, for at most ten seconds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

// running is a daemon over memory, with a client of its API.
type running struct {
	*daemon
	client dpudv1connect.DPUServiceClient
	http   *http.Client
	stop   func()
}

// start runs a daemon until the test ends or stop is called.
func start(t *testing.T, kernel *memory, pin string, controllers ...string) *running {
	t.Helper()
	return startWith(t, kernel, pin, func(c *config.Config) { c.Controllers = controllers })
}

func startWith(t *testing.T, kernel *memory, pin string, change func(*config.Config)) *running {
	t.Helper()
	cfg := config.Default()
	cfg.Name, cfg.Pin, cfg.Audit = "d1", pin, time.Hour
	change(cfg)
	cfg.Listen = "unix://" + filepath.Join(t.TempDir(), "d.sock")
	list := []ports.Port{{Name: "p1", Index: 11, Role: dmaps.RoleNode, Up: true, Guarded: true, XDP: "native", Egress: "tcx"}}
	ctx, cancel := context.WithCancel(t.Context())
	d, err := newDaemon(ctx, cfg, agent.Config{DPU: "d1", Instance: newInstance(), HardwareID: "hw", KernelBoot: "kb"}, machine{
		kernel: kernel, tables: kernel, ports: func() []ports.Port { return list }, foundUnguarded: func() uint64 { return 0 },
	}, "test", slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	d.loop.setPorts(list)
	done := make(chan error, 1)
	go func() {
		done <- d.run(func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		})
	}()
	r := &running{daemon: d, stop: sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})}
	t.Cleanup(r.stop)
	var base string
	r.http, base = dial(cfg.Listen)
	r.client = dpudv1connect.NewDPUServiceClient(r.http, base)
	eventually(t, "dpud serves", func() bool {
		_, err := r.client.DPUStatus(t.Context(), connect.NewRequest(&dpudv1.DPUStatusRequest{}))
		return err == nil
	})
	return r
}

// push hands records of the site to the daemon and returns the answer.
func (r *running) push(t *testing.T, recs ...record.Record) *dpudv1.PushResponse {
	t.Helper()
	return r.pushOf(t, testSite, recs...)
}

func (r *running) pushOf(t *testing.T, site record.SiteID, recs ...record.Record) *dpudv1.PushResponse {
	t.Helper()
	req := &dpudv1.PushRequest{}
	for _, x := range recs {
		e, err := wire.Seal(site, 1, x)
		if err != nil {
			t.Fatal(err)
		}
		req.Records = append(req.Records, e)
	}
	var res *connect.Response[dpudv1.PushResponse]
	eventually(t, "push is answered", func() (ok bool) {
		var err error
		res, err = r.client.Push(t.Context(), connect.NewRequest(req))
		if err != nil && connect.CodeOf(err) != connect.CodeUnavailable { // as before a site is joined
			t.Fatalf("push: %v", err)
		}
		return err == nil
	})
	return res.Msg
}

func testGrant(n record.NodeID, phase record.Phase, g record.Generation) *record.Grant {
	return &record.Grant{
		Node: n, Epoch: 1, Generation: g, Phase: phase, Revision: 1, Tenant: 7, Name: fmt.Sprintf("n%d", n), TenantName: "t7", Rack: "r1", VNI: 70,
		MAC: record.MAC{2, 0, 0, 0, 0, byte(n)}, Ports: []record.NodePort{{DPU: "d1", Port: "p1"}}, Provers: []record.DPU{"d1"},
	}
}

func testEntry(n record.NodeID, g record.Generation) *record.Entry {
	return &record.Entry{Tenant: 7, Node: n, Epoch: 1, Generation: g, Revision: 1}
}
