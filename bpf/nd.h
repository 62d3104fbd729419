/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * IPv6 neighbour discovery (RFC 4861, 4862, 6980): solicitations and advertisements of addresses, judged as ARP is.
 * Routers are none of a node's neighbours, so router discovery and redirects are refused.
 */
#ifndef DPUD_ND_H
#define DPUD_ND_H

#include "local.h"

#define ND_FIRST 133 /* router solicitation */
#define ND_LAST 137  /* redirect */
#define ND_SOLICITATION 135
#define ND_ADVERTISEMENT 136
#define ND_HOP_LIMIT 255

#define ND_SOURCE_MAC 1
#define ND_TARGET_MAC 2
#define ND_MAX_OPTIONS 8

struct nd {
	__u8 type;
	__u8 code;
	__be16 checksum;
	__be32 flags;
	struct in6_addr target;
};

struct nd_option {
	__u8 type;
	__u8 length; /* in units of 8 bytes */
	__u8 mac[6]; /* in a source or target MAC option */
};

_Static_assert(sizeof(struct nd) == 24, "RFC 4861, 4.3 and 4.4");
_Static_assert(sizeof(struct nd_option) == 8, "RFC 4861, 4.6.1");

static __always_inline bool is_multicast6(const struct in6_addr *a)
{
	return a->s6_addr[0] == 0xff;
}

static __always_inline bool is_link_local6(const struct in6_addr *a)
{
	return a->s6_addr[0] == 0xfe && (a->s6_addr[1] & 0xc0) == 0x80;
}

static __always_inline bool is_unspecified6(const struct in6_addr *a)
{
	return !(a->s6_addr32[0] | a->s6_addr32[1] | a->s6_addr32[2] | a->s6_addr32[3]);
}

static __always_inline bool same_address6(const struct in6_addr *a, const struct in6_addr *b)
{
	return a->s6_addr32[0] == b->s6_addr32[0] && a->s6_addr32[1] == b->s6_addr32[1] &&
	       a->s6_addr32[2] == b->s6_addr32[2] && a->s6_addr32[3] == b->s6_addr32[3];
}

/* ff02::1:ff00:0/104 and the address's last three bytes (RFC 4291, 2.7.1). */
static __always_inline bool is_solicited_node(const struct in6_addr *group, const struct in6_addr *a)
{
	return group->s6_addr32[0] == bpf_htonl(0xff020000) && group->s6_addr32[1] == 0 &&
	       group->s6_addr32[2] == bpf_htonl(1) && group->s6_addr32[3] == (a->s6_addr32[3] | bpf_htonl(0xff000000));
}

/* The link-layer addresses that a node announces must be its own, or it would draw others' packets to itself. */
static __always_inline enum drop_reason check_nd_options(struct packet *p, __u32 remaining)
{
	for (int i = 0; i < ND_MAX_OPTIONS && remaining; i++) {
		struct nd_option *option = peek(&p->cursor, sizeof(*option));
		__u32 size;

		if (!option)
			return DROP_TRUNCATED;
		size = option->length * 8;
		if (!size || size > remaining)
			return DROP_MALFORMED;
		if (option->type == ND_SOURCE_MAC || option->type == ND_TARGET_MAC) {
			if (size != sizeof(*option))
				return DROP_MALFORMED;
			if (!same_mac(option->mac, p->eth->h_source))
				return DROP_SOURCE_SPOOFED;
		}
		remaining -= size;
		if (!take(&p->cursor, size))
			return DROP_TRUNCATED;
	}
	return remaining ? DROP_MALFORMED : PASSED;
}

static __always_inline enum drop_reason parse_nd(struct packet *p, const struct ipv6hdr *ip, struct nd **header)
{
	__u32 size = bpf_ntohs(ip->payload_len);
	struct nd *nd = take(&p->cursor, sizeof(*nd));

	if (!nd)
		return DROP_TRUNCATED;
	if (nd->type != ND_SOLICITATION && nd->type != ND_ADVERTISEMENT)
		return DROP_ND_TYPE;
	if (ip->hop_limit != ND_HOP_LIMIT || nd->code || size < sizeof(*nd) || is_multicast6(&nd->target))
		return DROP_MALFORMED;
	*header = nd;
	return check_nd_options(p, size - sizeof(*nd));
}

/* Who sent it: by its address, or by its MAC if the address says nothing. */
static __always_inline bool find_nd_source(const struct packet *p, const struct ipv6hdr *ip, struct peer *source)
{
	if (is_link_local6(&ip->saddr) || is_unspecified6(&ip->saddr))
		return find_source_mac(p, source);
	return find_source6(p, &ip->saddr, source);
}

static __always_inline enum drop_reason judge_solicitation(struct packet *p, const struct ipv6hdr *ip, const struct nd *nd,
							   const struct peer *source, struct peer *destination)
{
	enum drop_reason reason;

	if (!is_solicited_node(&ip->daddr, &nd->target) && !same_address6(&ip->daddr, &nd->target))
		return DROP_MALFORMED;
	if (!find_destination6(&nd->target, destination))
		return DROP_DESTINATION_UNKNOWN;
	/* Detection of duplicates is for everybody, and nothing is flooded; the inventory has no duplicates. */
	if (source->node && source->node == destination->node)
		return DROP_GRATUITOUS;
	reason = check_destination(p, destination);
	if (reason)
		return reason;
	/* It is rewritten to the target's MAC instead of being flooded (RFC 6085); behind us it has to be. */
	return p->hook == HOOK_EGRESS ? check_destination_mac(p, destination) : PASSED;
}

static __always_inline enum drop_reason judge_advertisement(struct packet *p, const struct ipv6hdr *ip, const struct nd *nd,
							    const struct peer *source, struct peer *destination)
{
	enum drop_reason reason;
	struct peer owner;

	if (is_multicast6(&ip->daddr))
		return DROP_GRATUITOUS;
	/* It may only announce an address of the sender's own. */
	if (!find_source6(p, &nd->target, &owner) || owner.node != source->node || !same_mac(owner.mac, p->eth->h_source))
		return DROP_SOURCE_SPOOFED;
	if (is_link_local6(&ip->daddr)) {
		const __u8 *mac = p->eth->h_dest;

		if (!find_node_mac(mac, destination) && !find_service_mac(mac, destination))
			return DROP_DESTINATION_UNKNOWN;
	} else if (!find_destination6(&ip->daddr, destination)) {
		return DROP_DESTINATION_UNKNOWN;
	}
	reason = check_destination(p, destination);
	return reason ? reason : check_destination_mac(p, destination);
}

static __always_inline enum drop_reason judge_nd(struct packet *p, struct ipv6hdr *ip, struct peer *destination)
{
	const struct in6_addr *judged;
	enum drop_reason reason;
	struct peer source;
	struct nd *nd;

	reason = parse_nd(p, ip, &nd);
	if (reason)
		return reason;
	judged = nd->type == ND_SOLICITATION ? &nd->target : &ip->daddr;
	if (is_local6(p, judged) && !find_node6(judged, destination))
		return judge_local(p, find_node6(&ip->saddr, &source));
	if (!find_nd_source(p, ip, &source))
		return DROP_SOURCE_UNKNOWN;
	reason = check_source(p, &source);
	if (reason)
		return reason;
	if (nd->type == ND_SOLICITATION)
		reason = judge_solicitation(p, ip, nd, &source, destination);
	else
		reason = judge_advertisement(p, ip, nd, &source, destination);
	return reason ? reason : check_tenants(&source, destination);
}

#endif
