/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The two sides of a packet: who an address or a MAC stands for, and whether that side may be where it is. */
#ifndef DPUD_PEER_H
#define DPUD_PEER_H

#include "maps.h"
#include "parse.h"

/* One side of a packet: a node's endpoint, or, with node 0, the neighbour that leads to a service. */
struct peer {
	__u32 node;
	__u32 ifindex; /* of a node only */
	__u16 vlan;    /* 0 for a service */
	__u8 mac[6];
};

static __always_inline bool same_mac(const __u8 *a, const __u8 *b)
{
	return !__builtin_memcmp(a, b, ETH_ALEN);
}

/* Map values are copied at once: none outlives the lookup. */
static __always_inline bool is_endpoint(const struct endpoint *e, struct peer *peer)
{
	if (!e)
		return false;
	peer->node = e->node;
	peer->ifindex = e->ifindex;
	peer->vlan = e->vlan;
	__builtin_memcpy(peer->mac, e->mac, ETH_ALEN);
	return true;
}

static __always_inline bool is_service(const struct service *s, struct peer *peer)
{
	if (!s)
		return false;
	peer->node = 0;
	peer->ifindex = 0;
	peer->vlan = 0;
	__builtin_memcpy(peer->mac, s->mac, ETH_ALEN);
	return true;
}

static __always_inline bool find_node4(__be32 addr, struct peer *peer)
{
	struct endpoint4_key key = {};

	__builtin_memcpy(key.addr, &addr, sizeof(key.addr));
	return is_endpoint(bpf_map_lookup_elem(&endpoint4, &key), peer);
}

static __always_inline bool find_node6(const struct in6_addr *addr, struct peer *peer)
{
	struct endpoint6_key key = {};

	__builtin_memcpy(key.addr, addr, sizeof(key.addr));
	return is_endpoint(bpf_map_lookup_elem(&endpoint6, &key), peer);
}

static __always_inline bool find_service4(__be32 addr, struct peer *peer)
{
	struct prefix4 key = {};

	key.prefixlen = 32;
	__builtin_memcpy(key.addr, &addr, sizeof(key.addr));
	return is_service(bpf_map_lookup_elem(&services4, &key), peer);
}

static __always_inline bool find_service6(const struct in6_addr *addr, struct peer *peer)
{
	struct prefix6 key = {};

	key.prefixlen = 128;
	__builtin_memcpy(key.addr, addr, sizeof(key.addr));
	return is_service(bpf_map_lookup_elem(&services6, &key), peer);
}

static __always_inline bool find_node_mac(const __u8 *mac, struct peer *peer)
{
	struct mac_key key = {};

	__builtin_memcpy(key.mac, mac, ETH_ALEN);
	return is_endpoint(bpf_map_lookup_elem(&endpoint_mac, &key), peer);
}

static __always_inline bool find_service_mac(const __u8 *mac, struct peer *peer)
{
	struct mac_key key = {};

	__builtin_memcpy(key.mac, mac, ETH_ALEN);
	return is_service(bpf_map_lookup_elem(&service_mac, &key), peer);
}

/* Services are behind uplinks: what comes in from a node's port is never from one. */
static __always_inline bool services_may_send(const struct packet *p)
{
	return p->hook == HOOK_EGRESS || p->role == PORT_UPLINK;
}

static __always_inline bool find_source4(const struct packet *p, __be32 addr, struct peer *peer)
{
	return find_node4(addr, peer) || (services_may_send(p) && find_service4(addr, peer));
}

static __always_inline bool find_source6(const struct packet *p, const struct in6_addr *addr, struct peer *peer)
{
	return find_node6(addr, peer) || (services_may_send(p) && find_service6(addr, peer));
}

static __always_inline bool find_source_mac(const struct packet *p, struct peer *peer)
{
	const __u8 *mac = p->eth->h_source;

	return find_node_mac(mac, peer) || (services_may_send(p) && find_service_mac(mac, peer));
}

static __always_inline bool find_destination4(__be32 addr, struct peer *peer)
{
	return find_node4(addr, peer) || find_service4(addr, peer);
}

static __always_inline bool find_destination6(const struct in6_addr *addr, struct peer *peer)
{
	return find_node6(addr, peer) || find_service6(addr, peer);
}

