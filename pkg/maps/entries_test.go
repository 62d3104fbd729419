package maps

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"dpud/pkg/record"
	"dpud/pkg/table"
)

// entries has one entry of each map.
func entries() table.Tables {
	endpoint := table.Value{Node: 7, Ifindex: 3, VLAN: 20, MAC: record.MAC{2, 0, 0, 0, 0, 7}}
	return table.Tables{
		{Map: table.NodeState, Node: 7}:                                 {Epoch: 1 << 40, Generation: 2, Revision: 3},
		{Map: table.NodeTenant, Node: 7}:                                {Node: 7, Tenant: 9},
		table.EndpointKey(netip.MustParseAddr("10.1.2.3")):              endpoint,
		table.EndpointKey(netip.MustParseAddr("fd00::1:2")):             endpoint,
		{Map: table.EndpointMAC, MAC: endpoint.MAC}:                     endpoint,
		table.ServiceKey(netip.MustParsePrefix("10.9.0.0/16")):          {MAC: record.MAC{2, 1, 0, 0, 0, 1}},
		table.ServiceKey(netip.MustParsePrefix("10.9.8.0/24")):          {MAC: record.MAC{2, 1, 0, 0, 0, 2}},
		table.ServiceKey(netip.MustParsePrefix("fd09:0:0:1::/64")):      {MAC: record.MAC{2, 1, 0, 0, 0, 2}},
		table.ServiceKey(netip.MustParsePrefix("::/0")):                 {MAC: record.MAC{2, 1, 0, 0, 0, 3}},
		table.ServiceKey(netip.MustParsePrefix("2001:db8::1/128")):      {MAC: record.MAC{2, 1, 0, 0, 0, 3}},
		{Map: table.NodeTenant, Node: 1 << 31}:                          {Node: 1 << 31, Tenant: 1 << 31},
		{Map: table.NodeState, Node: 1 << 31}:                           {Epoch: 1, Generation: 1, Revision: 1},
		table.EndpointKey(netip.MustParseAddr("255.255.255.254")):       endpoint,
		table.EndpointKey(netip.MustParseAddr("2001:db8:1:2:3:4:5:ff")): endpoint,
	}
}

var compareTables = cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})}

func readBack(t *testing.T, tables *Tables) table.Tables {
	t.Helper()
	have, err := tables.Read()
	if err != nil {
		t.Fatal(err)
	}
	return have
}

func neighbours(t *testing.T, d *Datapath) []record.MAC {
	t.Helper()
	var macs []record.MAC
	it := d.maps.ServiceMac.Iterate()
	var (
		k datapathMacKey
		v datapathService
	)
	for it.Next(&k, &v) {
		macs = append(macs, k.Mac)
	}
	slices.SortFunc(macs, func(a, b record.MAC) int { return slices.Compare(a[:], b[:]) })
	return macs
}

func TestEntries(t *testing.T) {
	d := loadTest(t)
	want := entries()
	for k, v := range want {
		put(t, d, k, v)
	}
	if diff := cmp.Diff(want, readBack(t, d.Tables), compareTables); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	for k, v := range want {
		got, ok, err := d.Get(k)
		if err != nil || !ok || got != v {
			t.Errorf("get %s: %+v, %v, %v; want %+v", k, got, ok, err, v)
		}
		if err := d.Put(k, v); k.Map == table.NodeState && err != nil {
			t.Errorf("put %s again: %v, want it replaced", k, err)
		} else if k.Map != table.NodeState && !errors.Is(err, ErrExists) {
			t.Errorf("put %s again: %v, want ErrExists", k, err)
		}
	}
	if got := neighbours(t, d); len(got) != 3 {
		t.Errorf("neighbours of services: %v, want 3", got)
	}
	for k := range want {
		for range 2 { // the second time it is absent, which is no error
			if err := d.Delete(k); err != nil {
				t.Fatal(err)
			}
		}
		if _, ok, err := d.Get(k); ok || err != nil {
			t.Errorf("get %s after deletion: %v, %v", k, ok, err)
		}
		delete(want, k)
		if diff := cmp.Diff(want, readBack(t, d.Tables), compareTables); diff != "" {
			t.Fatalf("after deletion of %s (-want +got):\n%s", k, diff)
		}
	}
	if got := neighbours(t, d); len(got) != 0 {
		t.Errorf("neighbours of no services: %v", got)
	}
}

