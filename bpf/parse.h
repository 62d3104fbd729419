/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * Cursor parsers over (data, data_end), for both hooks.
 *
 * Contract: a parser takes its header from the cursor and returns it, or returns NULL (or a drop reason) if the
 * packet ends before it. What was returned stays readable until the packet is changed.
 */
#ifndef DPUD_PARSE_H
#define DPUD_PARSE_H

#include <linux/icmpv6.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <stdbool.h>
#include <stddef.h>

#include <bpf/bpf_endian.h>

#include "types.h"

/* Headers are looked for in this much of a frame; tc pulls it into the linear part. */
#define HEADER_WINDOW 512

#define VLAN_VID_MASK 0x0fff

struct cursor {
	void *pos;
	void *end;
};

struct vlan_tag {
	__be16 tci;
	__be16 proto; /* of what follows */
};

/* One packet, as far as it has been parsed. */
struct packet {
	struct cursor cursor;
	struct ethhdr *eth;
	enum hook hook;
	enum port_role role;
	__u32 ifindex;
	__u32 origin;	  /* at egress: the port that it came in on, 0 if the DPU made it */
	__u32 length;	  /* of the whole frame, in bytes */
	__u32 payload;	  /* bytes of it behind the Ethernet and VLAN headers */
	__be16 proto;	  /* behind the tags */
	__u16 vlan;	  /* 0 is untagged */
	__u32 tags;	  /* VLAN tags, one kept beside the frame included */
	bool service_tag; /* one of them is 802.1ad */
	bool tag_inside;  /* the tag is in the frame, behind the MAC addresses */
	__u8 pad[6];
};

static __always_inline void *peek(const struct cursor *c, __u32 size)
{
	return c->pos + size > c->end ? NULL : c->pos;
}

static __always_inline void *take(struct cursor *c, __u32 size)
{
	void *header = peek(c, size);

	if (header)
		c->pos += size;
	return header;
}

static __always_inline bool is_vlan(__be16 proto)
{
	return proto == bpf_htons(ETH_P_8021Q) || proto == bpf_htons(ETH_P_8021AD);
}

/* A tag with VID 0 gives a priority only: the frame belongs to no VLAN (802.1Q-2018, 9.6, table 9-2). */
static __always_inline void add_tag(struct packet *p, __be16 proto, __u16 tci)
{
	p->tags++;
	p->vlan = tci & VLAN_VID_MASK;
	if (proto == bpf_htons(ETH_P_8021AD))
		p->service_tag = true;
}

/* Parses Ethernet and at most two VLAN tags, of which only a single 802.1Q one is of use to an endpoint. */
static __always_inline enum drop_reason parse_ethernet(struct packet *p)
{
	__u32 headers = sizeof(struct ethhdr);

	p->eth = take(&p->cursor, sizeof(*p->eth));
	if (!p->eth)
		return DROP_TRUNCATED;
	p->proto = p->eth->h_proto;

	for (int i = 0; i < 2 && is_vlan(p->proto); i++) {
		struct vlan_tag *tag = take(&p->cursor, sizeof(*tag));

		if (!tag)
			return DROP_TRUNCATED;
		add_tag(p, p->proto, bpf_ntohs(tag->tci));
		p->proto = tag->proto;
		p->tag_inside = true;
		headers += sizeof(*tag);
	}
	p->payload = p->length - headers;
	if (is_vlan(p->proto))
		return DROP_VLAN_DEPTH;
	if (p->tags > 1 || p->service_tag)
		return DROP_VLAN_STACKED;
	return PASSED;
}

static __always_inline enum drop_reason parse_ipv4(struct packet *p, struct iphdr **header)
{
	struct iphdr *ip = peek(&p->cursor, sizeof(*ip));
	__u32 size, total;

	if (!ip)
		return DROP_TRUNCATED;
	size = ip->ihl * 4;
	total = bpf_ntohs(ip->tot_len);
	if (ip->version != 4 || size < sizeof(*ip) || total < size)
		return DROP_MALFORMED;
	if (total > p->payload || !take(&p->cursor, size))
		return DROP_TRUNCATED;
	*header = ip;
	return PASSED;
}

static __always_inline enum drop_reason parse_ipv6(struct packet *p, struct ipv6hdr **header)
{
	struct ipv6hdr *ip = take(&p->cursor, sizeof(*ip));

	if (!ip)
		return DROP_TRUNCATED;
	if (ip->version != 6)
		return DROP_MALFORMED;
	if (sizeof(*ip) + bpf_ntohs(ip->payload_len) > p->payload)
		return DROP_TRUNCATED;
	*header = ip;
	return PASSED;
}

/* The generic layout of an extension header (RFC 6564); a fragment header fits it, with a length of 0. */
struct extension {
	__u8 next;
	__u8 length;
	__be16 fragment; /* offset and flags, in a fragment header */
	__u32 rest;
};

#define MAX_EXTENSIONS 6
#define IPPROTO_AUTHENTICATION 51
#define IPPROTO_MOBILITY 135
#define IPPROTO_HIP 139
#define IPPROTO_SHIM6 140
#define IPV6_FRAGMENT_OFFSET 0xfff8

/* What follows an IPv6 header. */
struct upper {
	__u8 proto;
	bool extended; /* behind extension headers */
	bool hidden;   /* in a later fragment: proto says nothing of what the packet holds */
};

static __always_inline bool is_extension(__u8 proto)
{
	return proto == IPPROTO_HOPOPTS || proto == IPPROTO_ROUTING || proto == IPPROTO_FRAGMENT ||
	       proto == IPPROTO_DSTOPTS || proto == IPPROTO_AUTHENTICATION || proto == IPPROTO_MOBILITY ||
	       proto == IPPROTO_HIP || proto == IPPROTO_SHIM6;
}

/*
 * Walks the extension headers up to the upper layer. A chain that is longer than MAX_EXTENSIONS headers or half of
 * HEADER_WINDOW could hide neighbour discovery from us and is refused.
 */
static __always_inline enum drop_reason walk_extensions(struct packet *p, const struct ipv6hdr *ip, struct upper *u)
{
	__u32 walked = 0;

	u->proto = ip->nexthdr;
	for (int i = 0; i <= MAX_EXTENSIONS; i++) {
		struct extension *e;
		__u32 size;

		if (!is_extension(u->proto))
			return PASSED;
		/* Peeked at and then taken whole: the verifier of Linux 6.1 loses the bounds of size - sizeof(*e). */
		e = peek(&p->cursor, sizeof(*e));
		if (!e || i == MAX_EXTENSIONS)
			return DROP_EXTENSION_HEADERS;
		u->extended = true;
		size = (e->length + 1) * 8;
		if (u->proto == IPPROTO_FRAGMENT) {
			size = sizeof(*e);
			u->hidden = e->fragment & bpf_htons(IPV6_FRAGMENT_OFFSET);
		} else if (u->proto == IPPROTO_AUTHENTICATION) {
			size = (e->length + 2) * 4;
		}
		walked += size;
		u->proto = e->next;
		if (u->hidden)
			return PASSED;
		if (walked > HEADER_WINDOW / 2 || !take(&p->cursor, size))
			return DROP_EXTENSION_HEADERS;
	}
	return DROP_EXTENSION_HEADERS;
}

#endif
