package maps

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"dpud/internal/packet"
	"dpud/pkg/record"
)

func TestIngressFromNode(t *testing.T) {
	judge(t, makeRack(t, RoleNode), "ingress", []verdictCase{
		{"one tenant, IPv4", udp4(n1, n2), "passed", nil},
		{"one tenant, IPv6", udp6(n1, n2), "passed", nil},
		{"node of another DPU", udp4(n1, n7), "passed", nil},
		{"service, IPv4", udp4(n1, service), "passed", nil},
		{"service, IPv6", udp6(n1, service), "passed", nil},
		{"other tenant, IPv4", udp4(n1, n3), "tenant_mismatch", nil},
		{"other tenant, IPv6", udp6(n1, n3), "tenant_mismatch", nil},
		{"to unassigned, IPv4", udp4(n1, n6), "destination_unassigned", nil},
		{"to unassigned, IPv6", udp6(n1, n6), "destination_unassigned", nil},
		{"to nobody, IPv4", udp4(n1, unknown), "destination_unknown", nil},
		{"to nobody, IPv6", udp6(n1, unknown), "destination_unknown", nil},
		{"to the DPU", udp4(n1, dpu), "destination_unknown", nil},
		{"from nobody, IPv4", udp4(unknown, n2), "source_unknown", nil},
		{"from nobody, IPv6", udp6(unknown, n2), "source_unknown", nil},
		{"as a service", udp4(service, n2), "source_unknown", nil},
		{"from another port's address and MAC", udp4(n2, n1), "source_spoofed", nil},
		{"from another node's address", packet.Frame{Dst: n2.mac, Src: n1.mac}.UDP(netip.AddrPortFrom(n3.v4, 1), netip.AddrPortFrom(n2.v4, 2), nil), "source_spoofed", nil},
		{"from a neighbour's address on the port", packet.Frame{Dst: n2.mac, Src: n1.mac}.UDP(netip.AddrPortFrom(n8.v6, 1), netip.AddrPortFrom(n2.v6, 2), nil), "source_spoofed", nil},
		{"by the MAC of another", edit(udp4(n1, n2), 0, n3.mac[:]...), "destination_mac", nil},
		{"by broadcast", edit(udp4(n1, n2), 0, packet.Broadcast[:]...), "destination_mac", nil},
		{"to a neighbour on the port", udp4(n1, n8), "hairpin", nil},
		{"to itself", udp4(n1, n1), "hairpin", nil},
		{"to an IPv4 group", n1.to(n2).IP(n1.v4, netip.MustParseAddr("224.0.0.251"), packet.ProtoUDP, nil), "destination_multicast", nil},
		{"to IPv4 broadcast", n1.to(n2).IP(n1.v4, netip.MustParseAddr("255.255.255.255"), packet.ProtoUDP, nil), "destination_multicast", nil},
		{"to an IPv6 group", n1.to(n2).IP(n1.v6, netip.MustParseAddr("ff02::fb"), packet.ProtoUDP, nil), "destination_multicast", nil},
		{"from a multicast MAC", edit(udp4(n1, n2), 6, 0x33, 0x33), "source_mac", nil},
		{"LLDP", n1.to(n2).Bytes(0x88cc, make([]byte, 46)), "ethertype", nil},
		{"802.3 length", n1.to(n2).Bytes(46, make([]byte, 46)), "ethertype", nil},
		{"first IPv4 fragment", ipv4Fragment(n1, n2, 0x2000), "passed", nil},
		{"later IPv4 fragment", ipv4Fragment(n1, n2, 0x0010), "passed", nil},
		{"later IPv4 fragment to another tenant", ipv4Fragment(n1, n3, 0x0010), "tenant_mismatch", nil},
		{"Ethernet padding", append(udp4(n1, n2), make([]byte, 18)...), "passed", nil},
		{"bigger than a page", n1.to(n2).IP(n1.v4, n2.v4, packet.ProtoUDP, make([]byte, 3000)), "passed", nil},
	})
}

