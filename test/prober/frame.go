package prober

import (
	"encoding/binary"
	"net/netip"

	"dpud/pkg/record"
)

// Numbers of the protocols that the frames use.
const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherTag  = 0x8100
	etherSTag = 0x88a8
	etherIPv6 = 0x86dd

	protoUDP    = 17
	protoICMPv6 = 58

	portDiscard = 9 // RFC 863
)

var (
	broadcastMAC = record.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	allNodesMAC  = record.MAC{0x33, 0x33, 0, 0, 0, 1}
	broadcast4   = netip.AddrFrom4([4]byte{255, 255, 255, 255})
	allNodes6    = netip.MustParseAddr("ff02::1")
)

// trailer is the last part of each frame: the payload of UDP, the padding behind ARP, and an option of an
// experimental type (RFC 4727) in neighbour discovery, so that each receiver can tell where it came from.
const trailerSize = 40

// stamp is what a trailer says.
type stamp struct {
	sender, meant uint8 // indices of stations
	kind          Kind
	seq           uint32
	sent          int64 // CLOCK_MONOTONIC, ns
}

func (s stamp) appendTo(b []byte, run [8]byte) []byte {
	b = append(b, 253, trailerSize/8)
	b = append(b, run[:]...)
	b = append(b, s.sender, s.meant, uint8(s.kind))
	b = binary.BigEndian.AppendUint32(b, s.seq)
	b = binary.BigEndian.AppendUint64(b, uint64(s.sent))
	return append(b, make([]byte, trailerSize-2-8-3-4-8)...)
}

// readStamp finds the trailer at the end of a frame of this run.
func readStamp(frame []byte, run [8]byte) (stamp, bool) {
	if len(frame) < trailerSize {
		return stamp{}, false
	}
	t := frame[len(frame)-trailerSize:]
	if [8]byte(t[2:10]) != run {
		return stamp{}, false
	}
	return stamp{
		sender: t[10], meant: t[11], kind: Kind(t[12]),
		seq:  binary.BigEndian.Uint32(t[13:]),
		sent: int64(binary.BigEndian.Uint64(t[17:])),
	}, true
}

// addresses of one frame's two sides.
type addresses struct {
	srcMAC, dstMAC record.MAC
	src4, dst4     netip.Addr
	src6, dst6     netip.Addr
}

// build makes the frame of a kind from s to r, with o as the third station.
func build(k Kind, s, r, o *Station, trailer []byte) []byte {
	a := addresses{srcMAC: s.MAC, dstMAC: r.MAC, src4: s.V4, dst4: r.V4, src6: s.V6, dst6: r.V6}
	switch k {
	case V4, V4WrongMAC, V4WrongAddress, V4BroadcastMAC, V4Broadcast, V4SpoofedMAC, V4Spoofed, V4Stolen, V4Fragment:
		a.twist(k, o)
		return ipv4(ether(a, etherIPv4), a, k == V4Fragment, trailer)
	case V6, V6WrongMAC, V6Multicast, V6Spoofed, V6Stolen:
		a.twist(k, o)
		return udp6(ether(a, etherIPv6), a, trailer)
	case V4Priority:
		return ipv4(ether(a, etherTag, 0, etherIPv4), a, false, trailer)
	case V4Tagged:
		return ipv4(ether(a, etherTag, 7, etherIPv4), a, false, trailer)
	case V4Stacked:
		return ipv4(ether(a, etherSTag, 7, etherTag, 0, etherIPv4), a, false, trailer)
	case V6Tagged:
		return udp6(ether(a, etherTag, 7, etherIPv6), a, trailer)
	case ARPRequest, ARPReply, ARPSpoofed, ARPGratuitous:
		return arp(k, a, o, trailer)
	default:
		return discovery(k, a, o, trailer)
	}
}

// twist turns honest addresses into those of the kind.
func (a *addresses) twist(k Kind, o *Station) {
	switch k {
	case V4WrongMAC, V6WrongMAC:
		a.dstMAC = o.MAC
	case V4WrongAddress:
		a.dst4 = o.V4
	case V4BroadcastMAC:
		a.dstMAC = broadcastMAC
	case V4Broadcast:
		a.dstMAC, a.dst4 = broadcastMAC, broadcast4
	case V6Multicast:
		a.dstMAC, a.dst6 = allNodesMAC, allNodes6
	case V4SpoofedMAC:
		a.srcMAC = o.MAC
	case V4Spoofed, V6Spoofed:
		a.src4, a.src6 = o.V4, o.V6
	case V4Stolen, V6Stolen:
		a.srcMAC, a.src4, a.src6 = o.MAC, o.V4, o.V6
	}
}

