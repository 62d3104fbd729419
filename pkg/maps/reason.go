package maps

import (
	"fmt"
	"iter"
)

// Reason is what the programs say of a packet: that it passed, or the one reason why it was dropped.
type Reason uint32

// The reasons that Go code names; the rest are known by their labels.
const (
	// Passed between nodes of one tenant, or with a shared service.
	Passed = Reason(datapathDropReasonPASSED)
	// PassedLocal to one of the DPU's own addresses.
	PassedLocal = Reason(datapathDropReasonPASSED_LOCAL)
	// PassedOff because the mode is Off.
	PassedOff = Reason(datapathDropReasonPASSED_OFF)
)

// Dropped says whether the packet was dropped, or in Audit mode would have been.
func (r Reason) Dropped() bool { return r > PassedOff }

// Label is the reason's name in metrics, on the command line and in docs/data-plane.md.
func (r Reason) Label() string { return r.describe().label }

// Sentence says what the packet was like.
func (r Reason) Sentence() string { return r.describe().sentence }

// Fix says what to do when the counter grows unexpectedly.
func (r Reason) Fix() string { return r.describe().fix }

func (r Reason) String() string { return r.Label() }

// Reasons yields every reason, in order.
func Reasons() iter.Seq[Reason] {
	return func(yield func(Reason) bool) {
		for r := range Reason(datapathDropReasonDROP_REASONS) {
			if !yield(r) {
				return
			}
		}
	}
}

func (r Reason) describe() description {
	if int(r) < len(descriptions) {
		return descriptions[r]
	}
	return description{label: fmt.Sprintf("reason_%d", uint32(r))}
}

type description struct{ label, sentence, fix string }

// A test checks that every enumerator of bpf/types.h is here.
var descriptions = [...]description{
	datapathDropReasonPASSED: {
		"passed", "Between two nodes of one tenant, or between an assigned node and a shared service.", "Nothing: this is the traffic.",
	},
	datapathDropReasonPASSED_LOCAL: {
		"passed_local", "In on an uplink, to one of the DPU's own listed addresses.", "Nothing: this is the DPU's own traffic.",
	},
	datapathDropReasonPASSED_OFF: {
		"passed_off", "Passed unjudged, because the mode is off.", "Switch enforcement on again: nothing is isolated.",
	},
	datapathDropReasonDROP_UNKNOWN_PORT: {
		"unknown_port", "On an interface that has no role.", "Add the interface to dpud's ports, or restart dpud if it is there.",
	},
	datapathDropReasonDROP_LEASE_EXPIRED: {
		"lease_expired", "After the DPU's closed lease ended.", "Bring back the controllers, or the way from the DPU to them.",
	},
	datapathDropReasonDROP_TRUNCATED: {
		"truncated", "Shorter than its headers say.", "Look for a broken sender, or a driver that passes less than the headers.",
	},
	datapathDropReasonDROP_MALFORMED: {
		"malformed", "With a header that contradicts its standard.", "Look for a broken or hostile sender.",
	},
	datapathDropReasonDROP_ETHERTYPE: {
		"ethertype", "Neither IPv4, IPv6 nor ARP.", "Nothing usually: LLDP, spanning tree and the like stay on their link.",
	},
	datapathDropReasonDROP_VLAN_DEPTH: {
		"vlan_depth", "With more than two VLAN tags.", "Send at most the node's own tag.",
	},
	datapathDropReasonDROP_VLAN_STACKED: {
		"vlan_stacked", "With two VLAN tags or an 802.1ad one.", "Send one 802.1Q tag, or none, as the inventory says of the port.",
	},
	datapathDropReasonDROP_EXTENSION_HEADERS: {
		"extension_headers", "IPv6 with more or longer extension headers than are walked (6, in 256 bytes).", "Look for a hostile sender: such chains hide what follows.",
	},
	datapathDropReasonDROP_SOURCE_MAC: {
		"source_mac", "From a multicast MAC.", "Look for a broken or hostile sender.",
	},
	datapathDropReasonDROP_SOURCE_UNKNOWN: {
		"source_unknown", "From an address of no assigned node.", "Assign the node, or give it the address that the inventory lists.",
	},
	datapathDropReasonDROP_SOURCE_SPOOFED: {
		"source_spoofed", "From an address whose MAC, port or VLAN is another one.", "Compare the node's MAC, port and VLAN with the inventory; if they fit, the sender forges.",
	},
	datapathDropReasonDROP_SOURCE_UNASSIGNED: {
		"source_unassigned", "From a node that is being assigned or reclaimed.", "Nothing: it ends with the assignment; if not, see `ctl status`.",
	},
	datapathDropReasonDROP_DESTINATION_UNKNOWN: {
		"destination_unknown", "To an address of neither an assigned node nor a service.", "Assign the node, list this DPU for it, or add the service.",
	},
	datapathDropReasonDROP_DESTINATION_MULTICAST: {
		"destination_multicast", "To a multicast or broadcast address.", "Nothing usually: nothing is flooded between nodes.",
	},
	datapathDropReasonDROP_DESTINATION_MAC: {
		"destination_mac", "To an address by the MAC of another station.", "Clear stale neighbour entries on the sender; compare the MAC with the inventory.",
	},
	datapathDropReasonDROP_DESTINATION_UNASSIGNED: {
		"destination_unassigned", "To a node that is being assigned or reclaimed.", "Nothing: it ends with the assignment; if not, see `ctl status`.",
	},
	datapathDropReasonDROP_HAIRPIN: {
		"hairpin", "To where it came from: the same port and VLAN, or from an uplink to a service.", "Nothing usually: neighbours on one wire reach each other without the DPU.",
	},
	datapathDropReasonDROP_EGRESS_PORT: {
		"egress_port", "On its way out on a port or VLAN behind which its destination is not.", "Check the bridge's FDB and flooding: it sent the packet to the wrong port.",
	},
	datapathDropReasonDROP_TENANT_MISMATCH: {
		"tenant_mismatch", "Between nodes of different tenants.", "Nothing: this is what is enforced. Assign both nodes to one tenant if they belong together.",
	},
	datapathDropReasonDROP_LOCAL_FROM_NODE: {
		"local_from_node", "From a node to one of the DPU's own addresses.", "Look for a node that tries to reach the DPU.",
	},
	datapathDropReasonDROP_GRATUITOUS: {
		"gratuitous", "ARP or neighbour discovery that announces or probes the sender's own address to everybody.", "Nothing usually: hosts do so when they start, and nothing is flooded.",
	},
	datapathDropReasonDROP_ND_TYPE: {
		"nd_type", "IPv6 router discovery or a redirect.", "Nothing usually; give nodes static IPv6 routes.",
	},
	datapathDropReasonDROP_ND_EXTENSION: {
		"nd_extension", "IPv6 neighbour discovery in a fragment or behind extension headers (RFC 6980).", "Look for a hostile sender.",
	},
	datapathDropReasonDROP_REWRITE_FAILED: {
		"rewrite_failed", "Passed, but the driver left no room to change its VLAN tag.", "Report the driver; give both nodes the same VLAN meanwhile.",
	},
}
