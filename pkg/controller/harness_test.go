package controller

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/api/dpudv1/dpudv1connect"
	"dpud/pkg/record"
)

// world is a controller on a store and a socket that outlive it.
type world struct {
	t      testing.TB
	dir    string
	cfg    Config
	c      *Controller
	client dpudv1connect.ControllerServiceClient
	plane  dpudv1connect.PlaneServiceClient
}

func newWorld(t testing.TB) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "dpud") // short: it holds unix sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	w := &world{t: t, dir: dir, cfg: Config{
		DataDir: filepath.Join(dir, "data"), Listen: []string{"unix://" + filepath.Join(dir, "api.sock")},
		Version: "test", Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}}
	w.connect()
	return w
}

func (w *world) socket() string { return filepath.Join(w.dir, "api.sock") }

func (w *world) connect() {
	w.client = dpudv1connect.NewControllerServiceClient(unixClient(w.socket()), "http://controller")
	w.plane = dpudv1connect.NewPlaneServiceClient(unixClient(w.socket()), "http://controller")
}

func (w *world) start() *world {
	w.t.Helper()
	c, err := Start(w.t.Context(), w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.c = c
	w.t.Cleanup(func() { _ = c.Close() })
	return w
}

func (w *world) stop() {
	w.t.Helper()
	if err := w.c.Close(); err != nil {
		w.t.Fatal(err)
	}
}

// apply loads the example site: DPUs d1 and d2, tenants t1 and t2, nodes n1 to n4 with ids 1 to 4.
func (w *world) apply() *world {
	w.t.Helper()
	b, err := os.ReadFile("../../docs/examples/site.yaml")
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.client.Apply(w.t.Context(), connect.NewRequest(&dpudv1.ApplyRequest{SiteFile: b})); err != nil {
		w.t.Fatal(err)
	}
	return w
}

func (w *world) dpu(name record.DPU) *fakeDPU {
	w.t.Helper()
	return startDPU(w.t, name, dpuOptions{controller: w.socket()})
}

func (w *world) assign(node, tenant string) {
	w.t.Helper()
	if _, err := w.client.Assign(w.t.Context(), connect.NewRequest(&dpudv1.AssignRequest{Node: node, Tenant: tenant})); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) reclaim(node string) {
	w.t.Helper()
	if _, err := w.client.Reclaim(w.t.Context(), connect.NewRequest(&dpudv1.ReclaimRequest{Node: node})); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) node(name string) *dpudv1.NodeStatus {
	w.t.Helper()
	res, err := w.client.ListNodes(w.t.Context(), connect.NewRequest(&dpudv1.ListNodesRequest{}))
	if err != nil {
		w.t.Fatal(err)
	}
	i := slices.IndexFunc(res.Msg.GetNodes(), func(n *dpudv1.NodeStatus) bool { return n.GetName() == name })
	if i < 0 {
		w.t.Fatalf("no node %s", name)
	}
	return res.Msg.GetNodes()[i]
}

// await follows a node until its status is as wanted.
func (w *world) await(node string, wanted func(*dpudv1.NodeStatus) bool) *dpudv1.NodeStatus {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	stream, err := w.client.WatchNode(ctx, connect.NewRequest(&dpudv1.WatchNodeRequest{Node: node}))
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		if s := stream.Msg().GetNode(); wanted(s) {
			return s
		}
	}
	w.t.Fatalf("node %s did not get there: %v; now %v", node, stream.Err(), w.node(node))
	return nil
}

// patience bounds every wait for something that must happen.
const patience = 30 * time.Second

func programmed(s *dpudv1.NodeStatus) bool {
	return s.GetPhase() == dpudv1.Phase_PHASE_GRANTED && len(s.GetWaitingFor()) == 0
}

func free(s *dpudv1.NodeStatus) bool { return s.GetPhase() == dpudv1.Phase_PHASE_FREE }

func waitsFor(dpus ...string) func(*dpudv1.NodeStatus) bool {
	return func(s *dpudv1.NodeStatus) bool { return slices.Equal(s.GetWaitingFor(), dpus) }
}

// eventually polls for what no stream reports.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

func wantCode(t *testing.T, err error, code connect.Code) {
	t.Helper()
	if connect.CodeOf(err) != code || err == nil {
		t.Errorf("error %v, want code %s", err, code)
	}
}

func siteOf(t testing.TB, envelope []byte) record.SiteID {
	t.Helper()
	e := new(dpudv1.Envelope)
	if err := proto.Unmarshal(envelope, e); err != nil {
		t.Error(err)
	}
	return record.SiteID(e.GetSiteId())
}

// refuseDial cuts the direct messages of a controller.
func refuseDial(context.Context, string, string) (net.Conn, error) {
	return nil, errors.New("direct messages are cut")
}
