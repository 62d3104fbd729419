/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Makes a packet that passed at ingress fit its destination: the unicast MAC, and the destination's VLAN. */
#ifndef DPUD_DELIVER_H
#define DPUD_DELIVER_H

#include "peer.h"

#define MACS (2 * ETH_ALEN)

struct tagged_ethhdr {
	__u8 macs[MACS];
	struct {
		__be16 proto;
		__be16 tci;
	} tag;
	__be16 inner;
};

_Static_assert(sizeof(struct tagged_ethhdr) == 18, "802.1Q");

static __always_inline enum drop_reason push_tag(struct xdp_md *ctx, __u16 vlan)
{
	struct tagged_ethhdr *eth;
	__u8 macs[MACS];

	eth = (void *)(long)ctx->data;
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return DROP_REWRITE_FAILED;
	__builtin_memcpy(macs, eth->macs, MACS);
	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(eth->tag)))
		return DROP_REWRITE_FAILED;
	eth = (void *)(long)ctx->data;
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return DROP_REWRITE_FAILED;
	__builtin_memcpy(eth->macs, macs, MACS);
	eth->tag.proto = bpf_htons(ETH_P_8021Q);
	eth->tag.tci = bpf_htons(vlan);
	return PASSED;
}

static __always_inline enum drop_reason pop_tag(struct xdp_md *ctx)
{
	struct tagged_ethhdr *eth = (void *)(long)ctx->data;
	__u8 macs[MACS];

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return DROP_REWRITE_FAILED;
	__builtin_memcpy(macs, eth->macs, MACS);
	__builtin_memcpy((__u8 *)eth + sizeof(eth->tag), macs, MACS);
	return bpf_xdp_adjust_head(ctx, sizeof(eth->tag)) ? DROP_REWRITE_FAILED : PASSED;
}

/* Writes the destination's VLAN over the tag that is there, and keeps its priority. */
static __always_inline enum drop_reason rewrite_tag(struct xdp_md *ctx, __u16 vlan)
{
	struct tagged_ethhdr *eth = (void *)(long)ctx->data;
	__u16 priority;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return DROP_REWRITE_FAILED;
	priority = bpf_ntohs(eth->tag.tci) & ~VLAN_VID_MASK;
	eth->tag.tci = bpf_htons(priority | vlan);
	return PASSED;
}

/* Invalidates what was parsed. */
static __always_inline enum drop_reason deliver(struct xdp_md *ctx, struct packet *p, const struct peer *destination)
{
	__builtin_memcpy(p->eth->h_dest, destination->mac, ETH_ALEN);
	if (p->vlan == destination->vlan)
		return PASSED;
	if (!p->tag_inside)
		return push_tag(ctx, destination->vlan);
	if (!destination->vlan)
		return pop_tag(ctx);
	return rewrite_tag(ctx, destination->vlan);
}

#endif
