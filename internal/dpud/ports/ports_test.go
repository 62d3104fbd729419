package ports

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"dpud/internal/netnstest"
	"dpud/pkg/maps"
	"dpud/pkg/record"
)

// fakeGuard remembers what it was asked, and whether a link was up when it was attached to.
type fakeGuard struct {
	mu       sync.Mutex
	attached map[int]maps.Role
	earlier  map[int]bool     // guarded by a run before
	others   map[string]error // guarded by another data plane
	refuse   error
	log      []string
}

func newFakeGuard() *fakeGuard {
	return &fakeGuard{attached: make(map[int]maps.Role), earlier: make(map[int]bool), others: make(map[string]error)}
}

func (g *fakeGuard) Attach(i maps.Iface, r maps.Role) (maps.Attachment, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	up := "down"
	if l, err := netlink.LinkByIndex(i.Index); err == nil && l.Attrs().Flags&net.FlagUp != 0 {
		up = "up"
	}
	g.log = append(g.log, fmt.Sprintf("attach %s %s while %s", i.Name, r, up))
	if g.refuse != nil {
		return maps.Attachment{}, g.refuse
	}
	g.attached[i.Index] = r
	return maps.Attachment{Ifindex: i.Index, Name: i.Name, Role: r, XDPMode: "native"}, nil
}

func (g *fakeGuard) Forget(ifindex int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.log = append(g.log, "forget")
	delete(g.attached, ifindex)
	return nil
}

func (g *fakeGuard) Runs(ifindex int, _ maps.Role) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.earlier[ifindex]
}

func (g *fakeGuard) Other(l netlink.Link) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.others[l.Attrs().Name]
}

func (g *fakeGuard) Ports() (map[int]maps.Role, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make(map[int]maps.Role)
	for k, v := range g.attached {
		out[k] = v
	}
	return out, nil
}

func (g *fakeGuard) Check(ifindex int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.attached[ifindex]; !ok {
		return maps.ErrUnguarded
	}
	return nil
}

func (g *fakeGuard) set(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func testPorts(t *testing.T, cfg Config, g Guard) *Ports {
	t.Helper()
	cfg.Bridge, cfg.CreateBridge, cfg.BridgeUplinks = "br0", true, true
	cfg.BridgeMAC = net.HardwareAddr{2, 0, 0, 0, 0, 0xbb}
	p, err := New(cfg, g, quiet, func([]Port) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// veth makes a pair, name and name+"p", both down, and returns the first.
func veth(t *testing.T, name string) netlink.Link {
	t.Helper()
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}))
	return link(t, name)
}

func link(t *testing.T, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	must(t, err)
	return l
}

func up(t *testing.T, name string) bool {
	t.Helper()
	return link(t, name).Attrs().Flags&net.FlagUp != 0
}

// find returns a port of the last pass.
func find(t *testing.T, p *Ports, name string) Port {
	t.Helper()
	i := slices.IndexFunc(p.List(), func(q Port) bool { return q.Name == name })
	if i < 0 {
		t.Fatalf("port %s is not among %+v", name, p.List())
	}
	return p.List()[i]
}

func needRoot(t *testing.T) {
	t.Helper()
	netnstest.NeedBPF(t)
}

func TestGuardedThenJoinedThenRaised(t *testing.T) {
	needRoot(t)
	netnstest.Do(t, func() {
		veth(t, "n1")
		veth(t, "u0")
		g := newFakeGuard()
		p := testPorts(t, Config{Nodes: []string{"n?"}, Uplinks: []string{"u0", "u9"}}, g)
		must(t, p.Pass())
		for _, name := range []string{"n1", "u0"} {
			if q := find(t, p, name); !q.Ready() || !q.Bridged || !up(t, name) {
				t.Errorf("port %+v", q)
			}
			if l := link(t, name); l.Attrs().MasterIndex != link(t, "br0").Attrs().Index {
				t.Errorf("%s is not in the bridge", name)
			}
		}
		if q := find(t, p, "u9"); q.Problem == "" || q.Index != 0 {
			t.Errorf("missing link: %+v", q)
		}
		if up(t, "n1p") || link(t, "n1p").Attrs().MasterIndex != 0 {
			t.Error("a link that no pattern matches was touched")
		}
		want := []string{"attach n1 node while down", "attach u0 uplink while down"}
		if slices.Sort(g.log); !slices.Equal(g.log, want) {
			t.Errorf("guard was asked %q, want %q", g.log, want)
		}
		flags, err := bridgePorts()
		must(t, err)
		if f := flags[link(t, "n1").Attrs().Index]; f != (brport{}) {
			t.Errorf("node port floods or learns: %+v", f)
		}
		if f := flags[link(t, "u0").Attrs().Index]; f.learning || !f.isolated || !f.flood {
			t.Errorf("uplink: %+v", f)
		}
		b := link(t, "br0").(*netlink.Bridge)
		if b.Alias != BridgeAlias || b.HardwareAddr.String() != "02:00:00:00:00:bb" || b.Flags&net.FlagUp == 0 {
			t.Errorf("bridge %+v", b.LinkAttrs)
		}
	})
}

