package prober

import "fmt"

// Kind of a frame that the prober sends.
type Kind uint8

// The kinds. "Other" is a third station, neither the sender nor the one that is meant.
const (
	V4 Kind = iota
	V6
	V4Fragment // a later fragment: nothing but addresses to judge by
	ARPRequest // broadcast, as hosts send it
	ARPReply
	Solicitation          // to the solicited-node group
	SolicitationLinkLocal // the same, from a link-local address
	Advertisement

	V4Priority // tagged with VID 0, which is no VLAN
	V4Tagged
	V6Tagged
	V4Stacked // two tags

	V4WrongMAC // to the address of the one that is meant, with other's MAC
	V6WrongMAC
	V4WrongAddress // to other's address, with the MAC of the one that is meant
	V4BroadcastMAC // to the address of the one that is meant, with the broadcast MAC
	V4Broadcast    // 255.255.255.255
	V6Multicast    // ff02::1

	V4SpoofedMAC // from other's MAC
	V4Spoofed    // from other's address
	V6Spoofed
	V4Stolen // from other's MAC and address
	V6Stolen
	ARPSpoofed // a reply that claims other's address
	ARPGratuitous
	AdvertisementSpoofed // claims other's address

	kinds
)

var kindNames = [kinds]string{
	"v4", "v6", "v4-fragment", "arp-request", "arp-reply", "ns", "ns-link-local", "na",
	"v4-priority", "v4-tagged", "v6-tagged", "v4-stacked",
	"v4-wrong-mac", "v6-wrong-mac", "v4-wrong-address", "v4-broadcast-mac", "v4-broadcast", "v6-multicast",
	"v4-spoofed-mac", "v4-spoofed", "v6-spoofed", "v4-stolen", "v6-stolen", "arp-spoofed", "arp-gratuitous", "na-spoofed",
}

func (k Kind) String() string {
	if k < kinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Honest says whether the frame is one that a well-behaved node sends to a single neighbour, so that it
// passes between nodes of one tenant.
func (k Kind) Honest() bool { return k <= V4Priority }

// Kinds returns every kind.
func Kinds() []Kind {
	all := make([]Kind, kinds)
	for i := range all {
		all[i] = Kind(i)
	}
	return all
}
