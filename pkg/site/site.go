// Package site reads and checks the site file: the racks, DPUs, tenants, nodes and shared services that a
// provider's network consists of.
//
// It decides whether a site is consistent and what differs between two sites. It does not decide whether a
// change is allowed while nodes are assigned (package management does), and it gives no ids.
package site

import (
	"net/netip"

	"dpud/pkg/record"
)

// Site is a checked site file. Lists are in the order of the file; names are unique within a list.
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
	Addresses []netip.Addr `json:"addresses" yaml:"addresses"`
	// DPUs that serve the node, each with the port behind which it finds it.
	DPUs []record.NodePort `json:"dpus" yaml:"dpus"`
	// SharedPort allows other nodes behind the same port and VLAN; they can then only be assigned to one tenant.
	SharedPort bool `json:"shared_port,omitempty" yaml:"shared_port,omitempty"`
}

// Service is a set of prefixes that every assigned node reaches.
type Service struct {
	Name     string         `json:"name" yaml:"name"`
	Prefixes []netip.Prefix `json:"prefixes" yaml:"prefixes"`
	// MAC of the neighbour on the uplink that leads to the service.
	MAC record.MAC `json:"mac" yaml:"mac"`
}
