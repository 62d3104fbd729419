package prober

import (
	"bytes"
	"net/netip"
	"testing"

	"dpud/internal/packet"
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

// Whom a frame claims to be from and goes to, by its Ethernet header: 1 sends to 2, 3 is the third station.
func TestFramesGoWhereTheirKindSays(t *testing.T) {
	s, r, o := stations()
	group := func(last ...byte) record.MAC { return record.MAC{0x33, 0x33, last[0], last[1], last[2], last[3]} }
	type header struct{ dst, src record.MAC }
	lies := map[Kind]header{
		ARPRequest:            {packet.Broadcast, s.MAC},
		ARPGratuitous:         {packet.Broadcast, s.MAC},
		Solicitation:          {group(0xff, 0, 0, 2), s.MAC},
		SolicitationLinkLocal: {group(0xff, 0, 0, 2), s.MAC},
		V4WrongMAC:            {o.MAC, s.MAC},
		V6WrongMAC:            {o.MAC, s.MAC},
		V4BroadcastMAC:        {packet.Broadcast, s.MAC},
		V4Broadcast:           {packet.Broadcast, s.MAC},
		V6Multicast:           {group(0, 0, 0, 1), s.MAC},
		V4SpoofedMAC:          {r.MAC, o.MAC},
		V4Stolen:              {r.MAC, o.MAC},
		V6Stolen:              {r.MAC, o.MAC},
	}
	for _, k := range Kinds() {
		want, ok := lies[k]
		if !ok {
			want = header{r.MAC, s.MAC}
		}
		frame := build(k, s, r, o, stamp{kind: k}.appendTo(nil, [8]byte{}))
		if got := (header{record.MAC(frame), record.MAC(frame[6:])}); got != want {
			t.Errorf("%s: %v, want %v", k, got, want)
		}
		claims := bytes.Contains(frame, o.V4.AsSlice()) || bytes.Contains(frame, o.V6.AsSlice())
		switch k {
		case V4WrongAddress, V4Spoofed, V6Spoofed, V4Stolen, V6Stolen, ARPSpoofed, AdvertisementSpoofed:
			if !claims {
				t.Errorf("%s: the third station's address is not in it", k)
			}
		default:
			if claims {
				t.Errorf("%s: the third station's address is in it", k)
			}
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
