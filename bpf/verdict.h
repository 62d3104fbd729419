/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * The verdict: a packet passes between nodes of one tenant, or between an assigned node and a shared service. The
 * same code judges at both hooks: at ingress its source must be behind the port, at egress its destination.
 */
#ifndef DPUD_VERDICT_H
#define DPUD_VERDICT_H

#include "arp.h"
#include "nd.h"

static __always_inline enum drop_reason judge_sides(struct packet *p, const struct peer *source, bool known,
						    struct peer *destination, bool multicast)
{
	enum drop_reason reason;

	reason = check_source(p, source);
	if (reason)
		return reason;
	if (multicast)
		return DROP_DESTINATION_MULTICAST;
	if (!known)
		return DROP_DESTINATION_UNKNOWN;
	reason = check_destination(p, destination);
	if (reason)
		return reason;
	reason = check_destination_mac(p, destination);
	if (reason)
		return reason;
	return check_tenants(source, destination);
}

/* 224.0.0.0/4 and the limited broadcast address. */
static __always_inline bool is_multicast4(__be32 addr)
{
	return (addr & bpf_htonl(0xf0000000)) == bpf_htonl(0xe0000000) || addr == bpf_htonl(0xffffffff);
}

/* Fragments need nothing of their own: the verdict asks for nothing behind the addresses. */
static __always_inline enum drop_reason judge_ipv4(struct packet *p, struct peer *destination)
{
	struct iphdr *ip;
	struct peer source;
	enum drop_reason reason;
	bool known;

	reason = parse_ipv4(p, &ip);
	if (reason)
		return reason;
	known = find_destination4(ip->daddr, destination);
	if ((!known || !destination->node) && is_local4(p, ip->daddr))
		return judge_local(p, find_node4(ip->saddr, &source));
	if (!find_source4(p, ip->saddr, &source))
		return DROP_SOURCE_UNKNOWN;
	return judge_sides(p, &source, known, destination, is_multicast4(ip->daddr));
}

static __always_inline enum drop_reason judge_ipv6(struct packet *p, struct peer *destination)
{
	struct ipv6hdr *ip;
	struct upper upper = {};
	struct peer source;
	enum drop_reason reason;
	bool known;

	reason = parse_ipv6(p, &ip);
	if (reason)
		return reason;
	reason = walk_extensions(p, ip, &upper);
	if (reason)
		return reason;
	if (upper.proto == IPPROTO_ICMPV6 && !upper.hidden) {
		__u8 *type = p->cursor.pos;

		if ((void *)(type + 1) > p->cursor.end)
			return DROP_TRUNCATED;
		if (*type >= ND_FIRST && *type <= ND_LAST)
			return upper.extended ? DROP_ND_EXTENSION : judge_nd(p, ip, destination);
	}
	known = find_destination6(&ip->daddr, destination);
	if ((!known || !destination->node) && is_local6(p, &ip->daddr))
		return judge_local(p, find_node6(&ip->saddr, &source));
	if (!find_source6(p, &ip->saddr, &source))
		return DROP_SOURCE_UNKNOWN;
	return judge_sides(p, &source, known, destination, is_multicast6(&ip->daddr));
}

/* Judges the packet; if it PASSED, destination says where it goes. */
static __always_inline enum drop_reason judge(struct packet *p, const struct settings *s, struct peer *destination)
{
	struct port_key key = {.ifindex = p->ifindex};
	struct port *port = bpf_map_lookup_elem(&ports, &key);
	enum drop_reason reason;

	if (!port)
		return DROP_UNKNOWN_PORT;
	p->role = port->role;
	/* The coarse clock is a few milliseconds late at most, and some 20 ns cheaper. */
	if (s->deadline && bpf_ktime_get_coarse_ns() > s->deadline)
		return DROP_LEASE_EXPIRED;
	reason = parse_ethernet(p);
	if (reason)
		return reason;
	if (p->eth->h_source[0] & 1)
		return DROP_SOURCE_MAC;
	switch (p->proto) {
	case bpf_htons(ETH_P_IP):
		return judge_ipv4(p, destination);
	case bpf_htons(ETH_P_IPV6):
		return judge_ipv6(p, destination);
	case bpf_htons(ETH_P_ARP):
		return judge_arp(p, destination);
	default:
		return DROP_ETHERTYPE;
	}
}

#endif
