package dpud

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"dpud/internal/dpud/config"
	"dpud/internal/netnstest"
	"dpud/pkg/api/dpudv1"
	"dpud/pkg/api/dpudv1/dpudv1connect"
	dmaps "dpud/pkg/maps"
	"dpud/pkg/record"
	"dpud/pkg/table"
)

const isolated = "DPUD_TEST_ISOLATED"

// inOwnNetwork runs the test again in a process whose every thread is in a new network namespace, as dpud's are,
// and says whether this is that process.
func inOwnNetwork(t *testing.T) bool {
	t.Helper()
	netnstest.NeedBPF(t)
	if os.Getenv(isolated) == t.Name() {
		return true
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.count=1", "-test.v")
	cmd.Env = append(os.Environ(), isolated+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("in a network namespace of its own: %v\n%s", err, out)
	}
	return false
}

// dpu is a DPU with ports n1, n2 and uplink u0, whose far ends have a p in their names.
type dpu struct {
	t          *testing.T
	cfg        *config.Config
	controller *fakeController
	client     dpudv1connect.DPUServiceClient
}

func newDPU(t *testing.T) *dpu {
	t.Helper()
	for _, name := range []string{"n1", "n2", "u0"} {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}); err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(linkOf(t, name+"p")); err != nil {
			t.Fatal(err)
		}
	}
	c := newFakeController(t)
	cfg := config.Default()
	cfg.Name, cfg.HardwareID, cfg.Controllers, cfg.Audit = "d1", "hw", []string{c.url}, 200*time.Millisecond
	cfg.Pin = fmt.Sprintf("/sys/fs/bpf/dpud_test_%d", os.Getpid())
	cfg.Listen = "unix://" + filepath.Join(t.TempDir(), "d.sock")
	cfg.Ports.Nodes, cfg.Ports.Uplinks = []string{"n?"}, []string{"u0"}
	if err := cfg.Finish(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Unload(cfg.Pin, discard); err != nil && !errors.Is(err, dmaps.ErrNotLoaded) {
			t.Errorf("unload: %v", err)
		}
	})
	h, base := dial(cfg.Listen)
	return &dpu{t: t, cfg: cfg, controller: c, client: dpudv1connect.NewDPUServiceClient(h, base)}
}

var discard = slog.New(slog.NewTextHandler(io.Discard, nil))

// run starts dpud and returns when it serves, with what stops it.
func (d *dpu) run() (stop func()) {
	d.t.Helper()
	ctx, cancel := context.WithCancel(d.t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, d.cfg, "test", discard) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			d.t.Errorf("run: %v", err)
		}
	})
	d.t.Cleanup(stop)
	eventually(d.t, "dpud serves", func() bool {
		if len(done) > 0 {
			d.t.Fatalf("run: %v", <-done)
		}
		_, err := d.client.DPUStatus(d.t.Context(), connect.NewRequest(&dpudv1.DPUStatusRequest{}))
		return err == nil
	})
	return stop
}

func (d *dpu) push(recs ...record.Record) {
	d.t.Helper()
	(&running{client: d.client}).push(d.t, recs...)
}

func (d *dpu) status() *dpudv1.DPUStatusResponse {
	d.t.Helper()
	s, err := d.client.DPUStatus(d.t.Context(), connect.NewRequest(&dpudv1.DPUStatusRequest{}))
	if err != nil {
		d.t.Fatal(err)
	}
	return s.Msg
}

// kernel reads the pinned maps, as others would.
func (d *dpu) kernel() table.Tables {
	d.t.Helper()
	tables, err := dmaps.OpenTables(d.cfg.Pin)
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = tables.Close() }()
	have, err := tables.Read()
	if err != nil {
		d.t.Fatal(err)
	}
	return have
}