func TestAPassThatFindsAllInOrderChangesNothing(t *testing.T) {
	needRoot(t)
	netnstest.Do(t, func() {
		veth(t, "n1")
		p := testPorts(t, Config{Nodes: []string{"n1"}}, newFakeGuard())
		must(t, p.Pass())
		must(t, p.Pass()) // sees what it did itself
		updates, done := make(chan netlink.LinkUpdate, 100), make(chan struct{})
		defer close(done)
		must(t, netlink.LinkSubscribe(updates, done))
		for range 3 {
			must(t, p.Pass())
		}
		// A change of another link ends what the passes may have caused.
		must(t, netlink.LinkSetUp(link(t, "n1p")))
		for u := range updates {
			if u.Attrs().Name == "n1p" {
				break
			}
			t.Errorf("a pass changed %s", u.Attrs().Name)
		}
	})
}

func TestFloodingThatSomebodyTurnsOnIsTurnedOff(t *testing.T) {
	needRoot(t)
	netnstest.Do(t, func() {
		index := veth(t, "n1").Attrs().Index
		p := testPorts(t, Config{Nodes: []string{"n1"}}, newFakeGuard())
		must(t, p.Pass())
		must(t, setBridgePort(index, brport{flood: true, learning: true}))
		must(t, p.Pass())
		flags, err := bridgePorts()
		must(t, err)
		if flags[index] != (brport{}) {
			t.Errorf("node port floods or learns: %+v", flags[index])
		}
	})
}

func TestUnguardedPortIsTakenDownFirst(t *testing.T) {
	needRoot(t)
	netnstest.Do(t, func() {
		l := veth(t, "n1")
		must(t, netlink.LinkSetUp(l))
		g := newFakeGuard()
		p := testPorts(t, Config{Nodes: []string{"n1"}}, g)
		must(t, p.Pass())
		if p.FoundUnguarded() != 1 || g.log[0] != "attach n1 node while down" {
			t.Errorf("found %d, guard was asked %q", p.FoundUnguarded(), g.log)
		}
		if !find(t, p, "n1").Ready() || !up(t, "n1") {
			t.Error("port was not raised afterwards")
		}
		// Somebody takes the programs off.
		g.set(func() { delete(g.attached, l.Attrs().Index) })
		if err := p.Guarded(); !errors.Is(err, maps.ErrUnguarded) {
			t.Errorf("guarded although programs are off: %v", err)
		}
		must(t, p.Pass())
		if p.FoundUnguarded() != 2 || g.log[1] != "attach n1 node while down" || !up(t, "n1") || p.Guarded() != nil {
			t.Errorf("found %d, guard was asked %q", p.FoundUnguarded(), g.log)
		}
	})
}

func TestAPortThatCannotBeGuardedStaysDown(t *testing.T) {
	needRoot(t)
	netnstest.Do(t, func() {
		l := veth(t, "n1")
		must(t, netlink.LinkSetUp(l))
		g := newFakeGuard()
		g.refuse = errors.New("no room, as the test wants it")
		p := testPorts(t, Config{Nodes: []string{"n1"}}, g)
		must(t, p.Pass())
		if q := find(t, p, "n1"); q.Guarded || q.Ready() || !strings.Contains(q.Problem, "no room") || up(t, "n1") || link(t, "n1").Attrs().MasterIndex != 0 {
			t.Errorf("port %+v", q)
		}
		if err := p.Guarded(); !errors.Is(err, ErrNoPort) {
			t.Errorf("no port enforces anything: %v", err)
		}
		must(t, netlink.LinkSetUp(l))
		if p.Guarded() == nil {
			t.Error("an unguarded port that is up was not noticed")
		}
		g.set(func() { g.refuse = nil })
		must(t, p.Pass())
		if !find(t, p, "n1").Ready() || p.Guarded() != nil {
			t.Errorf("port %+v after it could be guarded", find(t, p, "n1"))
		}
	})
}