func ether(a addresses, words ...uint16) []byte {
	b := append(a.dstMAC[:], a.srcMAC[:]...)
	for _, w := range words {
		b = binary.BigEndian.AppendUint16(b, w)
	}
	return b
}

func ipv4(b []byte, a addresses, fragment bool, payload []byte) []byte {
	const size = 20
	start := len(b)
	b = append(b, 0x45, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(size+8+len(payload)))
	b = append(b, 0, 0, 0, 0, 64, protoUDP, 0, 0)
	if fragment {
		binary.BigEndian.PutUint16(b[start+6:], 185) // behind 1480 bytes, the last one
	}
	b = append(b, a.src4.AsSlice()...)
	b = append(b, a.dst4.AsSlice()...)
	binary.BigEndian.PutUint16(b[start+10:], checksum(0, b[start:]))
	return udp(b, 0, payload) // no checksum (RFC 768)
}

func udp(b []byte, sum uint16, payload []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, portDiscard)
	b = binary.BigEndian.AppendUint16(b, portDiscard)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	b = binary.BigEndian.AppendUint16(b, sum)
	return append(b, payload...)
}

func udp6(b []byte, a addresses, payload []byte) []byte {
	packet := udp(nil, 0, payload)
	sum := checksum6(a, protoUDP, packet)
	if sum == 0 {
		sum = 0xffff
	}
	return ipv6(b, a, protoUDP, 64, udp(nil, sum, payload))
}

func ipv6(b []byte, a addresses, proto, hops uint8, payload []byte) []byte {
	b = append(b, 0x60, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(len(payload)))
	b = append(b, proto, hops)
	b = append(b, a.src6.AsSlice()...)
	b = append(b, a.dst6.AsSlice()...)
	return append(b, payload...)
}

func arp(k Kind, a addresses, o *Station, trailer []byte) []byte {
	operation, target := uint16(2), a.dstMAC
	switch k {
	case ARPRequest:
		operation, target, a.dstMAC = 1, record.MAC{}, broadcastMAC
	case ARPSpoofed:
		a.src4 = o.V4
	case ARPGratuitous:
		a.dst4, a.dstMAC = a.src4, broadcastMAC
	}
	b := ether(a, etherARP, 1, etherIPv4, 0x0604, operation)
	b = append(b, a.srcMAC[:]...)
	b = append(b, a.src4.AsSlice()...)
	b = append(b, target[:]...)
	b = append(b, a.dst4.AsSlice()...)
	return append(b, trailer...)
}

// discovery makes solicitations and advertisements (RFC 4861, 4.3 and 4.4).
func discovery(k Kind, a addresses, o *Station, trailer []byte) []byte {
	kind, flags, target, option := byte(135), byte(0), a.dst6, byte(1)
	switch k {
	case Solicitation, SolicitationLinkLocal:
		t := a.dst6.As16()
		a.dst6 = netip.AddrFrom16([16]byte{0xff, 2, 11: 1, 12: 0xff, 13: t[13], 14: t[14], 15: t[15]})
		a.dstMAC = record.MAC{0x33, 0x33, 0xff, t[13], t[14], t[15]}
		if k == SolicitationLinkLocal {
			m := a.srcMAC
			a.src6 = netip.AddrFrom16([16]byte{0xfe, 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
		}
	case Advertisement:
		kind, flags, target, option = 136, 0x60, a.src6, 2
	case AdvertisementSpoofed:
		kind, flags, target, option = 136, 0x60, o.V6, 2
	}
	body := []byte{kind, 0, 0, 0, flags, 0, 0, 0}
	body = append(body, target.AsSlice()...)
	body = append(body, option, 1)
	body = append(body, a.srcMAC[:]...)
	body = append(body, trailer...)
	binary.BigEndian.PutUint16(body[2:], checksum6(a, protoICMPv6, body))
	return ipv6(ether(a, etherIPv6), a, protoICMPv6, 255, body)
}

// checksum6 is that of UDP and ICMPv6, over the pseudo-header of RFC 8200, 8.1.
func checksum6(a addresses, proto uint8, packet []byte) uint16 {
	var pseudo []byte
	pseudo = append(pseudo, a.src6.AsSlice()...)
	pseudo = append(pseudo, a.dst6.AsSlice()...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(packet)))
	pseudo = append(pseudo, 0, 0, 0, proto)
	return checksum(^checksum(0, pseudo), packet)
}

// checksum is that of RFC 1071, with a sum so far.
func checksum(sum uint16, b []byte) uint16 {
	s := uint32(sum)
	for len(b) >= 2 {
		s += uint32(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	for s > 0xffff {
		s = s&0xffff + s>>16
	}
	return ^uint16(s)
}