func linkOf(t *testing.T, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func isUp(t *testing.T, name string) bool {
	t.Helper()
	return linkOf(t, name).Attrs().Flags&net.FlagUp != 0
}

// forwardsTo returns the port to which the bridge forwards a MAC, or "".
func forwardsTo(t *testing.T, mac record.MAC) string {
	t.Helper()
	list, err := netlink.NeighList(0, unix.AF_BRIDGE)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range list {
		if n.HardwareAddr.String() == mac.String() && n.MasterIndex != 0 && n.State == unix.NUD_NOARP {
			l, err := netlink.LinkByIndex(n.LinkIndex)
			if err != nil {
				t.Fatal(err)
			}
			return l.Attrs().Name
		}
	}
	return ""
}

func grantOn(port string, phase record.Phase, g record.Generation, rev record.Revision) *record.Grant {
	r := testGrant(1, phase, g)
	r.Ports[0].Port, r.Revision = port, rev
	return r
}

func TestInTheKernel(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	d := newDPU(t)
	stop := d.run()
	c, mac := d.controller, testGrant(1, record.Granted, 1).MAC
	d.push(grantOn("n1", record.Granted, 1, 1), testEntry(1, 1))
	eventually(t, "programmed", func() bool { return c.has(1, record.Programmed) })
	if p := forwardsTo(t, mac); p != "n1" {
		t.Errorf("the bridge forwards to %q", p)
	}
	for _, p := range d.status().GetPorts() {
		if !p.GetGuarded() || p.GetProblem() != "" || p.GetXdp() == "" || p.GetRole() == "node" && p.GetEgress() == "" {
			t.Errorf("port %v", p)
		}
	}

	// A second dpud on the same folder gives up, and so does unload.
	if err := Run(t.Context(), d.cfg, "test", discard); !errors.Is(err, dmaps.ErrLocked) {
		t.Errorf("a second dpud: %v", err)
	}
	if err := Unload(d.cfg.Pin, discard); !errors.Is(err, dmaps.ErrLocked) || !isUp(t, "n1") {
		t.Errorf("unload while dpud runs: %v", err)
	}

	// A new revision of the grant replaces node_state alone.
	d.push(grantOn("n1", record.Granted, 1, 2))
	state := table.Key{Map: table.NodeState, Node: 1}
	eventually(t, "revision 2", func() bool { return d.kernel()[state].Revision == 2 })

	// Stopping and starting changes nothing and takes no port down.
	before := d.kernel()
	stop()
	if after := d.kernel(); len(after) != len(before) || !isUp(t, "n1") {
		t.Errorf("after the end the kernel holds %v, before %v", after, before)
	}
	down := watchDown(t)
	stop = d.run()
	eventually(t, "lease", func() bool { return d.status().GetLeaseAgeSeconds() >= 0 })
	if n := down(); n != 0 {
		t.Errorf("links went down %d times during a restart", n)
	}
	if s := d.status(); s.GetEntriesProgrammed() != 1 || s.GetSiteId() != testSite {
		t.Errorf("adopted %v", s)
	}

	d.push(grantOn("n1", record.Revoked, 1, 2))
	eventually(t, "cleared", func() bool { return c.has(1, record.Cleared) })
	if have := d.kernel(); len(have) != 0 {
		t.Errorf("kernel holds %v after clearing", have)
	}
	eventually(t, "the forwarding entry goes too", func() bool { return forwardsTo(t, mac) == "" })

	stop()
	if err := Unload(d.cfg.Pin, discard); err != nil {
		t.Fatal(err)
	}
	if _, err := netlink.LinkByName("br-dpud"); err == nil || isUp(t, "n1") || isUp(t, "u0") {
		t.Error("unload left the bridge, or a port up without a guard")
	}
	for _, path := range []string{d.cfg.Pin, siteFile(d.cfg.Pin)} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}

// watchDown counts from now on how often a link that is ours was seen down.
func watchDown(t *testing.T) func() int {
	t.Helper()
	updates, done := make(chan netlink.LinkUpdate, 1000), make(chan struct{})
	if err := netlink.LinkSubscribe(updates, done); err != nil {
		t.Fatal(err)
	}
	return func() (n int) {
		close(done)
		for {
			select {
			case u, ok := <-updates:
				if !ok {
					return n
				}
				if name := u.Attrs().Name; (name == "n1" || name == "n2" || name == "u0") && u.IfInfomsg.Flags&unix.IFF_UP == 0 {
					n++
				}
			default:
				return n
			}
		}
	}
}

func TestUnguardedInTheKernel(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	d := newDPU(t)
	d.run()
	d.push(grantOn("n1", record.Granted, 1, 1), testEntry(1, 1))
	eventually(t, "programmed", func() bool { return d.controller.has(1, record.Programmed) })

	// A port vanishes with everything on it and comes back: the node is programmed there anew.
	old := linkOf(t, "n1").Attrs().Index
	if err := netlink.LinkDel(linkOf(t, "n1")); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "n1"}, PeerName: "n1p"}); err != nil {
		t.Fatal(err)
	}
	now := linkOf(t, "n1").Attrs().Index
	endpoint := table.Key{Map: table.EndpointMAC, MAC: testGrant(1, record.Granted, 1).MAC}
	eventually(t, "the endpoint is behind the new link", func() bool { return d.kernel()[endpoint].Ifindex == uint32(now) })
	if now == old || forwardsTo(t, endpoint.MAC) != "n1" {
		t.Errorf("link %d became %d, the bridge forwards to %q", old, now, forwardsTo(t, endpoint.MAC))
	}
	eventually(t, "the old link is forgotten", func() bool {
		tables, err := dmaps.OpenTables(d.cfg.Pin)
		if err != nil {
			return false
		}
		defer func() { _ = tables.Close() }()
		roles, err := tables.Ports()
		return err == nil && len(roles) == 3 && roles[now] == dmaps.RoleNode
	})
}