// What is guarded has to be all that forwards, and by these maps.
func TestGuardedLooksAtEveryLink(t *testing.T) {
	needRoot(t)
	netnstest.Do(t, func() {
		veth(t, "n1")
		veth(t, "x1")
		g := newFakeGuard()
		empty := testPorts(t, Config{Nodes: []string{"gone"}}, g)
		must(t, empty.Pass())
		if err := empty.Guarded(); !errors.Is(err, ErrNoPort) {
			t.Errorf("without a port: %v", err)
		}
		p := testPorts(t, Config{Nodes: []string{"n?"}}, g)
		must(t, p.Pass())
		must(t, p.Guarded())

		// A port that can't be guarded forwards nothing while it is down.
		g.set(func() { g.refuse = errors.New("no room, as the test wants it") })
		veth(t, "n2")
		must(t, p.Pass())
		must(t, p.Guarded())
		other := errors.New("another map")
		for _, name := range []string{"n2", "n1", "x1", "x1p"} { // down, up, and none of ours
			g.set(func() { g.others[name] = other })
			if err := p.Guarded(); !errors.Is(err, other) {
				t.Errorf("another data plane on %s: %v", name, err)
			}
			g.set(func() { delete(g.others, name) })
		}

		must(t, netlink.LinkSetMaster(link(t, "x1"), link(t, "br0")))
		must(t, p.Guarded()) // it is down
		must(t, netlink.LinkSetUp(link(t, "x1")))
		if err := p.Guarded(); !errors.Is(err, maps.ErrUnguarded) {
			t.Errorf("an unguarded port of the bridge: %v", err)
		}
		x := link(t, "x1").Attrs().Index
		g.set(func() { g.attached[x], g.earlier[x] = maps.RoleNode, true })
		must(t, p.Guarded()) // an earlier configuration named it
	})
}

func TestAdoptionLeavesALinkUp(t *testing.T) {
	needRoot(t)
	netnstest.Do(t, func() {
		l := veth(t, "n1")
		g := newFakeGuard()
		cfg := Config{Nodes: []string{"?1"}}
		must(t, testPorts(t, cfg, g).Pass())
		g.earlier[l.Attrs().Index] = true
		// Meanwhile the default route moved there; a glob leaves a port that is guarded already as it is.
		must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Scope: unix.RT_SCOPE_LINK, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}}))
		g.log = nil
		p := testPorts(t, cfg, g)
		must(t, p.Pass())
		if p.FoundUnguarded() != 0 || !slices.Equal(g.log, []string{"attach n1 node while up"}) || !find(t, p, "n1").Ready() {
			t.Errorf("found %d, guard was asked %q, port %+v", p.FoundUnguarded(), g.log, find(t, p, "n1"))
		}
	})
}

func TestGlobsLeaveTheDefaultRouteAndMastersAlone(t *testing.T) {
	needRoot(t)
	netnstest.Do(t, func() {
		for _, name := range []string{"e4", "e6", "e1", "e2"} {
			veth(t, name)
		}
		route := func(name, gateway string, bits int) {
			l := link(t, name)
			must(t, netlink.LinkSetUp(l))
			must(t, netlink.LinkSetUp(link(t, name+"p")))
			dst := &net.IPNet{IP: net.ParseIP(gateway), Mask: net.CIDRMask(0, bits)}
			if bits == 32 {
				dst.IP = net.IPv4zero
			} else {
				dst.IP = net.IPv6zero
			}
			must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Scope: unix.RT_SCOPE_LINK, Dst: dst, Table: 100}))
		}
		route("e4", "0.0.0.0", 32)
		route("e6", "::", 128)
		must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "e0"}}))
		must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "other"}}))
		must(t, netlink.LinkSetMaster(link(t, "e2"), link(t, "other")))
		g := newFakeGuard()
		p := testPorts(t, Config{Nodes: []string{"e?", "lo", "*o"}, Uplinks: []string{"b*"}}, g)
		must(t, p.Pass())
		if want := []string{"attach e1 node while down"}; !slices.Equal(g.log, want) {
			t.Errorf("guard was asked %q, want %q", g.log, want)
		}
		if !up(t, "e4") || !up(t, "e6") || p.FoundUnguarded() != 0 {
			t.Error("the default route's port was touched")
		}
		// Named outright, it is taken.
		p = testPorts(t, Config{Nodes: []string{"e4"}}, newFakeGuard())
		must(t, p.Pass())
		if !find(t, p, "e4").Ready() {
			t.Errorf("named port: %+v", find(t, p, "e4"))
		}
	})
}

