// Package table is the plain form of what the kernel's maps hold: one [Key] and one [Value] for each map
// entry.
//
// It is what the agent decides on and what package maps reads and writes; it touches no kernel itself.
package table

import (
	"cmp"
	"fmt"
	"net/netip"

	"dpud/pkg/record"
)

// Map names a kernel map that holds entries of nodes or services.
type Map uint8

// The maps, named as in bpf/maps.h and as pinned.
const (
	NodeState   Map = iota + 1 // node → epoch, generation, revision; for confirming and adopting
	Endpoint4                  // IPv4 address → endpoint
	Endpoint6                  // IPv6 address → endpoint
	EndpointMAC                // MAC → endpoint
	NodeTenant                 // node → tenant: the isolation map, the only authority on the packet path
	Service4                   // IPv4 prefix → service
	Service6                   // IPv6 prefix → service
)

var mapNames = [...]string{"", "node_state", "endpoint4", "endpoint6", "endpoint_mac", "node_tenant", "services4", "services6"}

func (m Map) String() string {
	if int(m) < len(mapNames) {
		return mapNames[m]
	}
	return fmt.Sprintf("map(%d)", uint8(m))
}

// Key is the key of one map entry. Fields that the map does not use are zero.
type Key struct {
	Map    Map
	Node   record.NodeID // NodeState, NodeTenant
	Addr   netip.Addr    // Endpoint4, Endpoint6
	MAC    record.MAC    // EndpointMAC
	Prefix netip.Prefix  // Service4, Service6
}

func (k Key) String() string {
	switch k.Map {
	case NodeState, NodeTenant:
		return fmt.Sprintf("%s[%d]", k.Map, k.Node)
	case Endpoint4, Endpoint6:
		return fmt.Sprintf("%s[%s]", k.Map, k.Addr)
	case EndpointMAC:
		return fmt.Sprintf("%s[%s]", k.Map, k.MAC)
	default:
		return fmt.Sprintf("%s[%s]", k.Map, k.Prefix)
	}
}

// Value is the value of one map entry. Fields that the map does not use are zero.
type Value struct {
	Node   record.NodeID   // endpoints, NodeTenant: whose entry this is
	Tenant record.TenantID // NodeTenant

	Epoch      record.Epoch      // NodeState
	Generation record.Generation // NodeState
	Revision   record.Revision   // NodeState

	Ifindex uint32     // endpoints: the port behind which the node sits
	VLAN    uint16     // endpoints: its VLAN there, 0 untagged
	MAC     record.MAC // endpoints, services: the neighbour's MAC
}

// Tables is a set of map entries, at most one for each key, as a map in the kernel.
type Tables map[Key]Value

// EndpointKey returns the key of an address's endpoint.
func EndpointKey(a netip.Addr) Key {
	a = a.Unmap()
	if a.Is4() {
		return Key{Map: Endpoint4, Addr: a}
	}
	return Key{Map: Endpoint6, Addr: a}
}

// ServiceKey returns the key of a prefix's service.
func ServiceKey(p netip.Prefix) Key {
	p = p.Masked()
	if p.Addr().Is4() {
		return Key{Map: Service4, Prefix: p}
	}
	return Key{Map: Service6, Prefix: p}
}

// CompareKeys orders keys, for stable listings: by map, then by key.
func CompareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Map, b.Map), cmp.Compare(a.Node, b.Node), a.Addr.Compare(b.Addr),
		cmp.Compare(a.MAC.String(), b.MAC.String()), cmp.Compare(a.Prefix.String(), b.Prefix.String()))
}