/* The node sits behind the port and the VLAN of this packet. */
static __always_inline bool is_here(const struct packet *p, const struct peer *node)
{
	return node->ifindex == p->ifindex && node->vlan == p->vlan;
}

static __always_inline enum port_role role_of(__u32 ifindex)
{
	struct port_key key = {.ifindex = ifindex};
	struct port *port = bpf_map_lookup_elem(&ports, &key);

	return port ? port->role : 0;
}

/* What leaves on an uplink and came in on no node's port: the DPU's own. */
static __always_inline bool is_own(const struct packet *p)
{
	return role_of(p->ifindex) == PORT_UPLINK && role_of(p->origin) != PORT_NODE;
}

/*
 * Not every frame of a port has met XDP: native XDP of veth is skipped by bpf_redirect_peer and while the port goes
 * down, generic XDP by what was redirected before. So the port that it came in on is compared again.
 */
static __always_inline enum drop_reason check_origin(const struct packet *p, const struct peer *source)
{
	if (source->node)
		return source->ifindex == p->origin ? PASSED : DROP_SOURCE_SPOOFED;
	return role_of(p->origin) == PORT_UPLINK ? PASSED : DROP_SOURCE_SPOOFED;
}

static __always_inline enum drop_reason check_source(const struct packet *p, const struct peer *source)
{
	if (!same_mac(source->mac, p->eth->h_source))
		return DROP_SOURCE_SPOOFED;
	if (p->hook == HOOK_EGRESS) {
		/* What leaves towards a node can't have come from there. */
		return source->node && is_here(p, source) ? DROP_HAIRPIN : check_origin(p, source);
	}
	if (source->node)
		return is_here(p, source) ? PASSED : DROP_SOURCE_SPOOFED;
	return p->vlan == 0 ? PASSED : DROP_SOURCE_SPOOFED; /* a service, so on an uplink */
}

static __always_inline enum drop_reason check_destination(const struct packet *p, const struct peer *destination)
{
	if (p->hook == HOOK_EGRESS) {
		if (!destination->node)
			return p->role == PORT_UPLINK && p->vlan == 0 ? PASSED : DROP_EGRESS_PORT;
		return is_here(p, destination) ? PASSED : DROP_EGRESS_PORT;
	}
	/* Neighbours on one wire reach each other without us; sending a frame back would duplicate it. */
	if (destination->node)
		return is_here(p, destination) ? DROP_HAIRPIN : PASSED;
	return p->role == PORT_UPLINK ? DROP_HAIRPIN : PASSED;
}

/* The bridge forwards by MAC: it must lead where the address says. */
static __always_inline enum drop_reason check_destination_mac(const struct packet *p, const struct peer *destination)
{
	return same_mac(destination->mac, p->eth->h_dest) ? PASSED : DROP_DESTINATION_MAC;
}

/* The tenant to which the node is assigned, 0 if to none. */
static __always_inline __u32 tenant_of(__u32 node)
{
	struct node_key key = {.node = node};
	const volatile __u64 *word = bpf_map_lookup_elem(&node_tenant, &key);
	union {
		__u64 word;
		struct node_tenant fields;
	} entry;

	if (!word)
		return 0;
	/* The element may be freed and reused for another node at any time: read once, believed only for this node. */
	entry.word = *word;
	return entry.fields.node == node ? entry.fields.tenant : 0;
}

static __always_inline enum drop_reason check_tenants(const struct peer *source, const struct peer *destination)
{
	__u32 from = 0, to = 0;

	/* Services are all behind uplinks, so check_destination has dropped it already. */
	if (!source->node && !destination->node)
		return DROP_HAIRPIN;
	if (source->node) {
		from = tenant_of(source->node);
		if (!from)
			return DROP_SOURCE_UNASSIGNED;
	}
	if (destination->node) {
		to = tenant_of(destination->node);
		if (!to)
			return DROP_DESTINATION_UNASSIGNED;
	}
	/* One side is a service: shared by every assigned node. */
	if (!from || !to)
		return PASSED;
	return from == to ? PASSED : DROP_TENANT_MISMATCH;
}

#endif
