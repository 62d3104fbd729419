package maps

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"dpud/internal/netnstest"
	"dpud/internal/packet"
	"dpud/pkg/record"
	"dpud/pkg/table"
)

// here is the port on which BPF_PROG_TEST_RUN lets packets in: loopback's index in any network namespace.
const here = 1

// uplinkPort is the rack's uplink.
const uplinkPort = 9

// station is one end of a packet.
type station struct {
	node   record.NodeID // 0: no node's
	tenant record.TenantID
	port   uint32
	vlan   uint16
	mac    record.MAC
	v4, v6 netip.Addr
}

func node(id record.NodeID, tenant record.TenantID, port uint32, vlan uint16) station {
	return station{
		node: id, tenant: tenant, port: port, vlan: vlan,
		mac: record.MAC{2, 0, 0, 0, 0, byte(id)},
		v4:  netip.AddrFrom4([4]byte{10, 0, 0, byte(id)}),
		v6:  netip.MustParseAddr(fmt.Sprintf("fd00::%d", id)),
	}
}

func other(id byte, v4, v6 string) station {
	return station{mac: record.MAC{2, 1, 0, 0, 0, id}, v4: netip.MustParseAddr(v4), v6: netip.MustParseAddr(v6)}
}

// The rack. Ports 2 to 5 face nodes, 9 is an uplink; what port 1 is, each test says.
var (
	n1       = node(1, 1, here, 0)
	n2       = node(2, 1, 2, 0)
	n3       = node(3, 2, 3, 0)
	n4       = node(4, 1, here, 10) // shares n1's port
	n5       = node(5, 1, 4, 20)
	n6       = node(6, 0, 5, 0) // not assigned
	n7       = node(7, 1, 9, 0) // of another DPU, behind the uplink
	n8       = node(8, 1, here, 0)
	unknown  = node(99, 0, 0, 0)
	service  = other(1, "10.9.0.1", "fd09::1") // one address of the service's prefixes
	service2 = other(4, "10.8.0.1", "fd08::1") // of another service, behind another neighbour
	service3 = other(5, "10.7.0.1", "fd07::1") // of a service that a node gives
	dpu      = other(2, "192.0.2.1", "fd02::1")
	peer     = other(3, "192.0.2.2", "fd02::2") // another DPU or controller
)

var (
	any4       = netip.IPv4Unspecified()
	any6       = netip.IPv6Unspecified()
	linkLocal1 = netip.MustParseAddr("fe80::1")
	linkLocal9 = netip.MustParseAddr("fe80::9")
)

// loadTest loads a data plane into a folder that the test's end removes.
func loadTest(t testing.TB) *Datapath {
	t.Helper()
	netnstest.NeedBPF(t)
	d, err := Load(testPin(t), Options{MaxNodes: 64})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// testPin returns a pin folder of the test's own.
func testPin(t testing.TB) string {
	pin := filepath.Join(bpffs, "dpud_test_"+strings.NewReplacer("/", "_", ".", "_", "#", "_").Replace(t.Name()))
	if err := Unload(pin); err != nil { // of a run that was killed
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Unload(pin); err != nil {
			t.Error(err)
		}
	})
	return pin
}

func put(t testing.TB, d *Datapath, k table.Key, v table.Value) {
	t.Helper()
	if err := d.Put(k, v); err != nil {
		t.Fatal(err)
	}
}

// assign writes a node's entries, all but the tenant if it has none.
func assign(t testing.TB, d *Datapath, s station) {
	t.Helper()
	endpoint := table.Value{Node: s.node, Ifindex: s.port, VLAN: s.vlan, MAC: s.mac}
	put(t, d, table.Key{Map: table.NodeState, Node: s.node}, table.Value{Epoch: 1, Generation: 1, Revision: 1})
	put(t, d, table.EndpointKey(s.v4), endpoint)
	put(t, d, table.EndpointKey(s.v6), endpoint)
	put(t, d, table.Key{Map: table.EndpointMAC, MAC: s.mac}, endpoint)
	if s.tenant != 0 {
		put(t, d, table.Key{Map: table.NodeTenant, Node: s.node}, table.Value{Node: s.node, Tenant: s.tenant})
	}
}