func TestSomebodyElseTakesAPortDown(t *testing.T) {
	needRoot(t)
	netnstest.Do(t, func() {
		l := veth(t, "n1")
		p := testPorts(t, Config{Nodes: []string{"n1"}}, newFakeGuard())
		must(t, p.Pass())
		must(t, netlink.LinkSetDown(l))
		must(t, p.Pass())
		if q := find(t, p, "n1"); q.Ready() || q.Problem == "" || up(t, "n1") {
			t.Errorf("port %+v", q)
		}
		must(t, netlink.LinkSetUp(l))
		must(t, p.Pass())
		if q := find(t, p, "n1"); !q.Ready() {
			t.Errorf("port %+v after it was raised again", q)
		}
	})
}

func TestForwardingEntries(t *testing.T) {
	needRoot(t)
	netnstest.Do(t, func() {
		a, b := veth(t, "n1").Attrs().Index, veth(t, "n2").Attrs().Index
		p := testPorts(t, Config{Nodes: []string{"n?"}}, newFakeGuard())
		must(t, p.Pass())
		m1, m2 := record.MAC{2, 0, 0, 0, 1, 1}, record.MAC{2, 0, 0, 0, 1, 2}
		must(t, p.Forward(m1, a))
		must(t, p.Forward(m1, b)) // moves it
		must(t, p.Forward(m1, b))
		expect := func(want Forwarding) {
			t.Helper()
			have, err := p.forwarding()
			must(t, err)
			if fmt.Sprint(have) != fmt.Sprint(want) {
				t.Errorf("bridge forwards %v, want %v", have, want)
			}
		}
		expect(Forwarding{m1: b})
		// An entry goes only when two sweeps in a row find that nobody wants it.
		stale, err := p.SweepForwarding(Forwarding{m2: a}, nil)
		must(t, err)
		expect(Forwarding{m1: b, m2: a})
		stale, err = p.SweepForwarding(Forwarding{m2: a}, stale)
		must(t, err)
		expect(Forwarding{m2: a})
		if len(stale) != 0 {
			t.Errorf("stale %v", stale)
		}
		// They outlive a link's going down, which would otherwise be flooding in disguise.
		must(t, netlink.LinkSetDown(link(t, "n1")))
		must(t, netlink.LinkSetUp(link(t, "n1")))
		expect(Forwarding{m2: a})
		// A port that somebody takes out of the bridge comes back, and tells so.
		must(t, netlink.LinkSetNoMaster(link(t, "n1")))
		before := find(t, p, "n1")
		must(t, p.Pass())
		if after := find(t, p, "n1"); after == before || !after.Bridged {
			t.Errorf("a port that lost its entries looks as before: %+v", after)
		}
		_, err = p.SweepForwarding(Forwarding{m2: a}, nil)
		must(t, err)
		expect(Forwarding{m2: a})
	})
}

// Run follows links that appear, are renamed and vanish.
func TestRunFollowsLinks(t *testing.T) {
	needRoot(t)
	ns := netnstest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	g := newFakeGuard()
	lists := make(chan []Port, 100)
	var p *Ports
	ns.Do(t, func() {
		var err error
		p, err = New(Config{Nodes: []string{"n?"}, Bridge: "br0", CreateBridge: true}, g, quiet, func(l []Port) { lists <- l })
		must(t, err)
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ns.Do(t, func() { _ = p.Run(ctx) })
	}()
	next := func(what string, ok func([]Port) bool) {
		t.Helper()
		timeout := time.After(10 * time.Second)
		for {
			select {
			case l := <-lists:
				if ok(l) {
					return
				}
			case <-timeout:
				t.Fatalf("never happened: %s", what)
			}
		}
	}
	do := func(f func()) { t.Helper(); ns.Do(t, f) }
	rename := func(from, to string) { // older kernels rename no link that is up
		must(t, netlink.LinkSetDown(link(t, from)))
		must(t, netlink.LinkSetName(link(t, from), to))
		must(t, netlink.LinkSetUp(link(t, to)))
	}
	do(func() { veth(t, "n1") })
	next("n1 appears", func(l []Port) bool { return len(l) == 1 && l[0].Name == "n1" && l[0].Ready() })
	do(func() { rename("n1", "n2") })
	next("n1 becomes n2", func(l []Port) bool { return len(l) == 1 && l[0].Name == "n2" && l[0].Ready() })
	do(func() { rename("n2", "other") })
	next("n2 is no port any more", func(l []Port) bool {
		return len(l) == 1 && l[0].Name == "other" && l[0].Guarded && !l[0].Ready()
	})
	do(func() { must(t, netlink.LinkDel(link(t, "other"))) })
	next("it vanishes", func(l []Port) bool { return len(l) == 0 })
	if roles, _ := g.Ports(); len(roles) != 0 {
		t.Errorf("roles %v are left behind", roles)
	}
	cancel()
	<-ended
	p.Close()
}
