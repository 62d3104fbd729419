package maps

import (
	"net/netip"
	"testing"

	"dpud/internal/packet"
	"dpud/pkg/record"
)

// arp is a request by broadcast, or a reply by unicast.
func arp(from station, op uint16, sender, target netip.Addr, dst record.MAC) []byte {
	f := packet.Frame{Dst: dst, Src: from.mac, Tags: packet.VLAN(from.vlan)}
	return f.ARP(packet.ARP{Operation: op, SenderMAC: from.mac, Sender: sender, Target: target})
}

func request(from, to station) []byte {
	return arp(from, packet.ARPRequest, from.v4, to.v4, packet.Broadcast)
}

func reply(from, to station) []byte { return arp(from, packet.ARPReply, from.v4, to.v4, to.mac) }

// unicast returns the frame with the destination MAC of a station.
func unicast(frame []byte, to station) []byte { return edit(frame, 0, to.mac[:]...) }

func TestARPFromNode(t *testing.T) {
	r := request(n1, n2)
	judge(t, makeRack(t, RoleNode), "ingress", []verdictCase{
		{"request", r, "passed", unicast(r, n2)},
		{"request by unicast", unicast(r, n2), "passed", nil},
		{"request to another's MAC", unicast(r, n3), "passed", unicast(r, n2)},
		{"request into a VLAN", request(n1, n5), "passed", retagARP(unicast(request(n1, n5), n5), 20)},
		{"request out of a VLAN", request(n4, n2), "passed", retagARP(unicast(request(n4, n2), n2), 0)},
		{"request for a service", request(n1, service), "passed", unicast(request(n1, service), service)},
		{"request for the other tenant's", request(n1, n3), "tenant_mismatch", nil},
		{"request for an unassigned", request(n1, n6), "destination_unassigned", nil},
		{"request for nobody", request(n1, unknown), "destination_unknown", nil},
		{"request for the DPU", request(n1, dpu), "destination_unknown", nil},
		{"request for a neighbour", request(n1, n8), "hairpin", nil},
		{"reply", reply(n1, n2), "passed", nil},
		{"reply to a service", reply(n1, service), "passed", nil},
		{"reply to the other tenant", reply(n1, n3), "tenant_mismatch", nil},
		{"reply by broadcast", edit(reply(n1, n2), 0, packet.Broadcast[:]...), "destination_mac", nil},
		{"reply by another's MAC", unicast(reply(n1, n2), n3), "destination_mac", nil},
		{"probe", arp(n1, packet.ARPRequest, any4, n2.v4, packet.Broadcast), "passed", arp(n1, packet.ARPRequest, any4, n2.v4, n2.mac)},
		{"probe of the other tenant's", arp(n1, packet.ARPRequest, any4, n3.v4, packet.Broadcast), "tenant_mismatch", nil},
		{"probe of its own", arp(n1, packet.ARPRequest, any4, n1.v4, packet.Broadcast), "gratuitous", nil},
		{"probe by a stranger", arp(unknown, packet.ARPRequest, any4, n2.v4, packet.Broadcast), "source_unknown", nil},
		{"probe by another port's MAC", arp(n3, packet.ARPRequest, any4, n2.v4, packet.Broadcast), "source_spoofed", nil},
		{"probe by a service", arp(service, packet.ARPRequest, any4, n2.v4, packet.Broadcast), "source_unknown", nil},
		{"announcement", request(n1, n1), "gratuitous", nil},
		{"announcement by reply", arp(n1, packet.ARPReply, n1.v4, n1.v4, packet.Broadcast), "gratuitous", nil},
		{"reply from 0.0.0.0", arp(n1, packet.ARPReply, any4, n2.v4, n2.mac), "source_unknown", nil},
		{"another's address", arp(n1, packet.ARPRequest, n3.v4, n2.v4, packet.Broadcast), "source_spoofed", nil},
		{"another's MAC inside", edit(r, 22, n3.mac[:]...), "source_spoofed", nil},
		{"another's MAC outside", edit(r, 6, n3.mac[:]...), "source_spoofed", nil},
		{"a service's address", arp(n1, packet.ARPReply, service.v4, n2.v4, n2.mac), "source_unknown", nil},
		{"stranger", request(unknown, n2), "source_unknown", nil},
		{"cut off", r[:41], "truncated", nil},
		{"not Ethernet", edit(r, 14, 0, 6), "malformed", nil},
		{"not IPv4", edit(r, 16, 0x86, 0xdd), "malformed", nil},
		{"MAC of 8 bytes", edit(r, 18, 8), "malformed", nil},
		{"address of 16 bytes", edit(r, 19, 16), "malformed", nil},
		{"reverse request", edit(r, 20, 0, 3), "malformed", nil},
	})
}