// A prefix that only a shorter one covers is absent.
func TestServicePrefixIsExact(t *testing.T) {
	d := loadTest(t)
	long, short := netip.MustParsePrefix("10.9.8.0/24"), netip.MustParsePrefix("10.0.0.0/8")
	put(t, d, table.ServiceKey(short), table.Value{MAC: service.mac})
	if _, ok, err := d.Get(table.ServiceKey(long)); ok || err != nil {
		t.Errorf("get: %v, %v", ok, err)
	}
	if err := d.Delete(table.ServiceKey(long)); err != nil {
		t.Fatal(err)
	}
	if _, ok, _ := d.Get(table.ServiceKey(short)); !ok {
		t.Error("the shorter prefix is gone")
	}
	put(t, d, table.ServiceKey(long), table.Value{MAC: peer.mac})
}

func TestRefusedEntries(t *testing.T) {
	d := loadTest(t)
	endpoint := table.Value{Node: 1, Ifindex: 1, MAC: n1.mac}
	noMAC, badVLAN, noPort := endpoint, endpoint, endpoint
	noMAC.MAC = record.MAC{}
	badVLAN.VLAN = 4095
	noPort.Ifindex = 0
	for _, c := range []struct {
		k table.Key
		v table.Value
	}{
		{table.Key{Map: table.NodeTenant, Node: 1}, table.Value{Node: 2, Tenant: 1}},
		{table.Key{Map: table.NodeTenant, Node: 1}, table.Value{Node: 1}},
		{table.Key{Map: table.NodeTenant}, table.Value{Tenant: 1}},
		{table.EndpointKey(n1.v4), noMAC},
		{table.EndpointKey(n1.v6), badVLAN},
		{table.EndpointKey(n1.v6), noPort},
		{table.EndpointKey(n1.v6), table.Value{}},
		{table.Key{Map: table.Endpoint4, Addr: n1.v6}, endpoint},
		{table.Key{Map: table.Endpoint6, Addr: n1.v4}, endpoint},
		{table.Key{Map: table.Endpoint6, Addr: netip.MustParseAddr("fe80::1%eth0")}, endpoint},
		{table.Key{Map: table.Service4, Prefix: netip.MustParsePrefix("10.0.0.1/8")}, table.Value{MAC: n1.mac}},
		{table.Key{Map: table.Service4, Prefix: netip.MustParsePrefix("::/0")}, table.Value{MAC: n1.mac}},
		{table.ServiceKey(netip.MustParsePrefix("10.0.0.0/8")), table.Value{}},
		{table.Key{}, table.Value{}},
	} {
		if err := d.Put(c.k, c.v); err == nil {
			t.Errorf("put %s %+v was accepted", c.k, c.v)
		}
	}
	if have := readBack(t, d.Tables); len(have) != 0 {
		t.Errorf("in the maps: %v", have)
	}
}

func TestFullMap(t *testing.T) {
	d := loadTest(t) // for 64 nodes
	for n := record.NodeID(1); n <= 64; n++ {
		put(t, d, table.Key{Map: table.NodeTenant, Node: n}, table.Value{Node: n, Tenant: 1})
	}
	full := table.Key{Map: table.NodeTenant, Node: 65}
	if err := d.Put(full, table.Value{Node: 65, Tenant: 1}); !errors.Is(err, ErrFull) {
		t.Fatalf("put into a full map: %v", err)
	}
	if err := d.Delete(table.Key{Map: table.NodeTenant, Node: 1}); err != nil {
		t.Fatal(err)
	}
	put(t, d, full, table.Value{Node: 65, Tenant: 1})
}

// More entries than a batch of reading.
func TestReadManyEntries(t *testing.T) {
	d := loadTest(t)
	const nodes = 5000
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	big, err := Load(testPin(t), Options{MaxNodes: nodes})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = big.Close() }()
	for n := record.NodeID(1); n <= nodes; n++ {
		put(t, big, table.Key{Map: table.NodeTenant, Node: n}, table.Value{Node: n, Tenant: 1})
	}
	if have := readBack(t, big.Tables); len(have) != nodes {
		t.Errorf("read %d entries, want %d", len(have), nodes)
	}
}

// A freed entry's memory is not given away before running programs have let go of it.
func TestPutWaitsForBarrierAfterDelete(t *testing.T) {
	d := loadTest(t)
	a, b := table.Key{Map: table.NodeTenant, Node: 1}, table.Key{Map: table.NodeTenant, Node: 2}
	if !d.dirty {
		t.Error("what a predecessor deleted needs a barrier too")
	}
	put(t, d, a, table.Value{Node: 1, Tenant: 1})
	if d.dirty {
		t.Error("put did not wait")
	}
	if err := d.Delete(b); err != nil || d.dirty {
		t.Errorf("deletion of an absent entry needs no barrier (%v)", err)
	}
	if err := d.Delete(a); err != nil || !d.dirty {
		t.Errorf("deletion needs a barrier (%v)", err)
	}
	if err := d.Barrier(); err != nil || d.dirty {
		t.Errorf("barrier: %v", err)
	}
}