// Started, or told to unload, in the wrong network namespace, dpud changes nothing.
func TestInTheWrongNetwork(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	d := newDPU(t)
	stop := d.run()
	eventually(t, "lease", func() bool { return d.status().GetLeaseAgeSeconds() >= 0 })
	stop()
	own, err := newOwner(d.cfg.Pin)
	if err != nil {
		t.Fatal(err)
	}
	netnstest.Do(t, func() {
		if err := Run(t.Context(), d.cfg, "test", discard); !errors.Is(err, dmaps.ErrElsewhere) {
			t.Errorf("run: %v", err)
		}
		if err := Unload(d.cfg.Pin, discard); !errors.Is(err, dmaps.ErrElsewhere) {
			t.Errorf("unload: %v", err)
		}
	})
	for _, name := range []string{"n1", "n2", "u0"} {
		if !own.ingress(linkOf(t, name)) || name != "u0" && !own.egress(linkOf(t, name)) {
			t.Errorf("%s lost its programs", name)
		}
	}
	if err := Unload(d.cfg.Pin, discard); err != nil {
		t.Fatal(err)
	}
	if err := Unload(d.cfg.Pin, discard); !errors.Is(err, dmaps.ErrNotLoaded) {
		t.Errorf("unload of nothing: %v", err)
	}
}

// A dpud with another pin folder neither takes over the ports of the first nor proves anything while those run.
func TestAnotherPinFolder(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	d := newDPU(t)
	stop := d.run()
	d.push(grantOn("n1", record.Granted, 1, 1), testEntry(1, 1))
	eventually(t, "programmed", func() bool { return d.controller.has(1, record.Programmed) })
	stop()

	first := d.cfg.Pin
	moved := *d.cfg
	moved.Pin = first + "_moved"
	d.cfg = &moved
	t.Cleanup(func() {
		if err := Unload(moved.Pin, discard); err != nil {
			t.Errorf("unload: %v", err)
		}
	})
	if err := Run(t.Context(), d.cfg, "test", discard); !errors.Is(err, errOther) {
		t.Errorf("run on ports of another data plane: %v", err)
	}
	if _, err := os.Stat(moved.Pin); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it left a pin folder: %v", err)
	}

	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "q1"}, PeerName: "q1p"}); err != nil {
		t.Fatal(err)
	}
	moved.Ports.Nodes, moved.Ports.Uplinks = []string{"q1"}, nil
	d.run()
	d.push(grantOn("n1", record.Revoked, 1, 1))
	eventually(t, "the status says why", func() bool { return strings.Contains(d.status().GetError(), "another data plane") })
	if d.controller.has(1, record.Cleared) {
		t.Fatal("cleared although another data plane enforces")
	}
	if err := Unload(first, discard); err != nil {
		t.Fatal(err)
	}
	eventually(t, "cleared", func() bool { return d.controller.has(1, record.Cleared) })
}
