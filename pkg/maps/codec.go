package maps

import (
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"dpud/pkg/record"
	"dpud/pkg/table"
)

// entry is a table entry in the form of the kernel's map.
type entry struct {
	m          *ebpf.Map
	key, value any
}

// encode returns the map, key and value of a table entry, or an error if the map can't hold it.
func (t *Tables) encode(k table.Key, v table.Value) (entry, error) {
	m := t.mapOf(k.Map)
	switch k.Map {
	case table.NodeState:
		return entry{m, datapathNodeKey{Node: uint32(k.Node)}, datapathNodeState{
			Epoch: uint64(v.Epoch), Generation: uint64(v.Generation), Revision: uint64(v.Revision),
		}}, nil
	case table.NodeTenant:
		return entry{m, datapathNodeKey{Node: uint32(k.Node)}, datapathNodeTenant{Tenant: uint32(v.Tenant), Node: uint32(k.Node)}}, nil
	case table.Endpoint4:
		if !k.Addr.Is4() {
			return entry{}, fmt.Errorf("encode %s: not an IPv4 address", k)
		}
		return entry{m, datapathEndpoint4Key{Addr: k.Addr.As4()}, encodeEndpoint(v)}, nil
	case table.Endpoint6:
		if !k.Addr.Is6() || k.Addr.Is4In6() || k.Addr.Zone() != "" {
			return entry{}, fmt.Errorf("encode %s: not an IPv6 address", k)
		}
		return entry{m, datapathEndpoint6Key{Addr: k.Addr.As16()}, encodeEndpoint(v)}, nil
	case table.EndpointMAC:
		return entry{m, datapathMacKey{Mac: k.MAC}, encodeEndpoint(v)}, nil
	case table.Service4:
		if !k.Prefix.Addr().Is4() || k.Prefix != k.Prefix.Masked() {
			return entry{}, fmt.Errorf("encode %s: not an IPv4 prefix", k)
		}
		return entry{m, datapathPrefix4{Prefixlen: uint32(k.Prefix.Bits()), Addr: k.Prefix.Addr().As4()}, datapathService{Mac: v.MAC}}, nil
	case table.Service6:
		if !k.Prefix.Addr().Is6() || k.Prefix.Addr().Is4In6() || k.Prefix != k.Prefix.Masked() {
			return entry{}, fmt.Errorf("encode %s: not an IPv6 prefix", k)
		}
		return entry{m, datapathPrefix6{Prefixlen: uint32(k.Prefix.Bits()), Addr: k.Prefix.Addr().As16()}, datapathService{Mac: v.MAC}}, nil
	}
	return entry{}, fmt.Errorf("encode %s: no such map", k)
}

// checkValue refuses what no program would believe.
func checkValue(k table.Key, v table.Value) error {
	switch k.Map {
	case table.NodeState:
		return nil
	case table.NodeTenant:
		if v.Tenant == 0 || v.Node == 0 || v.Node != k.Node {
			return fmt.Errorf("put %s: tenant %d of node %d is no assignment of that node", k, v.Tenant, v.Node)
		}
	case table.Service4, table.Service6:
		if !v.MAC.IsUnicast() {
			return fmt.Errorf("put %s: MAC %s is not one station's", k, v.MAC)
		}
	default:
		if v.Node == 0 || v.Ifindex == 0 || v.VLAN > 4094 || !v.MAC.IsUnicast() {
			return fmt.Errorf("put %s: node %d, ifindex %d, VLAN %d, MAC %s is no endpoint", k, v.Node, v.Ifindex, v.VLAN, v.MAC)
		}
	}
	return nil
}

func encodeEndpoint(v table.Value) datapathEndpoint {
	return datapathEndpoint{Node: uint32(v.Node), Ifindex: v.Ifindex, Vlan: v.VLAN, Mac: v.MAC}
}

func decodeNodeTenant(k datapathNodeKey, v datapathNodeTenant) (table.Key, table.Value) {
	return table.Key{Map: table.NodeTenant, Node: record.NodeID(k.Node)},
		table.Value{Node: record.NodeID(v.Node), Tenant: record.TenantID(v.Tenant)}
}

func decodeNodeState(k datapathNodeKey, v datapathNodeState) (table.Key, table.Value) {
	return table.Key{Map: table.NodeState, Node: record.NodeID(k.Node)}, table.Value{
		Epoch: record.Epoch(v.Epoch), Generation: record.Generation(v.Generation), Revision: record.Revision(v.Revision),
	}
}

func decodeEndpoint(v datapathEndpoint) table.Value {
	return table.Value{Node: record.NodeID(v.Node), Ifindex: v.Ifindex, VLAN: v.Vlan, MAC: v.Mac}
}

func decodeEndpoint4(k datapathEndpoint4Key, v datapathEndpoint) (table.Key, table.Value) {
	return table.Key{Map: table.Endpoint4, Addr: netip.AddrFrom4(k.Addr)}, decodeEndpoint(v)
}

func decodeEndpoint6(k datapathEndpoint6Key, v datapathEndpoint) (table.Key, table.Value) {
	return table.Key{Map: table.Endpoint6, Addr: netip.AddrFrom16(k.Addr)}, decodeEndpoint(v)
}

func decodeEndpointMAC(k datapathMacKey, v datapathEndpoint) (table.Key, table.Value) {
	return table.Key{Map: table.EndpointMAC, MAC: k.Mac}, decodeEndpoint(v)
}

func decodeService4(k datapathPrefix4, v datapathService) (table.Key, table.Value) {
	p := netip.PrefixFrom(netip.AddrFrom4(k.Addr), int(k.Prefixlen))
	return table.Key{Map: table.Service4, Prefix: p}, table.Value{MAC: v.Mac}
}

func decodeService6(k datapathPrefix6, v datapathService) (table.Key, table.Value) {
	p := netip.PrefixFrom(netip.AddrFrom16(k.Addr), int(k.Prefixlen))
	return table.Key{Map: table.Service6, Prefix: p}, table.Value{MAC: v.Mac}
}