func TestIngressFromUplink(t *testing.T) {
	d := makeRack(t, RoleUplink) // n1, n4 and n8 are other DPUs' nodes now
	fromNobody := packet.Frame{Dst: dpu.mac, Src: unknown.mac}
	judge(t, d, "ingress", []verdictCase{
		{"one tenant, IPv4", udp4(n1, n2), "passed", nil},
		{"one tenant, IPv6", udp6(n1, n2), "passed", nil},
		{"other tenant", udp4(n1, n3), "tenant_mismatch", nil},
		{"transit between uplinks", udp4(n1, n7), "passed", nil},
		{"between neighbours on the uplink", udp4(n1, n8), "hairpin", nil},
		{"service to node, IPv4", udp4(service, n2), "passed", nil},
		{"service to node, IPv6", udp6(service, n2), "passed", nil},
		{"service to unassigned", udp4(service, n6), "destination_unassigned", nil},
		{"service by another MAC", edit(udp4(service, n2), 6, peer.mac[:]...), "source_spoofed", nil},
		{"service in a VLAN", packet.Frame{Dst: n2.mac, Src: service.mac, Tags: packet.VLAN(10)}.IP(service.v4, n2.v4, packet.ProtoUDP, nil), "source_spoofed", nil},
		{"service to service", udp4(service, service), "hairpin", nil},
		{"node to service, both out there", udp4(n1, service), "hairpin", nil},
		{"stranger to node", udp4(peer, n2), "source_unknown", nil},
		{"stranger to DPU, IPv4", udp4(peer, dpu), "passed_local", nil},
		{"stranger to DPU, IPv6", udp6(peer, dpu), "passed_local", nil},
		{"service to DPU", udp4(service, dpu), "passed_local", nil},
		{"node to DPU, IPv4", udp4(n1, dpu), "local_from_node", nil},
		{"node to DPU, IPv6", udp6(n1, dpu), "local_from_node", nil},
		{"node's MAC to DPU", edit(udp4(peer, dpu), 6, n1.mac[:]...), "local_from_node", nil},
		{"node's address to DPU", fromNobody.IP(n2.v4, dpu.v4, packet.ProtoUDP, nil), "local_from_node", nil},
		{"node's IPv6 address to DPU", fromNobody.IP(n2.v6, dpu.v6, packet.ProtoUDP, nil), "local_from_node", nil},
		{"to DPU by a node's MAC", edit(udp4(peer, dpu), 0, n2.mac[:]...), "destination_mac", nil},
		{"to another DPU", udp4(peer, peer), "source_unknown", nil},
	})
	// A node's address that is listed by mistake stays the node's.
	if err := d.SetLocal([]netip.Addr{peer.v4, n2.v4, n2.v6}); err != nil {
		t.Fatal(err)
	}
	judge(t, d, "ingress", []verdictCase{
		{"IPv4 address listed by mistake", udp4(n1, n2), "passed", nil},
		{"IPv6 address listed by mistake", udp6(n1, n2), "passed", nil},
		{"request for an address listed by mistake", unicast(request(n1, n2), n2), "passed", nil},
		{"solicitation of an address listed by mistake", unicast(solicit(n1, n1.v6, n2.v6), n2), "passed", nil},
		{"no longer local", udp4(peer, dpu), "source_unknown", nil},
		{"newly local", udp4(dpu, peer), "passed_local", nil},
	})
}

// The egress check sees what leaves on port 1.
func TestEgress(t *testing.T) {
	judge(t, makeRack(t, RoleNode), "egress", []verdictCase{
		{"one tenant, IPv4", udp4(n2, n1), "passed", nil},
		{"one tenant, IPv6", udp6(n2, n1), "passed", nil},
		{"from a service, IPv4", udp4(service, n1), "passed", nil},
		{"from a service, IPv6", udp6(service, n1), "passed", nil},
		{"from a service by another MAC", edit(udp4(service, n1), 6, peer.mac[:]...), "source_spoofed", nil},
		{"other tenant, IPv4", udp4(n3, n1), "tenant_mismatch", nil},
		{"other tenant, IPv6", udp6(n3, n1), "tenant_mismatch", nil},
		{"from unassigned", udp4(n6, n1), "source_unassigned", nil},
		{"from the DPU", udp4(dpu, n1), "source_unknown", nil},
		{"from nobody", udp4(unknown, n1), "source_unknown", nil},
		{"another port's packet", udp4(n1, n2), "hairpin", nil},
		{"to another port", udp4(n2, n7), "egress_port", nil},
		{"to another port's service", udp4(n2, service), "egress_port", nil},
		{"back where it came from", udp4(n8, n1), "hairpin", nil},
		{"between VLANs of the port", retag(udp4(n4, n1), 0), "passed", nil},
		{"in the right VLAN", retag(udp4(n2, n4), 10), "passed", nil},
		{"in the wrong VLAN", retag(udp4(n2, n4), 11), "egress_port", nil},
		{"without the VLAN", udp4(n2, n4), "egress_port", nil},
		{"in a VLAN that the node has not", retag(udp4(n2, n1), 10), "egress_port", nil},
		{"by broadcast", edit(udp4(n2, n1), 0, packet.Broadcast[:]...), "destination_mac", nil},
		{"MLD report", n2.to(n1).IP(linkLocal1, netip.MustParseAddr("ff02::16"), packet.ProtoICMPv6, make([]byte, 20)), "source_unknown", nil},
		{"two tags", packet.Frame{Dst: n1.mac, Src: n2.mac, Tags: []packet.Tag{{ID: 1}, {ID: 2}}}.IP(n2.v4, n1.v4, packet.ProtoUDP, nil), "vlan_stacked", nil},
	})
}

