package maps

import (
	"fmt"
	"testing"
	"time"

	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"dpud/internal/netnstest"
	"dpud/internal/packet"
)

func passAll() asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}
}

// Real packets through a bridge: XDP where they come in, the egress check where they go out, with the VLAN tag
// kept beside the packet as the kernel does.
func TestBridge(t *testing.T) {
	for name, noTCX := range map[string]bool{"newest": false, "clsact": true} {
		t.Run(name, func(t *testing.T) {
			netnstest.NeedBPF(t)
			pin := testPin(t)
			netnstest.Do(t, func() { testBridge(t, pin, noTCX) })
		})
	}
}

func testBridge(t *testing.T, pin string, noTCX bool) {
	d := loadPin(t, pin)
	d.noTCX = noTCX
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge"}}
	if err := netlink.LinkAdd(bridge); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		t.Fatal(err)
	}
	addPort := func(name string) uint32 {
		port := addVeth(t, name)
		if err := netlink.LinkSetMaster(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: port.Index}}, bridge); err != nil {
			t.Fatal(err)
		}
		attach(t, d, port, RoleNode)
		return uint32(port.Index)
	}
	a, b := addPort("a"), addPort("b")
	sender, untagged := node(1, 1, a, 0), node(2, 1, b, 0)
	tagged, tagged2 := node(3, 1, a, 10), node(4, 1, b, 20)
	foreign := node(5, 2, b, 0)
	for _, s := range []station{sender, untagged, tagged, tagged2, foreign} {
		assign(t, d, s)
	}
	wire := newWire(t, "a_peer")
	for _, c := range []struct {
		name  string
		frame []byte
		want  map[string]uint64
	}{
		{"untagged", udp4(sender, untagged), map[string]uint64{"ingress passed": 1, "egress passed": 1}},
		{"push", udp4(sender, tagged2), map[string]uint64{"ingress passed": 1, "egress passed": 1}},
		{"pop", udp4(tagged, untagged), map[string]uint64{"ingress passed": 1, "egress passed": 1}},
		{"translate", udp6(tagged, tagged2), map[string]uint64{"ingress passed": 1, "egress passed": 1}},
		{"request", request(sender, untagged), map[string]uint64{"ingress passed": 1, "egress passed": 1}},
		{"request into a VLAN", request(sender, tagged2), map[string]uint64{"ingress passed": 1, "egress passed": 1}},
		{"solicitation", solicit(tagged, linkLocal1, tagged2.v6), map[string]uint64{"ingress passed": 1, "egress passed": 1}},
		{"long", sender.to(untagged).IP(sender.v4, untagged.v4, packet.ProtoUDP, make([]byte, 1400)), map[string]uint64{"ingress passed": 1, "egress passed": 1}},
		{"other tenant", udp4(sender, foreign), map[string]uint64{"ingress tenant_mismatch": 1}},
		{"spoofed", udp4(untagged, sender), map[string]uint64{"ingress source_spoofed": 1}},
	} {
		before := snapshot(t, d)
		wire.send(t, c.frame)
		await(t, c.name, func() (string, bool) {
			got := map[string]uint64{}
			for k, n := range snapshot(t, d) {
				// The kernel's own chatter (MLD, router solicitations) comes from addresses that nobody knows.
				if n.Packets != before[k].Packets && k != "ingress source_unknown" && k != "egress source_unknown" && k != "ingress nd_type" && k != "egress nd_type" {
					got[k] = n.Packets - before[k].Packets
				}
			}
			return fmt.Sprint(got), fmt.Sprint(got) == fmt.Sprint(c.want)
		})
	}
}

// await polls a condition that says what it sees.
func await(t *testing.T, what string, condition func() (string, bool)) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		seen, ok := condition()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%s: counted %s", what, seen)
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// wire sends raw frames out of an interface.
type wire struct {
	fd   int
	addr unix.SockaddrLinklayer
}

func newWire(t *testing.T, iface string) *wire {
	t.Helper()
	l, err := netlink.LinkByName(iface)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return &wire{fd, unix.SockaddrLinklayer{Ifindex: l.Attrs().Index}}
}

func (w *wire) send(t *testing.T, frame []byte) {
	t.Helper()
	if err := unix.Sendto(w.fd, frame, 0, &w.addr); err != nil {
		t.Fatal(err)
	}
}