func TestARPFromUplink(t *testing.T) {
	judge(t, makeRack(t, RoleUplink), "ingress", []verdictCase{
		{"request of a node", request(n1, n2), "passed", unicast(request(n1, n2), n2)},
		{"request of a service", request(service, n2), "passed", unicast(request(service, n2), n2)},
		{"reply of a service", reply(service, n2), "passed", nil},
		{"probe by a service", arp(service, packet.ARPRequest, any4, n2.v4, packet.Broadcast), "passed", arp(service, packet.ARPRequest, any4, n2.v4, n2.mac)},
		{"request of a stranger", request(peer, n2), "source_unknown", nil},
		{"request for the DPU", request(peer, dpu), "passed_local", nil},
		{"reply to the DPU", reply(peer, dpu), "passed_local", nil},
		{"probe for the DPU's address", arp(peer, packet.ARPRequest, any4, dpu.v4, packet.Broadcast), "passed_local", nil},
		{"service asks for the DPU", request(service, dpu), "passed_local", nil},
		{"node asks for the DPU", request(n1, dpu), "local_from_node", nil},
		{"stranger with a node's address asks for the DPU", arp(peer, packet.ARPRequest, n2.v4, dpu.v4, packet.Broadcast), "local_from_node", nil},
		{"between neighbours on the uplink", request(n1, n8), "hairpin", nil},
		{"for a service, both out there", request(n1, service), "hairpin", nil},
		{"announcement of a stranger", request(peer, peer), "source_unknown", nil},
		{"announcement of a service", request(service, service), "gratuitous", nil},
	})
}

func TestARPEgress(t *testing.T) {
	judge(t, makeRack(t, RoleNode), "egress", []verdictCase{
		{"request", unicast(request(n2, n1), n1), "passed", nil},
		{"request by broadcast", request(n2, n1), "destination_mac", nil},
		{"request of a service", unicast(request(service, n1), n1), "passed", nil},
		{"request of the DPU", request(dpu, n1), "source_unknown", nil},
		{"request of the other tenant", unicast(request(n3, n1), n1), "tenant_mismatch", nil},
		{"reply", reply(n2, n1), "passed", nil},
		{"reply for another port", reply(n2, n3), "egress_port", nil},
		{"probe", arp(n2, packet.ARPRequest, any4, n1.v4, n1.mac), "passed", nil},
		{"probe by a service", arp(service, packet.ARPRequest, any4, n1.v4, n1.mac), "passed", nil},
	})
}

// solicit asks for an address from another, by multicast.
func solicit(from station, src, target netip.Addr, options ...[]byte) []byte {
	group := packet.SolicitedNode(target)
	f := packet.Frame{Dst: packet.GroupMAC(group), Src: from.mac, Tags: packet.VLAN(from.vlan)}
	return f.Discovery(src, group, packet.NeighbourSolicitation, packet.Solicitation(target, options...))
}

func ownMAC(s station) []byte { return packet.Option(packet.OptionSourceMAC, s.mac[:]) }

func advertise(from, to station, dst, target netip.Addr) []byte {
	return from.to(to).Discovery(target, dst, packet.NeighbourAdvertise,
		packet.Advertisement(target, packet.Option(packet.OptionTargetMAC, from.mac[:])))
}