func TestVLAN(t *testing.T) {
	tags := func(from, to station, tags ...packet.Tag) []byte {
		f := from.to(to)
		f.Tags = tags
		return f.IP(from.v4, to.v4, packet.ProtoUDP, []byte("12345678"))
	}
	judge(t, makeRack(t, RoleNode), "ingress", []verdictCase{
		{"untagged to tagged", tags(n1, n5), "passed", tags(n1, n5, packet.Tag{ID: 20})},
		{"tagged to untagged", tags(n4, n2, packet.Tag{ID: 10}), "passed", tags(n4, n2)},
		{"tagged to tagged", tags(n4, n5, packet.Tag{ID: 10, Priority: 5}), "passed", tags(n4, n5, packet.Tag{ID: 20, Priority: 5})},
		{"between VLANs of a port", tags(n4, n1, packet.Tag{ID: 10}), "passed", tags(n4, n1)},
		{"priority tag to untagged", tags(n1, n2, packet.Tag{Priority: 3}), "passed", nil},
		{"priority tag to tagged", tags(n1, n5, packet.Tag{Priority: 3}), "passed", tags(n1, n5, packet.Tag{ID: 20, Priority: 3})},
		{"to a service", tags(n4, service, packet.Tag{ID: 10}), "passed", tags(n4, service)},
		{"without its tag", tags(n4, n2), "source_spoofed", nil},
		{"in another VLAN", tags(n4, n2, packet.Tag{ID: 11}), "source_spoofed", nil},
		{"tagged without a VLAN", tags(n1, n2, packet.Tag{ID: 10}), "source_spoofed", nil},
		{"two tags", tags(n4, n2, packet.Tag{ID: 10}, packet.Tag{ID: 10}), "vlan_stacked", nil},
		{"priority tag before the tag", tags(n4, n2, packet.Tag{}, packet.Tag{ID: 10}), "vlan_stacked", nil},
		{"802.1ad", tags(n4, n2, packet.Tag{Type: packet.TypeQinQ, ID: 10}), "vlan_stacked", nil},
		{"802.1ad and 802.1Q", tags(n4, n2, packet.Tag{Type: packet.TypeQinQ, ID: 1}, packet.Tag{ID: 10}), "vlan_stacked", nil},
		{"three tags", tags(n4, n2, packet.Tag{ID: 10}, packet.Tag{ID: 10}, packet.Tag{ID: 10}), "vlan_depth", nil},
		{"tag cut off", tags(n4, n2, packet.Tag{ID: 10})[:16], "truncated", nil},
		{"second tag cut off", tags(n4, n2, packet.Tag{ID: 10}, packet.Tag{ID: 10})[:20], "truncated", nil},
	})
}

func TestMalformedIP(t *testing.T) {
	v4, v6 := udp4(n1, n2), udp6(n1, n2)
	withOptions := n1.to(n2).Bytes(packet.TypeIPv4, packet.IPv4{Src: n1.v4, Dst: n2.v4, Proto: packet.ProtoUDP, Options: make([]byte, 40)}.Bytes(nil))
	judge(t, makeRack(t, RoleNode), "ingress", []verdictCase{
		{"IPv4 options", withOptions, "passed", nil},
		{"IPv4 options cut off", withOptions[:70], "truncated", nil},
		{"IPv4 header cut off", v4[:33], "truncated", nil},
		{"IPv4 length beyond frame", edit(v4, 16, 1, 0), "truncated", nil},
		{"IPv4 length below header", edit(v4, 16, 0, 19), "malformed", nil},
		{"IPv4 header length 4 words", edit(v4, 14, 0x44), "malformed", nil},
		{"IPv4 version 6", edit(v4, 14, 0x65), "malformed", nil},
		{"IPv6 header cut off", v6[:53], "truncated", nil},
		{"IPv6 length beyond frame", edit(v6, 18, 1, 0), "truncated", nil},
		{"IPv6 version 4", edit(v6, 14, 0x40), "malformed", nil},
	})
}