func TestModes(t *testing.T) {
	d := makeRack(t, RoleNode)
	broadcast := request(n1, n3)
	for _, c := range []struct {
		mode Mode
		want verdictCase
		pass bool
	}{
		{0, verdictCase{in: udp4(n1, n3), want: "tenant_mismatch"}, false},
		{Audit, verdictCase{in: udp4(n1, n3), want: "tenant_mismatch"}, true},
		{Audit, verdictCase{in: broadcast, want: "tenant_mismatch"}, true},
		{Audit, verdictCase{in: udp4(n1, n2), want: "passed"}, true},
		{Off, verdictCase{in: udp4(n1, n3), want: "passed_off"}, true},
		{Off, verdictCase{in: broadcast, want: "passed_off"}, true},
		{Enforce, verdictCase{in: udp4(n1, n3), want: "tenant_mismatch"}, false},
		{Enforce, verdictCase{in: udp4(n1, n2), want: "passed"}, true},
	} {
		if c.mode != 0 {
			if err := d.SetMode(c.mode); err != nil {
				t.Fatal(err)
			}
			if got, err := d.Mode(); got != c.mode || err != nil {
				t.Errorf("mode %s, %v; want %s", got, err, c.mode)
			}
		}
		for _, hook := range []string{"ingress", "egress"} {
			if hook == "egress" {
				c.want.in = nil
				switch c.want.want {
				case "passed":
					c.want.in = udp4(n2, n1)
				default:
					c.want.in = udp4(n3, n1)
				}
			}
			before := snapshot(t, d)
			passed, out := run(t, d, hook, c.want.in)
			if passed != c.pass {
				t.Errorf("%s %s: passed %v, want %v", c.mode, hook, passed, c.pass)
			}
			if passed && !slices.Equal(out, c.want.in) {
				t.Errorf("%s %s: the packet was changed", c.mode, hook)
			}
			key := hook + " " + c.want.want
			if n := snapshot(t, d)[key].Packets - before[key].Packets; n != 1 {
				t.Errorf("%s %s: %d packets counted as %s, want 1", c.mode, hook, n, c.want.want)
			}
		}
	}
	if err := d.SetMode(4); err == nil {
		t.Error("mode 4 was accepted")
	}
}

func TestParseMode(t *testing.T) {
	for _, m := range []Mode{Enforce, Audit, Off} {
		if got, err := ParseMode(m.String()); got != m || err != nil {
			t.Errorf("%s: %v, %v", m, got, err)
		}
	}
	if _, err := ParseMode("on"); err == nil {
		t.Error("on was accepted")
	}
}

func TestDeadline(t *testing.T) {
	d := makeRack(t, RoleNode)
	for _, c := range []struct {
		deadline uint64
		want     string
	}{{1, "lease_expired"}, {1 << 62, "passed"}, {0, "passed"}} {
		if err := d.SetDeadline(c.deadline); err != nil {
			t.Fatal(err)
		}
		judge(t, d, "ingress", []verdictCase{{"in", udp4(n1, n2), c.want, nil}})
		judge(t, d, "egress", []verdictCase{{"out", udp4(n2, n1), c.want, nil}})
	}
}

func TestLocalAndPorts(t *testing.T) {
	d := loadTest(t)
	for _, want := range [][]netip.Addr{{dpu.v4, dpu.v6, peer.v4}, {peer.v4, peer.v6}, nil} {
		if err := d.SetLocal(want); err != nil {
			t.Fatal(err)
		}
		got, err := d.Local()
		slices.SortFunc(got, netip.Addr.Compare)
		slices.SortFunc(want, netip.Addr.Compare)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("local %v, %v; want %v", got, err, want)
		}
	}
	for _, want := range []map[int]Role{{1: RoleNode, 2: RoleUplink}, {1: RoleUplink, 2: RoleUplink}, {1: RoleUplink}} {
		for _, ifindex := range []int{1, 2} {
			var err error
			if role, ok := want[ifindex]; ok {
				err = d.SetPort(ifindex, role)
			} else {
				err = d.DeletePort(ifindex)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		got, err := d.Ports()
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("ports (-want +got), %v:\n%s", err, diff)
		}
	}
}