// makeRack loads a data plane with the rack in it; port 1 has the given role.
func makeRack(t testing.TB, role Role) *Datapath {
	t.Helper()
	d := loadTest(t)
	ports := map[int]Role{here: role, 2: RoleNode, 3: RoleNode, 4: RoleNode, 5: RoleNode, 9: RoleUplink}
	for ifindex, role := range ports {
		if err := d.SetPort(ifindex, role); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []station{n1, n2, n3, n4, n5, n6, n7, n8} {
		assign(t, d, s)
	}
	for _, p := range []string{"10.9.0.0/24", "fd09::/64"} {
		put(t, d, table.ServiceKey(netip.MustParsePrefix(p)), table.Value{MAC: service.mac})
	}
	put(t, d, table.ServiceKey(netip.MustParsePrefix("fd08::/64")), table.Value{MAC: service2.mac})
	put(t, d, table.ServiceKey(netip.MustParsePrefix("fd07::/64")), table.Value{MAC: n1.mac})
	if err := d.SetLocal([]netip.Addr{dpu.v4, dpu.v6}); err != nil {
		t.Fatal(err)
	}
	return d
}

// to returns the Ethernet header of a frame between two stations, in the sender's VLAN.
func (s station) to(d station) packet.Frame {
	return packet.Frame{Dst: d.mac, Src: s.mac, Tags: packet.VLAN(s.vlan)}
}

func udp4(from, to station) []byte {
	return from.to(to).UDP(netip.AddrPortFrom(from.v4, 1), netip.AddrPortFrom(to.v4, 2), []byte("0123456789"))
}

func udp6(from, to station) []byte {
	return from.to(to).UDP(netip.AddrPortFrom(from.v6, 1), netip.AddrPortFrom(to.v6, 2), []byte("0123456789"))
}

// edit returns the frame with bytes changed at an offset.
func edit(frame []byte, offset int, b ...byte) []byte {
	frame = bytes.Clone(frame)
	copy(frame[offset:], b)
	return frame
}

// verdictCase is a packet in, and what shall become of it.
type verdictCase struct {
	name string
	in   []byte
	want string // a reason's label
	out  []byte // of a packet that passes; nil: unchanged
}

// judge runs cases through one program and compares verdict, packet and every counter.
func judge(t *testing.T, d *Datapath, hook string, cases []verdictCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			before := snapshot(t, d)
			passed, out := run(t, d, hook, c.in)
			after := snapshot(t, d)
			got := map[string]Counter{}
			for k, n := range after {
				n.Packets -= before[k].Packets
				n.Bytes -= before[k].Bytes
				if n.Packets != 0 || n.Bytes != 0 {
					got[k] = n
				}
			}
			n, ok := got[hook+" "+c.want]
			if !ok || len(got) != 1 || n.Packets != 1 || n.Bytes != uint64(len(c.in)) {
				t.Errorf("want one packet of %d bytes counted as %q, got %v", len(c.in), hook+" "+c.want, got)
			}
			if want := strings.HasPrefix(c.want, "passed"); passed != want {
				t.Errorf("passed: %v, want %v", passed, want)
			}
			if c.out == nil {
				c.out = c.in
			}
			if passed && !bytes.Equal(out, c.out) {
				t.Errorf("packet out:\n got %x\nwant %x", out, c.out)
			}
		})
	}
}

// run sends one frame through a program, and says whether it passed and what came out.
func run(t testing.TB, d *Datapath, hook string, frame []byte) (bool, []byte) {
	t.Helper()
	return runFrom(t, d, hook, frame, cameIn(t, d, frame))
}

// runFrom is run for a frame that, at the egress, came in on a port.
func runFrom(t testing.TB, d *Datapath, hook string, frame []byte, origin int) (bool, []byte) {
	t.Helper()
	program, pass, drop := d.programs.DpudIngress, uint32(2), uint32(1) // XDP_PASS, XDP_DROP
	if hook == "egress" {
		program, pass, drop = d.programs.DpudEgress, ^uint32(0), uint32(2) // TC_ACT_UNSPEC, TC_ACT_SHOT
	}
	opts := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}
	if hook == "egress" {
		ctx := make([]byte, 192) // struct __sk_buff, whose ingress_ifindex is at 36
		binary.NativeEndian.PutUint32(ctx[36:], uint32(origin))
		opts.Context = ctx
	}
	action, err := program.Run(&opts)
	if err != nil {
		t.Fatal(err)
	}
	if action != pass && action != drop {
		t.Fatalf("action %d", action)
	}
	return action == pass, opts.DataOut
}

// cameIn returns the port that a frame's sender sits behind, or the uplink.
func cameIn(t testing.TB, d *Datapath, frame []byte) int {
	t.Helper()
	if len(frame) < 12 {
		return uplinkPort
	}
	v, ok, err := d.Get(table.Key{Map: table.EndpointMAC, MAC: record.MAC(frame[6:12])})
	if err != nil {
		t.Fatal(err)
	}
	if ok {
		return int(v.Ifindex)
	}
	return uplinkPort
}

func snapshot(t testing.TB, d *Datapath) map[string]Counter {
	t.Helper()
	counters, err := d.Counters()
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]Counter{}
	for _, c := range counters {
		m[c.Hook+" "+c.Reason.Label()] = c
	}
	return m
}
