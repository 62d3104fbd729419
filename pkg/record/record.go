// Package record defines the registers that the planes exchange: grants, entries, confirmations,
// lease requests, leases and services.
//
// Each register has one writer and a total order ([Version]), so merging is a maximum and a message that is
// duplicated, reordered, delayed or lost cannot hurt. The package decides which of two versions is newer
// and nothing else: it does not send, store, sign or encode. Values are immutable once published; share
// them, never change them.
package record

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Identifiers. Numeric ones are given by the management plane, start at 1 and are never reused.
type (
	// SiteID names one site for ever; it is random and minted when the controller's store is first used.
	SiteID string
	// NodeID is the small stable integer of a physical node. 0 is no node.
	NodeID uint32
	// TenantID is the small stable integer of a tenant. 0 is no tenant.
	TenantID uint32
	// VNI is a tenant's virtual network identifier, 1 to 2^24-1 (RFC 7348, section 5).
	VNI uint32
	// DPU is the name of a DPU, unique in its site.
	DPU string
	// Rack is the name of a rack, unique in its site.
	Rack string
)

// Logical clocks, highest part of an order first.
type (
	// Epoch is minted when a store is made and whenever one is restored; it is the highest part of every
	// order, so a restored store never looks newer than what DPUs hold.
	Epoch uint64
	// Generation counts a node's assignments.
	Generation uint64
	// Revision counts changes to a register within a generation.
	Revision uint64
	// Boot counts the registrations of a DPU's dpud; 0 is not registered.
	Boot uint64
	// Nonce tells the lease requests of one DPU apart; later requests carry higher ones.
	Nonce uint64
)

// Phase of a node's grant. Within a generation a later phase is newer.
type Phase uint8

// The phases of a grant, in the order in which a generation passes through them.
const (
	PhaseNone Phase = iota
	Granted
	Revoked
	Free
)

var phaseNames = [...]string{"none", "granted", "revoked", "free"}

func (p Phase) String() string {
	if int(p) < len(phaseNames) {
		return phaseNames[p]
	}
	return fmt.Sprintf("phase(%d)", uint8(p))
}

// NodePort says behind which port of a DPU a node sits.
type NodePort struct {
	DPU DPU `json:"dpu" yaml:"dpu"`
	// Port is the interface name on the DPU.
	Port string `json:"port" yaml:"port"`
	// VLAN is the 802.1Q VLAN of the node on that port, 1 to 4094; 0 is untagged.
	VLAN uint16 `json:"vlan,omitempty" yaml:"vlan,omitempty"`
}

// Grant says to which tenant a node is assigned. Key: node. Writer: the management plane.
// Order: (epoch, generation, phase, revision).
type Grant struct {
	Node       NodeID
	Epoch      Epoch
	Generation Generation
	Phase      Phase
	Revision   Revision
	Tenant     TenantID

	// Inventory, fixed while the node is not free.
	Name       string
	TenantName string
	Rack       Rack
	VNI        VNI
	MAC        MAC
	Addresses  []netip.Addr
	// Ports has one element for each designated DPU.
	Ports []NodePort
	// Provers are the DPUs that could ever have received this generation's grant; each must prove that it
	// cleared before the node is free. Only grows within a generation. Sorted.
	Provers []DPU
}

// Port returns where dpu finds the node, and whether dpu is designated at all.
func (g *Grant) Port(dpu DPU) (NodePort, bool) {
	for _, p := range g.Ports {
		if p.DPU == dpu {
			return p, true
		}
	}
	return NodePort{}, false
}

// Entry is a tenant's request to program a node. Key: (tenant, node). Writer: that tenant's control plane.
// Order: (epoch, generation, revision, deleted last). It can only narrow the grant.
type Entry struct {
	Tenant     TenantID
	Node       NodeID
	Epoch      Epoch
	Generation Generation
	Revision   Revision
	Deleted    bool
}

// State is what a DPU says of a node in a confirmation.
type State uint8

