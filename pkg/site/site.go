// Package site reads and checks the site file: the racks, DPUs, tenants, nodes and shared services that a
// provider's network consists of.
//
// It decides whether a site is consistent and what differs between two sites. It does not decide whether a
// change is allowed while nodes are assigned (package management does), and it gives no ids. It reads no
// files: bytes come in, values and bytes go out, and every function is pure.
package site

import (
	"net/netip"
	"slices"

	"dpud/pkg/record"
)

// Site is a site file. Lists are in the order of the file, which has no meaning. What [Parse] returns and
// what [Site.Validate] finds nothing wrong with has names that are unique within a list.
type Site struct {
	Name     string    `json:"site" yaml:"site"`
	Racks    []Rack    `json:"racks" yaml:"racks"`
	DPUs     []DPU     `json:"dpus" yaml:"dpus"`
	Tenants  []Tenant  `json:"tenants" yaml:"tenants"`
	Nodes    []Node    `json:"nodes" yaml:"nodes"`
	Services []Service `json:"services" yaml:"services"`
}

// Rack is a place that shares DPUs.
type Rack struct {
	Name record.Rack `json:"name" yaml:"name"`
}

// DPU is a SmartNIC that runs dpud.
type DPU struct {
	Name record.DPU  `json:"name" yaml:"name"`
	Rack record.Rack `json:"rack" yaml:"rack"`
	// Uplinks are the DPU's interfaces behind which many nodes sit, of any tenant: the plain network between
	// DPUs, whose neighbours are trusted. Every other port faces nodes that hang on this DPU.
	Uplinks []string `json:"uplinks,omitempty" yaml:"uplinks,omitempty,flow"`
}

// Tenant is a customer to whom nodes are assigned.
type Tenant struct {
	Name string     `json:"name" yaml:"name"`
	VNI  record.VNI `json:"vni" yaml:"vni"`
}

// Node is a physical machine.
type Node struct {
	Name      string       `json:"name" yaml:"name"`
	Rack      record.Rack  `json:"rack" yaml:"rack"`
	MAC       record.MAC   `json:"mac" yaml:"mac"`
	Addresses []netip.Addr `json:"addresses" yaml:"addresses,flow"`
	// DPUs that serve the node, each with the port behind which it finds it: the one that the node hangs on
	// and, over a plain uplink, each other DPU whose nodes it shall reach (its port there is the uplink).
	DPUs []record.NodePort `json:"dpus" yaml:"dpus,flow"`
	// SharedPort allows other nodes behind the same port and VLAN; they can then only be assigned to one tenant.
	SharedPort bool `json:"shared_port,omitempty" yaml:"shared_port,omitempty"`
}

// Service is a set of prefixes that every assigned node reaches.
type Service struct {
	Name     string         `json:"name" yaml:"name"`
	Prefixes []netip.Prefix `json:"prefixes" yaml:"prefixes,flow"`
	// MAC of the neighbour on the uplink that leads to the service.
	MAC record.MAC `json:"mac" yaml:"mac"`
}

// Node returns the node of that name, or nil. It takes time linear in the number of nodes.
func (s *Site) Node(name string) *Node {
	i := slices.IndexFunc(s.Nodes, func(n Node) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Nodes[i]
}

// Tenant returns the tenant of that name, or nil. It takes time linear in the number of tenants.
func (s *Site) Tenant(name string) *Tenant {
	i := slices.IndexFunc(s.Tenants, func(t Tenant) bool { return t.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Tenants[i]
}

// SharedWith returns the other nodes behind a port and VLAN that the named node has to itself otherwise
// (uplinks do not count), sorted. While one of them is assigned, the rest can only go to the same tenant.
// It takes time linear in the size of the site.
func (s *Site) SharedWith(name string) []string {
	var names []string
	for _, nodes := range s.localPorts() {
		if !slices.ContainsFunc(nodes, func(i int) bool { return s.Nodes[i].Name == name }) {
			continue
		}
		for _, i := range nodes {
			if s.Nodes[i].Name != name {
				names = append(names, s.Nodes[i].Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// localPorts returns the indices of the nodes behind each port and VLAN that is no uplink, ascending.
func (s *Site) localPorts() map[record.NodePort][]int {
	uplinks := s.uplinks()
	ports := make(map[record.NodePort][]int, len(s.Nodes))
	for i, n := range s.Nodes {
		for _, p := range n.DPUs {
			nodes := ports[p]
			if uplinks[uplink{p.DPU, p.Port}] || (len(nodes) > 0 && nodes[len(nodes)-1] == i) {
				continue
			}
			ports[p] = append(nodes, i)
		}
	}
	return ports
}

type uplink struct {
	dpu  record.DPU
	port string
}

func (s *Site) uplinks() map[uplink]bool {
	set := make(map[uplink]bool)
	for _, d := range s.DPUs {
		for _, port := range d.Uplinks {
			set[uplink{d.Name, port}] = true
		}
	}
	return set
}
