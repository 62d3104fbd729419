package prober

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"dpud/pkg/record"
)

func stations() (s, r, o *Station) {
	station := func(n byte) *Station {
		return &Station{
			MAC: record.MAC{2, 0, 0, 0, 0, n},
			V4:  netip.AddrFrom4([4]byte{10, 0, 0, n}),
			V6:  netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: n}),
		}
	}
	return station(1), station(2), station(3)
}

func TestStampSurvivesEveryKind(t *testing.T) {
	run := [8]byte{1, 2, 3, 4, 5, 6, 7, 8}
	s, r, o := stations()
	for _, k := range Kinds() {
		want := stamp{sender: 1, meant: 2, kind: k, seq: 1 << 20, sent: 1 << 40}
		frame := build(k, s, r, o, want.appendTo(nil, run))
		if got, ok := readStamp(frame, run); !ok || got != want {
			t.Errorf("%s: %+v, %t; want %+v", k, got, ok, want)
		}
		if _, ok := readStamp(frame, [8]byte{1}); ok {
			t.Errorf("%s: taken for a frame of another run", k)
		}
		if len(frame) < 60 {
			t.Errorf("%s: %d bytes are less than Ethernet's least", k, len(frame))
		}
	}
	if _, ok := readStamp([]byte("short"), run); ok {
		t.Error("a stamp in a frame that is too short")
	}
}

// What the kernel of a node or the program of a DPU would refuse as broken says nothing about tenants.
func TestFramesAreWellFormed(t *testing.T) {
	s, r, o := stations()
	for _, k := range Kinds() {
		frame := build(k, s, r, o, stamp{kind: k}.appendTo(nil, [8]byte{}))
		b := frame[12:]
		for binary.BigEndian.Uint16(b) == etherTag || binary.BigEndian.Uint16(b) == etherSTag {
			b = b[4:]
		}
		proto, packet := binary.BigEndian.Uint16(b), b[2:]
		switch proto {
		case etherIPv4:
			if checksum(0, packet[:20]) != 0 || int(binary.BigEndian.Uint16(packet[2:])) != len(packet) {
				t.Errorf("%s: bad IPv4 header % x", k, packet[:20])
			}
		case etherIPv6:
			a := addresses{src6: netip.AddrFrom16([16]byte(packet[8:24])), dst6: netip.AddrFrom16([16]byte(packet[24:40]))}
			if int(binary.BigEndian.Uint16(packet[4:])) != len(packet)-40 || checksum6(a, packet[6], packet[40:]) != 0 {
				t.Errorf("%s: bad IPv6 packet % x", k, packet)
			}
		case etherARP:
			if !bytes.Equal(packet[:6], []byte{0, 1, 8, 0, 6, 4}) || !bytes.Equal(packet[8:14], frame[6:12]) {
				t.Errorf("%s: bad ARP % x", k, packet)
			}
		default:
			t.Errorf("%s: protocol %#x", k, proto)
		}
	}
}

func TestKindsHaveNames(t *testing.T) {
	names := make(map[string]bool)
	for _, k := range Kinds() {
		if k.String() == "" || names[k.String()] {
			t.Errorf("kind %d has the name %q, which is none or another's", k, k)
		}
		names[k.String()] = true
	}
}
