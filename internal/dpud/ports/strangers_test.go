package ports

import (
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"dpud/internal/netnstest"
	"dpud/pkg/maps"
	"dpud/pkg/record"
)

// Nothing judges what a link that is no port sends into the bridge: it is taken out, and reported.
func TestStrangersLeaveTheBridge(t *testing.T) {
	needRoot(t)
	netnstest.Do(t, func() {
		veth(t, "n1")
		p := testPorts(t, Config{Nodes: []string{"n1"}}, newFakeGuard())
		must(t, p.Pass())
		stranger := veth(t, "foo")
		must(t, netlink.LinkSetMaster(stranger, link(t, "br0")))
		must(t, netlink.LinkSetUp(stranger))
		must(t, p.Pass())
		if master := link(t, "foo").Attrs().MasterIndex; master != 0 {
			t.Errorf("foo is still in bridge %d", master)
		}
		if p.FoundUnguarded() != 1 {
			t.Errorf("found %d unguarded, want 1", p.FoundUnguarded())
		}
		if link(t, "n1").Attrs().MasterIndex == 0 || !find(t, p, "n1").Ready() {
			t.Error("the port was taken out with it")
		}
	})
}

// The bridge never moves a node's entry to a port that sends with its MAC.
func TestForwardingEntriesAreSticky(t *testing.T) {
	needRoot(t)
	netnstest.Do(t, func() {
		l := veth(t, "n1")
		p := testPorts(t, Config{Nodes: []string{"n1"}}, newFakeGuard())
		must(t, p.Pass())
		mac := record.MAC{2, 0, 0, 0, 1, 1}
		must(t, p.Forward(mac, l.Attrs().Index))
		entries, err := netlink.NeighList(l.Attrs().Index, unix.AF_BRIDGE)
		must(t, err)
		for _, e := range entries {
			if record.MAC(e.HardwareAddr) == mac {
				if e.Flags&ntfSticky == 0 {
					t.Errorf("flags %#x, want sticky", e.Flags)
				}
				return
			}
		}
		t.Errorf("no entry of %s among %v", mac, entries)
	})
}

// A port of an earlier run that no name matches any more is guarded and looked after all the same.
func TestAPortThatLeftTheConfigurationStaysGuarded(t *testing.T) {
	needRoot(t)
	netnstest.Do(t, func() {
		veth(t, "n1")
		left := veth(t, "x2")
		must(t, netlink.LinkSetUp(left))
		g := newFakeGuard()
		g.attached[left.Attrs().Index] = maps.RoleNode
		g.earlier[left.Attrs().Index] = true
		p := testPorts(t, Config{Nodes: []string{"n1"}}, g)
		must(t, p.Pass())
		if !find(t, p, "x2").Guarded || p.FoundUnguarded() != 0 {
			t.Errorf("port %+v, %d found unguarded", find(t, p, "x2"), p.FoundUnguarded())
		}
		// Its programs vanish: it is taken down before it is guarded again.
		g.set(func() { delete(g.earlier, left.Attrs().Index); delete(g.attached, left.Attrs().Index) })
		must(t, p.Pass())
		if p.FoundUnguarded() != 1 {
			t.Errorf("%d found unguarded, want 1", p.FoundUnguarded())
		}
	})
}

// A role that outlived its link does not make a port of the link that has its index now.
func TestARoleAloneMakesNoPort(t *testing.T) {
	needRoot(t)
	netnstest.Do(t, func() {
		veth(t, "n1")
		other := veth(t, "mgmt0")
		must(t, netlink.LinkSetUp(other))
		g := newFakeGuard()
		g.attached[other.Attrs().Index] = maps.RoleNode
		p := testPorts(t, Config{Nodes: []string{"n1"}}, g)
		must(t, p.Pass())
		if !up(t, "mgmt0") || p.FoundUnguarded() != 0 {
			t.Errorf("mgmt0 was taken: up %t, %d found unguarded", up(t, "mgmt0"), p.FoundUnguarded())
		}
	})
}