func TestDiscoveryFromNode(t *testing.T) {
	s := solicit(n1, n1.v6, n2.v6, ownMAC(n1))
	nonce := packet.Option(packet.OptionNonce, make([]byte, 6))
	discovery := func(dst netip.Addr, typ uint8, body []byte) []byte {
		return n1.to(n2).Discovery(n1.v6, dst, typ, body)
	}
	judge(t, makeRack(t, RoleNode), "ingress", []verdictCase{
		{"solicitation", s, "passed", unicast(s, n2)},
		{"solicitation by unicast", discovery(n2.v6, packet.NeighbourSolicitation, packet.Solicitation(n2.v6, ownMAC(n1))), "passed", nil},
		{"solicitation from link-local", solicit(n1, linkLocal1, n2.v6, ownMAC(n1)), "passed", unicast(solicit(n1, linkLocal1, n2.v6, ownMAC(n1)), n2)},
		{"solicitation into a VLAN", solicit(n1, n1.v6, n5.v6), "passed", retagIPv6(unicast(solicit(n1, n1.v6, n5.v6), n5), 20)},
		{"solicitation of a service", solicit(n1, n1.v6, service.v6), "passed", unicast(solicit(n1, n1.v6, service.v6), service)},
		{"probe", solicit(n1, any6, n2.v6, nonce), "passed", unicast(solicit(n1, any6, n2.v6, nonce), n2)},
		{"probe of its own", solicit(n1, any6, n1.v6), "gratuitous", nil},
		{"probe of link-local", solicit(n1, any6, linkLocal1), "destination_unknown", nil},
		{"solicitation of the other tenant", solicit(n1, n1.v6, n3.v6), "tenant_mismatch", nil},
		{"other tenant, from link-local", solicit(n1, linkLocal1, n3.v6), "tenant_mismatch", nil},
		{"other tenant, from ::", solicit(n1, any6, n3.v6), "tenant_mismatch", nil},
		{"solicitation of an unassigned", solicit(n1, n1.v6, n6.v6), "destination_unassigned", nil},
		{"solicitation of the DPU", solicit(n1, n1.v6, dpu.v6), "destination_unknown", nil},
		{"solicitation of a neighbour", solicit(n1, n1.v6, n8.v6), "hairpin", nil},
		{"stranger, from link-local", solicit(unknown, linkLocal1, n2.v6), "source_unknown", nil},
		{"another port's MAC, from link-local", solicit(n3, linkLocal1, n2.v6), "source_spoofed", nil},
		{"service's MAC, from link-local", solicit(service, linkLocal1, n2.v6), "source_unknown", nil},
		{"another's address", solicit(n1, n3.v6, n2.v6), "source_spoofed", nil},
		{"another's MAC in the option", solicit(n1, n1.v6, n2.v6, ownMAC(n3)), "source_spoofed", nil},
		{"another's MAC in the second option", solicit(n1, n1.v6, n2.v6, nonce, ownMAC(n3)), "source_spoofed", nil},
		{"long MAC option", solicit(n1, n1.v6, n2.v6, packet.Option(packet.OptionSourceMAC, make([]byte, 14))), "malformed", nil},
		{"option of length 0", solicit(n1, n1.v6, n2.v6, make([]byte, 8)), "malformed", nil},
		{"option beyond the message", solicit(n1, n1.v6, n2.v6, []byte{14, 2, 0, 0, 0, 0, 0, 0}), "malformed", nil},
		{"half an option", solicit(n1, n1.v6, n2.v6, []byte{14, 1, 0, 0}), "truncated", nil},
		{"nine options", solicit(n1, n1.v6, n2.v6, nonce, nonce, nonce, nonce, nonce, nonce, nonce, nonce, nonce), "malformed", nil},
		{"hop limit 64", edit(s, 21, 64), "malformed", nil},
		{"code 1", edit(s, 55, 1), "malformed", nil},
		{"another group", discovery(packet.SolicitedNode(n3.v6), packet.NeighbourSolicitation, packet.Solicitation(n2.v6)), "malformed", nil},
		{"multicast target", discovery(n2.v6, packet.NeighbourSolicitation, packet.Solicitation(netip.MustParseAddr("ff02::1"))), "malformed", nil},
		{"multicast target, to its group", solicit(n1, n1.v6, netip.MustParseAddr("ff02::1")), "malformed", nil},
		{"group that is nearly the target's", discovery(netip.MustParseAddr("ff02::2:ff00:2"), packet.NeighbourSolicitation, packet.Solicitation(n2.v6)), "malformed", nil},
		{"from site-local", solicit(n1, netip.MustParseAddr("fec0::1"), n2.v6), "source_unknown", nil},
		{"message cut off", n1.to(n2).Bytes(packet.TypeIPv6, packet.IPv6{Src: n1.v6, Dst: n2.v6, Next: packet.ProtoICMPv6, HopLimit: 255}.Bytes([]byte{135, 0, 0, 0, 0, 0, 0, 0})), "truncated", nil},
		{"message shorter than a target, padded", padded(n1.to(n2).Bytes(packet.TypeIPv6, packet.IPv6{Src: n1.v6, Dst: n2.v6, Next: packet.ProtoICMPv6, HopLimit: 255}.Bytes([]byte{135, 0, 0, 0, 0, 0, 0, 0}))), "malformed", nil},
		{"router solicitation", discovery(netip.MustParseAddr("ff02::2"), packet.RouterSolicitation, make([]byte, 20)), "nd_type", nil},
		{"router advertisement", discovery(n2.v6, packet.RouterAdvertisement, make([]byte, 20)), "nd_type", nil},
		{"redirect", discovery(n2.v6, packet.Redirect, make([]byte, 36)), "nd_type", nil},
		{"advertisement", advertise(n1, n2, n2.v6, n1.v6), "passed", nil},
		{"advertisement to link-local", advertise(n1, n2, linkLocal9, n1.v6), "passed", nil},
		{"advertisement to a service", advertise(n1, service, service.v6, n1.v6), "passed", nil},
		{"advertisement to a service's link-local", advertise(n1, service, linkLocal9, n1.v6), "passed", nil},
		{"advertisement to the other tenant", advertise(n1, n3, n3.v6, n1.v6), "tenant_mismatch", nil},
		{"advertisement to the other tenant's link-local", advertise(n1, n3, linkLocal9, n1.v6), "tenant_mismatch", nil},
		{"advertisement to a stranger's link-local", advertise(n1, unknown, linkLocal9, n1.v6), "destination_unknown", nil},
		{"advertisement by another's MAC", unicast(advertise(n1, n2, n2.v6, n1.v6), n3), "destination_mac", nil},
		{"unsolicited advertisement", advertise(n1, n2, netip.MustParseAddr("ff02::1"), n1.v6), "gratuitous", nil},
		{"advertisement of another's MAC", discovery(n2.v6, packet.NeighbourAdvertise, packet.Advertisement(n1.v6, packet.Option(packet.OptionTargetMAC, n3.mac[:]))), "source_spoofed", nil},
		{"advertisement of another's address", discovery(n2.v6, packet.NeighbourAdvertise, packet.Advertisement(n3.v6)), "source_spoofed", nil},
		{"advertisement of a service's address", discovery(n2.v6, packet.NeighbourAdvertise, packet.Advertisement(service.v6)), "source_spoofed", nil},
		{"advertisement of a neighbour's address", discovery(n2.v6, packet.NeighbourAdvertise, packet.Advertisement(n8.v6)), "source_spoofed", nil},
		{"advertisement from link-local", n1.to(n2).Discovery(linkLocal1, n2.v6, packet.NeighbourAdvertise, packet.Advertisement(n1.v6)), "passed", nil},
	})
}

