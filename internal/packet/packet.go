// Package packet builds raw Ethernet frames for tests and for the prober: right ones, with lengths and checksums
// filled in, that a caller may spoil afterwards. It parses nothing.
package packet

import (
	"encoding/binary"
	"net/netip"

	"dpud/pkg/record"
)

// EtherTypes and protocols.
const (
	TypeIPv4 = 0x0800
	TypeARP  = 0x0806
	TypeIPv6 = 0x86dd
	TypeVLAN = 0x8100 // 802.1Q
	TypeQinQ = 0x88a8 // 802.1ad

	ProtoICMP      = 1
	ProtoUDP       = 17
	ProtoICMPv6    = 58
	ProtoHopByHop  = 0
	ProtoRouting   = 43
	ProtoFragment  = 44
	ProtoNoNext    = 59
	ProtoDstOption = 60
)

// Broadcast is the MAC of every station.
var Broadcast = record.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// Tag is a VLAN tag. Type 0 stands for 802.1Q.
type Tag struct {
	Type     uint16
	Priority uint8 // 0 to 7
	ID       uint16
}

// Frame is the Ethernet header of a frame.
type Frame struct {
	Dst, Src record.MAC
	Tags     []Tag // outermost first
}

// VLAN returns the 802.1Q tags of a frame: none for 0.
func VLAN(id uint16) []Tag {
	if id == 0 {
		return nil
	}
	return []Tag{{ID: id}}
}

// Bytes returns the frame with a payload of an EtherType. It does not pad to Ethernet's minimum.
func (f Frame) Bytes(ethertype uint16, payload []byte) []byte {
	b := append(f.Dst[:], f.Src[:]...)
	for _, t := range f.Tags {
		if t.Type == 0 {
			t.Type = TypeVLAN
		}
		b = binary.BigEndian.AppendUint16(b, t.Type)
		b = binary.BigEndian.AppendUint16(b, uint16(t.Priority)<<13|t.ID)
	}
	b = binary.BigEndian.AppendUint16(b, ethertype)
	return append(b, payload...)
}

// IP returns the frame with an IPv4 or IPv6 packet, by the family of src.
func (f Frame) IP(src, dst netip.Addr, proto uint8, payload []byte) []byte {
	if src.Is4() {
		return f.Bytes(TypeIPv4, IPv4{Src: src, Dst: dst, Proto: proto}.Bytes(payload))
	}
	return f.Bytes(TypeIPv6, IPv6{Src: src, Dst: dst, Next: proto}.Bytes(payload))
}

// UDP returns the frame with a UDP datagram over IPv4 or IPv6.
func (f Frame) UDP(src, dst netip.AddrPort, data []byte) []byte {
	return f.IP(src.Addr(), dst.Addr(), ProtoUDP, UDP(src, dst, data))
}

// IPv4 is an IPv4 header.
type IPv4 struct {
	Src, Dst netip.Addr
	Proto    uint8
	Fragment uint16 // flags and offset, as on the wire
	Options  []byte // a multiple of 4 bytes
}

// Bytes returns the packet.
func (p IPv4) Bytes(payload []byte) []byte {
	size := 20 + len(p.Options)
	b := make([]byte, size, size+len(payload))
	b[0] = 4<<4 | byte(size/4)
	binary.BigEndian.PutUint16(b[2:], uint16(size+len(payload)))
	binary.BigEndian.PutUint16(b[6:], p.Fragment)
	b[8], b[9] = 64, p.Proto
	copy(b[12:], p.Src.AsSlice())
	copy(b[16:], p.Dst.AsSlice())
	copy(b[20:], p.Options)
	binary.BigEndian.PutUint16(b[10:], checksum(0, b))
	return append(b, payload...)
}

// IPv6 is an IPv6 header. HopLimit 0 stands for 64.
type IPv6 struct {
	Src, Dst netip.Addr
	Next     uint8
	HopLimit uint8
}

// Bytes returns the packet.
func (p IPv6) Bytes(payload []byte) []byte {
	b := make([]byte, 40, 40+len(payload))
	b[0] = 6 << 4
	binary.BigEndian.PutUint16(b[4:], uint16(len(payload)))
	b[6], b[7] = p.Next, p.HopLimit
	if p.HopLimit == 0 {
		b[7] = 64
	}
	copy(b[8:], p.Src.AsSlice())
	copy(b[24:], p.Dst.AsSlice())
	return append(b, payload...)
}

// Extension returns an IPv6 extension header of a multiple of 8 bytes, followed by payload.
func Extension(next uint8, size int, payload []byte) []byte {
	b := make([]byte, size, size+len(payload))
	b[0], b[1] = next, byte(size/8-1)
	b[2], b[3] = 1, byte(size-4) // a PadN option
	return append(b, payload...)
}

// Fragment returns an IPv6 fragment header, followed by payload. offset is in bytes, a multiple of 8.
func Fragment(next uint8, offset uint16, more bool, payload []byte) []byte {
	b := []byte{next, 0, byte(offset >> 8), byte(offset), 0, 0, 0, 1}
	if more {
		b[3] |= 1
	}
	return append(b, payload...)
}

// UDP returns a UDP datagram with its checksum.
func UDP(src, dst netip.AddrPort, data []byte) []byte {
	b := make([]byte, 8, 8+len(data))
	binary.BigEndian.PutUint16(b, src.Port())
	binary.BigEndian.PutUint16(b[2:], dst.Port())
	binary.BigEndian.PutUint16(b[4:], uint16(8+len(data)))
	b = append(b, data...)
	sum := checksum(pseudo(src.Addr(), dst.Addr(), ProtoUDP, len(b)), b)
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(b[6:], sum)
	return b
}

// Ping returns an ICMP or ICMPv6 echo request, by the family of src.
func Ping(src, dst netip.Addr, id, sequence uint16, data []byte) (proto uint8, message []byte) {
	body := binary.BigEndian.AppendUint16(nil, id)
	body = append(binary.BigEndian.AppendUint16(body, sequence), data...)
	if src.Is6() {
		return ProtoICMPv6, ICMPv6(src, dst, 128, body)
	}
	b := append([]byte{8, 0, 0, 0}, body...)
	binary.BigEndian.PutUint16(b[2:], checksum(0, b))
	return ProtoICMP, b
}

// ICMPv6 returns an ICMPv6 message with its checksum.
func ICMPv6(src, dst netip.Addr, typ uint8, body []byte) []byte {
	b := append([]byte{typ, 0, 0, 0}, body...)
	binary.BigEndian.PutUint16(b[2:], checksum(pseudo(src, dst, ProtoICMPv6, len(b)), b))
	return b
}

func pseudo(src, dst netip.Addr, proto uint8, size int) uint32 {
	return sum(0, src.AsSlice()) + sum(0, dst.AsSlice()) + uint32(proto) + uint32(size)
}

// checksum is the Internet checksum (RFC 1071).
func checksum(start uint32, b []byte) uint16 {
	s := sum(start, b)
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

func sum(s uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		s += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s
}
