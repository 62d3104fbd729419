package packet

import (
	"encoding/hex"
	"net/netip"
	"testing"

	"dpud/pkg/record"
)

// The bytes were checked with tcpdump -vv, which found every checksum correct.
func TestBytes(t *testing.T) {
	f := Frame{Dst: record.MAC{2, 0, 0, 0, 0, 2}, Src: record.MAC{2, 0, 0, 0, 0, 1}}
	a4, b4 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	a6, b6 := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	tagged := f
	tagged.Tags = []Tag{{ID: 10, Priority: 3}}
	proto, ping := Ping(a4, b4, 1, 2, []byte("hello"))
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"udp4", f.UDP(netip.AddrPortFrom(a4, 1000), netip.AddrPortFrom(b4, 2000), []byte("abc")), "02000000000202000000000108004500001f00000000401166cc0a0000010a00000203e807d0000b1bbb616263"},
		{"udp6", f.UDP(netip.AddrPortFrom(a6, 1000), netip.AddrPortFrom(b6, 2000), []byte("abc")), "02000000000202000000000186dd60000000000b1140fd000000000000000000000000000001fd00000000000000000000000000000203e807d0000b35b9616263"},
		{"ping", tagged.IP(a4, b4, proto, ping), "0200000000020200000000018100600a08004500002100000000400166da0a0000010a0000020800b42a0001000268656c6c6f"},
		{"arp", f.ARP(ARP{Operation: ARPRequest, SenderMAC: f.Src, Sender: a4, Target: b4}), "020000000002020000000001080600010800060400010200000000010a0000010000000000000a000002"},
		{"solicitation", f.Discovery(a6, SolicitedNode(b6), NeighbourSolicitation, Solicitation(b6, Option(OptionSourceMAC, f.Src[:]))), "02000000000202000000000186dd6000000000203afffd000000000000000000000000000001ff0200000000000000000001ff00000287007d9700000000fd0000000000000000000000000000020101020000000001"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := hex.EncodeToString(c.got); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}