// The states a DPU confirms, each from a read-back of the kernel's maps.
const (
	StateNone State = iota
	// Programmed: every map entry of the generation is in the kernel.
	Programmed
	// Withdrawn: the entries are gone while the grant stands (its entry was deleted, or the DPU is no longer designated).
	Withdrawn
	// Cleared: the grant is revoked, the entries are gone after a barrier and every port enforces.
	Cleared
)

var stateNames = [...]string{"none", "programmed", "withdrawn", "cleared"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Confirmation is what a DPU has read back from its kernel for a node. Key: (DPU, node). Writer: that DPU.
// Order: (boot, sequence).
type Confirmation struct {
	DPU      DPU
	Node     NodeID
	Boot     Boot
	Sequence uint64

	State      State
	Epoch      Epoch
	Generation Generation
	// Revision of the grant that the DPU held.
	Revision Revision
}

// LeaseRequest asks the management plane for a lease. Key: DPU. Writer: that DPU. Order: nonce.
type LeaseRequest struct {
	DPU DPU
	// Instance is random for each run of dpud, so that a repeated request mints one boot only.
	Instance string
	// Boot is 0 until the first answer of this instance.
	Boot  Boot
	Nonce Nonce
	// HardwareID identifies the DPU's hardware; another one under the same name is refused.
	HardwareID string
	// KernelBoot is /proc/sys/kernel/random/boot_id.
	KernelBoot string
	// Address of the DPU's API, for direct messages; empty when it has none that others reach.
	Address string
	// Digest of the grants that the DPU holds for its rack; an equal one saves sending them.
	Digest Digest
}

// Lease answers one lease request. Key: DPU. Writer: the management plane. Order: (boot, nonce).
type Lease struct {
	DPU      DPU
	Instance string
	Boot     Boot
	Nonce    Nonce
	Epoch    Epoch
	// StoreRevision at which the grants were read.
	StoreRevision int64
	// Refused says why there is no lease; empty when there is one.
	Refused string
	// Rack of the DPU.
	Rack Rack
	// Grants of the rack; nil when Unchanged.
	Grants []*Grant
	// Unchanged: the request's digest equals that of the grants read.
	Unchanged bool
}

// Services is what the provider shares with every assigned node. One register for the site.
// Writer: the management plane. Order: (epoch, revision).
type Services struct {
	Epoch    Epoch
	Revision Revision
	Services []Service
}

// Service is a set of prefixes reached through one neighbour on the uplink.
type Service struct {
	Name     string
	Prefixes []netip.Prefix
	// MAC of the neighbour (the service's host or the router before it).
	MAC MAC
}

// MAC is an EUI-48 address.
type MAC [6]byte

// ParseMAC reads six colon-separated hexadecimal bytes.
func ParseMAC(s string) (MAC, error) {
	var m MAC
	if len(s) != 17 {
		return MAC{}, fmt.Errorf("parse MAC %q: want six bytes like 02:00:00:00:00:01", s)
	}
	for i := range m {
		hi, lo := unhex(s[3*i]), unhex(s[3*i+1])
		if hi < 0 || lo < 0 || (i < 5 && s[3*i+2] != ':') {
			return MAC{}, fmt.Errorf("parse MAC %q: want six bytes like 02:00:00:00:00:01", s)
		}
		m[i] = byte(hi<<4 | lo)
	}
	return m, nil
}

func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// MarshalText and UnmarshalText give the form of ParseMAC.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads the form of ParseMAC.
func (m *MAC) UnmarshalText(b []byte) error {
	p, err := ParseMAC(string(b))
	*m = p
	return err
}

// IsUnicast says whether m can be the address of one station (not zero, group bit clear).
func (m MAC) IsUnicast() bool { return m != MAC{} && m[0]&1 == 0 }

// SortDPUs returns the names sorted and without duplicates.
func SortDPUs(d []DPU) []DPU {
	d = slices.Clone(d)
	slices.Sort(d)
	return slices.Compact(d)
}

// Newest returns the newer of two records of one key; a wins a tie.
func Newest[R Record](a, b R) R {
	if b.Version().Compare(a.Version()) > 0 {
		return b
	}
	return a
}

// CompareKeys orders keys, for stable listings.
func CompareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Node, b.Node))
}