func TestExtensionHeaders(t *testing.T) {
	chain := func(headers ...uint8) []byte { // each header 8 bytes, before UDP
		payload := packet.UDP(netip.AddrPortFrom(n1.v6, 1), netip.AddrPortFrom(n2.v6, 2), nil)
		next := uint8(packet.ProtoUDP)
		for i := len(headers) - 1; i >= 0; i-- {
			payload = packet.Extension(next, 8, payload)
			next = headers[i]
		}
		return n1.to(n2).IP(n1.v6, n2.v6, next, payload)
	}
	solicitation := packet.ICMPv6(n1.v6, n2.v6, packet.NeighbourSolicitation, packet.Solicitation(n2.v6))
	in := func(next uint8, payload []byte) []byte { return n1.to(n2).IP(n1.v6, n2.v6, next, payload) }
	const fragment = packet.ProtoFragment
	judge(t, makeRack(t, RoleNode), "ingress", []verdictCase{
		{"hop-by-hop", chain(packet.ProtoHopByHop), "passed", nil},
		{"six headers", chain(0, 60, 60, 60, 60, 60), "passed", nil},
		{"seven headers", chain(0, 60, 60, 60, 60, 60, 60), "extension_headers", nil},
		{"long chain", in(60, packet.Extension(packet.ProtoUDP, 264, make([]byte, 8))), "extension_headers", nil},
		{"chain cut off", in(60, []byte{60, 4, 0, 0, 0, 0, 0, 0}), "extension_headers", nil},
		{"authentication header", in(51, append([]byte{packet.ProtoUDP, 4}, make([]byte, 30)...)), "passed", nil},
		{"no next header", in(packet.ProtoNoNext, nil), "passed", nil},
		{"ESP", in(50, make([]byte, 16)), "passed", nil},
		{"first fragment", in(fragment, packet.Fragment(packet.ProtoUDP, 0, true, make([]byte, 8))), "passed", nil},
		{"later fragment", in(fragment, packet.Fragment(packet.ProtoUDP, 8, false, make([]byte, 8))), "passed", nil},
		{"later fragment that looks like discovery", in(fragment, packet.Fragment(packet.ProtoICMPv6, 8, false, solicitation)), "passed", nil},
		{"fragmented discovery", in(fragment, packet.Fragment(packet.ProtoICMPv6, 0, true, solicitation)), "nd_extension", nil},
		{"atomic fragment of discovery", in(fragment, packet.Fragment(packet.ProtoICMPv6, 0, false, solicitation)), "nd_extension", nil},
		{"discovery behind options", in(60, packet.Extension(packet.ProtoICMPv6, 16, solicitation)), "nd_extension", nil},
		{"discovery behind options in a fragment", in(fragment, packet.Fragment(60, 0, true, packet.Extension(packet.ProtoICMPv6, 16, solicitation))), "nd_extension", nil},
		{"first fragment without the chain", in(fragment, packet.Fragment(60, 0, true, nil)), "extension_headers", nil},
		{"ICMPv6 without a type", in(packet.ProtoICMPv6, nil), "truncated", nil},
		{"echo", pingFrame(n1, n2), "passed", nil},
	})
}

func TestUnknownPort(t *testing.T) {
	d := makeRack(t, RoleNode)
	if err := d.DeletePort(here); err != nil {
		t.Fatal(err)
	}
	judge(t, d, "ingress", []verdictCase{{"in", udp4(n1, n2), "unknown_port", nil}})
	judge(t, d, "egress", []verdictCase{{"out", udp4(n2, n1), "unknown_port", nil}})
}