func TestDiscoveryFromUplink(t *testing.T) {
	group := netip.MustParseAddr("ff02::1")
	judge(t, makeRack(t, RoleUplink), "ingress", []verdictCase{
		{"solicitation of a node", solicit(n1, n1.v6, n2.v6), "passed", unicast(solicit(n1, n1.v6, n2.v6), n2)},
		{"solicitation of a service", solicit(service, service.v6, n2.v6), "passed", unicast(solicit(service, service.v6, n2.v6), n2)},
		{"solicitation of a service's router", solicit(service, linkLocal9, n2.v6), "passed", unicast(solicit(service, linkLocal9, n2.v6), n2)},
		{"solicitation of a stranger", solicit(peer, linkLocal9, n2.v6), "source_unknown", nil},
		{"advertisement of a service", advertise(service, n2, n2.v6, service.v6), "passed", nil},
		{"advertisement of a service's address by a node with its MAC", n1.to(n2).Discovery(n1.v6, n2.v6, packet.NeighbourAdvertise, packet.Advertisement(service3.v6)), "source_spoofed", nil},
		{"advertisement of another service's address", service.to(n2).Discovery(service.v6, n2.v6, packet.NeighbourAdvertise, packet.Advertisement(service2.v6)), "source_spoofed", nil},
		{"advertisement of a node's address by a service", service.to(n2).Discovery(service.v6, n2.v6, packet.NeighbourAdvertise, packet.Advertisement(n3.v6)), "source_spoofed", nil},
		{"solicitation of the DPU", solicit(peer, peer.v6, dpu.v6), "passed_local", nil},
		{"solicitation of the DPU, from link-local", solicit(peer, linkLocal9, dpu.v6), "passed_local", nil},
		{"advertisement to the DPU", advertise(peer, dpu, dpu.v6, peer.v6), "passed_local", nil},
		{"node solicits the DPU", solicit(n1, n1.v6, dpu.v6), "local_from_node", nil},
		{"node solicits the DPU, from link-local", solicit(n1, linkLocal1, dpu.v6), "local_from_node", nil},
		{"stranger with a node's address solicits the DPU", solicit(peer, n2.v6, dpu.v6), "local_from_node", nil},
		{"router advertisement", peer.to(dpu).Discovery(linkLocal9, group, packet.RouterAdvertisement, make([]byte, 12)), "truncated", nil},
		{"longer router advertisement", peer.to(dpu).Discovery(linkLocal9, group, packet.RouterAdvertisement, make([]byte, 28)), "nd_type", nil},
	})
}

