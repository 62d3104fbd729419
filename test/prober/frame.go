package prober

import (
	"encoding/binary"
	"net/netip"

	"dpud/internal/packet"
	"dpud/pkg/record"
)

const portDiscard = 9 // RFC 863

var (
	broadcast4 = netip.AddrFrom4([4]byte{255, 255, 255, 255})
	allNodes6  = netip.MustParseAddr("ff02::1")
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
	packet.Frame
	src4, dst4 netip.Addr
	src6, dst6 netip.Addr
}

// build makes the frame of a kind from s to r, with o as the third station.
func build(k Kind, s, r, o *Station, trailer []byte) []byte {
	a := addresses{Frame: packet.Frame{Src: s.MAC, Dst: r.MAC}, src4: s.V4, dst4: r.V4, src6: s.V6, dst6: r.V6}
	a.twist(k, o)
	switch k {
	case V4Fragment:
		const last = 1480 / 8 // the offset of a datagram's last part, without the flag for more
		ip := packet.IPv4{Src: a.src4, Dst: a.dst4, Proto: packet.ProtoUDP, Fragment: last}
		return a.Bytes(packet.TypeIPv4, ip.Bytes(trailer))
	case V6, V6Tagged, V6WrongMAC, V6Multicast, V6Spoofed, V6Stolen:
		return a.udp(a.src6, a.dst6, trailer)
	case ARPRequest, ARPReply, ARPSpoofed, ARPGratuitous:
		return append(a.arp(k, r), trailer...)
	case Solicitation, SolicitationLinkLocal:
		body := packet.Solicitation(r.V6, packet.Option(packet.OptionSourceMAC, s.MAC[:]), trailer)
		return a.Discovery(a.src6, a.dst6, packet.NeighbourSolicitation, body)
	case Advertisement:
		return a.advertise(s.V6, trailer)
	case AdvertisementSpoofed:
		return a.advertise(o.V6, trailer)
	default:
		return a.udp(a.src4, a.dst4, trailer)
	}
}

// twist turns honest addresses into those of the kind.
func (a *addresses) twist(k Kind, o *Station) {
	switch k {
	case V4Tagged, V6Tagged:
		a.Tags = []packet.Tag{{ID: 7}}
	case V4Priority:
		a.Tags = []packet.Tag{{Priority: 5}}
	case V4Stacked:
		a.Tags = []packet.Tag{{Type: packet.TypeQinQ, ID: 7}, {}}
	case V4WrongMAC, V6WrongMAC:
		a.Dst = o.MAC
	case V4WrongAddress:
		a.dst4 = o.V4
	case V4BroadcastMAC, ARPRequest:
		a.Dst = packet.Broadcast
	case V4Broadcast:
		a.Dst, a.dst4 = packet.Broadcast, broadcast4
	case V6Multicast:
		a.Dst, a.dst6 = packet.GroupMAC(allNodes6), allNodes6
	case V4SpoofedMAC:
		a.Src = o.MAC
	case V4Spoofed, V6Spoofed, ARPSpoofed:
		a.src4, a.src6 = o.V4, o.V6
	case V4Stolen, V6Stolen:
		a.Src, a.src4, a.src6 = o.MAC, o.V4, o.V6
	case ARPGratuitous:
		a.Dst, a.dst4 = packet.Broadcast, a.src4
	case Solicitation, SolicitationLinkLocal:
		a.dst6 = packet.SolicitedNode(a.dst6)
		a.Dst = packet.GroupMAC(a.dst6)
		if k == SolicitationLinkLocal {
			a.src6 = linkLocal(a.Src)
		}
	}
}

func (a addresses) udp(src, dst netip.Addr, data []byte) []byte {
	return a.UDP(netip.AddrPortFrom(src, portDiscard), netip.AddrPortFrom(dst, portDiscard), data)
}

func (a addresses) arp(k Kind, r *Station) []byte {
	m := packet.ARP{Operation: packet.ARPReply, SenderMAC: a.Src, Sender: a.src4, TargetMAC: r.MAC, Target: a.dst4}
	if k == ARPRequest {
		m.Operation, m.TargetMAC = packet.ARPRequest, record.MAC{}
	}
	return a.ARP(m)
}

func (a addresses) advertise(target netip.Addr, trailer []byte) []byte {
	body := packet.Advertisement(target, packet.Option(packet.OptionTargetMAC, a.Src[:]), trailer)
	return a.Discovery(a.src6, a.dst6, packet.NeighbourAdvertise, body)
}

// linkLocal is the address that a station makes of its MAC (RFC 4291, appendix A).
func linkLocal(m record.MAC) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
}