// A frame may reach the bridge past XDP: redirected behind it, or while its port goes down. At the egress its source
// must have come in on its own port, whatever its addresses say.
func TestEgressAsksWhereAFrameCameIn(t *testing.T) {
	for _, c := range []struct {
		name   string
		role   Role
		frame  []byte
		origin int
		pass   bool
	}{
		{"to a node, from the sender's port", RoleNode, udp4(n2, n1), 2, true},
		{"to a node, from another node's port", RoleNode, udp4(n2, n1), 3, false},
		{"to a node, from the uplink", RoleNode, udp4(n2, n1), uplinkPort, false},
		{"to a node, from a link that is no port", RoleNode, udp4(n2, n1), 77, false},
		{"to a node, from the DPU", RoleNode, udp4(n2, n1), 0, false},
		{"to a node, of a service, from the uplink", RoleNode, udp4(service, n1), uplinkPort, true},
		{"to a node, of a service, from a node's port", RoleNode, udp4(service, n1), 3, false},
		{"out, from the sender's port", RoleUplink, udp4(n2, n1), 2, true},
		{"out, from another node's port", RoleUplink, udp4(n2, n1), 3, false},
		{"out, to another tenant", RoleUplink, udp4(n3, n1), 3, false},
		{"out, to a service", RoleUplink, udp4(n2, service), 2, true},
		{"out, to nobody known", RoleUplink, udp4(n2, unknown), 2, false},
		{"out, the DPU's own", RoleUplink, udp4(dpu, peer), 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := makeRack(t, c.role)
			if passed, _ := runFrom(t, d, "egress", c.frame, c.origin); passed != c.pass {
				t.Errorf("passed: %t, want %t", passed, c.pass)
			}
		})
	}
}

// With empty maps nothing passes, on any role of port.
func TestEmptyMaps(t *testing.T) {
	frames := map[string][]byte{
		"IPv4": udp4(n1, n2), "IPv6": udp6(n1, n2), "service": udp4(service, n2), "DPU": udp4(peer, dpu),
		"ARP": n1.to(station{mac: packet.Broadcast}).ARP(packet.ARP{Operation: packet.ARPRequest, SenderMAC: n1.mac, Sender: n1.v4, Target: n2.v4}),
		"NS":  n1.to(n2).Discovery(n1.v6, n2.v6, packet.NeighbourSolicitation, packet.Solicitation(n2.v6)),
	}
	for _, role := range []Role{0, RoleNode, RoleUplink} {
		d := loadTest(t)
		if role != 0 {
			if err := d.SetPort(here, role); err != nil {
				t.Fatal(err)
			}
			// Where frames come in that leave here: what leaves an uplink otherwise is the DPU's own.
			if err := d.SetPort(uplinkPort, RoleNode); err != nil {
				t.Fatal(err)
			}
		}
		for name, frame := range frames {
			for _, hook := range []string{"ingress", "egress"} {
				if passed, _ := run(t, d, hook, frame); passed {
					t.Errorf("%s passed at %s of a port that is %s", name, hook, role)
				}
			}
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// What a program reads while the kernel gives the element to another node is not believed.
func TestTenantOfAnotherNode(t *testing.T) {
	d := makeRack(t, RoleNode)
	if err := d.maps.NodeTenant.Update(datapathNodeKey{Node: 3}, datapathNodeTenant{Tenant: 1, Node: 2}, ebpf.UpdateExist); err != nil {
		t.Fatal(err)
	}
	judge(t, d, "ingress", []verdictCase{{"in", udp4(n1, n3), "destination_unassigned", nil}})
	judge(t, d, "egress", []verdictCase{{"out", udp4(n3, n1), "source_unassigned", nil}})
}

func ipv4Fragment(from, to station, fragment uint16) []byte {
	ip := packet.IPv4{Src: from.v4, Dst: to.v4, Proto: packet.ProtoUDP, Fragment: fragment}
	return from.to(to).Bytes(packet.TypeIPv4, ip.Bytes(make([]byte, 16)))
}

func pingFrame(from, to station) []byte {
	proto, message := packet.Ping(from.v6, to.v6, 1, 1, nil)
	return from.to(to).IP(from.v6, to.v6, proto, message)
}

// retag returns an IPv4 frame with another VLAN, 0 for none.
func retag(frame []byte, vlan uint16) []byte { return retagAs(frame, vlan, packet.TypeIPv4) }

func retagAs(frame []byte, vlan, ethertype uint16) []byte {
	f := packet.Frame{Dst: record.MAC(frame[:6]), Src: record.MAC(frame[6:12]), Tags: packet.VLAN(vlan)}
	payload := frame[14:]
	if frame[12] == packet.TypeVLAN>>8 {
		payload = frame[18:]
	}
	return f.Bytes(ethertype, payload)
}
