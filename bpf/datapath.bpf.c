/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * The programs: `dpud_ingress` judges what comes in on any port, `dpud_egress` judges again what leaves towards a node.
 * With empty maps nothing passes. Kernel floor: 6.1.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#include "count.h"
#include "deliver.h"
#include "verdict.h"

char dpud_license[] SEC("license") = "Dual BSD/GPL";

static __always_inline const struct settings *read_settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&settings, &zero);
}

static __always_inline bool may_pass(const struct settings *s, enum drop_reason reason)
{
	return reason <= PASSED_OFF || s->mode == MODE_AUDIT;
}

SEC("xdp.frags")
int dpud_ingress(struct xdp_md *ctx)
{
	const struct settings *s = read_settings();
	enum drop_reason reason = PASSED_OFF;
	struct peer destination = {};
	struct packet p = {
		.cursor = {(void *)(long)ctx->data, (void *)(long)ctx->data_end},
		.hook = HOOK_INGRESS,
		.ifindex = ctx->ingress_ifindex,
		.length = bpf_xdp_get_buff_len(ctx),
	};

	if (!s)
		return XDP_DROP;
	if (s->mode != MODE_OFF)
		reason = judge(&p, s, &destination);
	if (reason == PASSED)
		reason = deliver(ctx, &p, &destination);
	count(&p, reason);
	return may_pass(s, reason) ? XDP_PASS : XDP_DROP;
}

/* TC_ACT_UNSPEC hands on to the programs and filters after us, in tcx and in clsact alike; a drop is final. */
SEC("tc")
int dpud_egress(struct __sk_buff *skb)
{
	const struct settings *s = read_settings();
	enum drop_reason reason = PASSED_OFF;
	struct peer destination = {};
	struct packet p = {
		.hook = HOOK_EGRESS,
		.ifindex = skb->ifindex,
		.origin = skb->ingress_ifindex,
		.length = skb->len,
	};

	if (!s)
		return TC_ACT_SHOT;
	/* If it fails, what is linear is judged: at worst the packet is truncated. */
	if (s->mode != MODE_OFF && (void *)(long)skb->data + HEADER_WINDOW > (void *)(long)skb->data_end)
		bpf_skb_pull_data(skb, p.length < HEADER_WINDOW ? p.length : HEADER_WINDOW);
	p.cursor.pos = (void *)(long)skb->data;
	p.cursor.end = (void *)(long)skb->data_end;
	if (skb->vlan_present)
		add_tag(&p, skb->vlan_proto, skb->vlan_tci);
	if (s->mode != MODE_OFF)
		reason = is_own(&p) ? PASSED_LOCAL : judge(&p, s, &destination);
	count(&p, reason);
	return may_pass(s, reason) ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}