func TestDiscoveryEgress(t *testing.T) {
	s := solicit(n2, n2.v6, n1.v6)
	fromLinkLocal := unicast(solicit(n2, linkLocal9, n1.v6), n1)
	fromService := unicast(solicit(service, linkLocal9, n1.v6), n1)
	judge(t, makeRack(t, RoleNode), "egress", []verdictCase{
		{"solicitation", unicast(s, n1), "passed", nil},
		{"solicitation by multicast", s, "destination_mac", nil},
		{"solicitation from link-local", fromLinkLocal, "passed", nil},
		{"solicitation of a service's router", fromService, "passed", nil},
		{"solicitation of the DPU", solicit(dpu, linkLocal9, n1.v6), "source_unknown", nil},
		{"solicitation of the other tenant", unicast(solicit(n3, n3.v6, n1.v6), n1), "tenant_mismatch", nil},
		{"solicitation for another port", unicast(solicit(n2, n2.v6, n7.v6), n7), "egress_port", nil},
		{"advertisement", advertise(n2, n1, n1.v6, n2.v6), "passed", nil},
		{"advertisement to link-local", advertise(n2, n1, linkLocal1, n2.v6), "passed", nil},
		{"advertisement of a service", advertise(service, n1, n1.v6, service.v6), "passed", nil},
	})
}

// retagARP and retagIPv6 return a frame with another VLAN, 0 for none.
func retagARP(frame []byte, vlan uint16) []byte { return retagAs(frame, vlan, packet.TypeARP) }

func retagIPv6(frame []byte, vlan uint16) []byte { return retagAs(frame, vlan, packet.TypeIPv6) }

func padded(frame []byte) []byte { return append(frame, make([]byte, 32)...) }
