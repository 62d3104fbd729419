package packet

import (
	"encoding/binary"
	"net/netip"

	"dpud/pkg/record"
)

// ARP operations.
const (
	ARPRequest = 1
	ARPReply   = 2
)

// ARP is an ARP message for IPv4 over Ethernet.
type ARP struct {
	Operation uint16
	SenderMAC record.MAC
	Sender    netip.Addr
	TargetMAC record.MAC
	Target    netip.Addr
}

// Bytes returns the message.
func (a ARP) Bytes() []byte {
	b := []byte{0, 1, TypeIPv4 >> 8, TypeIPv4 & 0xff, 6, 4}
	b = binary.BigEndian.AppendUint16(b, a.Operation)
	b = append(append(b, a.SenderMAC[:]...), a.Sender.AsSlice()...)
	return append(append(b, a.TargetMAC[:]...), a.Target.AsSlice()...)
}

// ARP returns the frame with an ARP message.
func (f Frame) ARP(a ARP) []byte { return f.Bytes(TypeARP, a.Bytes()) }

// Neighbour discovery messages and options (RFC 4861).
const (
	RouterSolicitation    = 133
	RouterAdvertisement   = 134
	NeighbourSolicitation = 135
	NeighbourAdvertise    = 136
	Redirect              = 137

	OptionSourceMAC = 1
	OptionTargetMAC = 2
	OptionNonce     = 14
)

// Option returns a discovery option; its size is rounded up to a multiple of 8 bytes.
func Option(typ uint8, data []byte) []byte {
	size := (2 + len(data) + 7) / 8
	b := make([]byte, 8*size)
	b[0], b[1] = typ, byte(size)
	copy(b[2:], data)
	return b
}

// Solicitation returns the body of a neighbour solicitation, behind the ICMPv6 checksum.
func Solicitation(target netip.Addr, options ...[]byte) []byte {
	return discovery(0, target, options)
}

// Advertisement returns the body of a solicited, overriding neighbour advertisement.
func Advertisement(target netip.Addr, options ...[]byte) []byte {
	return discovery(0x60, target, options)
}

func discovery(flags byte, target netip.Addr, options [][]byte) []byte {
	b := append([]byte{flags, 0, 0, 0}, target.AsSlice()...)
	for _, o := range options {
		b = append(b, o...)
	}
	return b
}

// Discovery returns the frame with a discovery message, with hop limit 255.
func (f Frame) Discovery(src, dst netip.Addr, typ uint8, body []byte) []byte {
	ip := IPv6{Src: src, Dst: dst, Next: ProtoICMPv6, HopLimit: 255}
	return f.Bytes(TypeIPv6, ip.Bytes(ICMPv6(src, dst, typ, body)))
}

// SolicitedNode returns the multicast group of an IPv6 address (RFC 4291, 2.7.1).
func SolicitedNode(a netip.Addr) netip.Addr {
	b := a.As16()
	copy(b[:], []byte{0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff})
	return netip.AddrFrom16(b)
}

// GroupMAC returns the Ethernet address of an IPv6 multicast group (RFC 2464, 7).
func GroupMAC(group netip.Addr) record.MAC {
	b := group.As16()
	return record.MAC{0x33, 0x33, b[12], b[13], b[14], b[15]}
}
