/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* ARP for IPv4 over Ethernet (RFC 826, RFC 5227): judged between the sender's and the target's addresses. */
#ifndef DPUD_ARP_H
#define DPUD_ARP_H

#include "local.h"

struct arp {
	__be16 hardware;
	__be16 protocol;
	__u8 hardware_len;
	__u8 protocol_len;
	__be16 operation;
	__u8 sender_mac[6];
	__u8 sender[4];
	__u8 target_mac[6];
	__u8 target[4];
};

_Static_assert(sizeof(struct arp) == 28, "RFC 826");

#define ARP_ETHERNET 1
#define ARP_REQUEST 1
#define ARP_REPLY 2

static __always_inline bool arp_is_sane(const struct arp *arp)
{
	return arp->hardware == bpf_htons(ARP_ETHERNET) && arp->protocol == bpf_htons(ETH_P_IP) && arp->hardware_len == 6 &&
	       arp->protocol_len == 4 &&
	       (arp->operation == bpf_htons(ARP_REQUEST) || arp->operation == bpf_htons(ARP_REPLY));
}

static __always_inline enum drop_reason judge_arp(struct packet *p, struct peer *destination)
{
	struct arp *arp = take(&p->cursor, sizeof(*arp));
	struct peer source;
	enum drop_reason reason;
	__be32 sender, target;
	bool request, probe;

	if (!arp)
		return DROP_TRUNCATED;
	if (!arp_is_sane(arp))
		return DROP_MALFORMED;
	if (!same_mac(arp->sender_mac, p->eth->h_source))
		return DROP_SOURCE_SPOOFED;
	__builtin_memcpy(&sender, arp->sender, sizeof(sender));
	__builtin_memcpy(&target, arp->target, sizeof(target));
	request = arp->operation == bpf_htons(ARP_REQUEST);
	probe = request && sender == 0;

	if (is_local4(p, target) && !find_node4(target, destination))
		return judge_local(p, find_node4(sender, &source));
	if (!(probe ? find_source_mac(p, &source) : find_source4(p, sender, &source)))
		return DROP_SOURCE_UNKNOWN;
	reason = check_source(p, &source);
	if (reason)
		return reason;
	/* An announcement is for everybody, and nothing is flooded; neighbours that ask get an answer. */
	if (sender == target)
		return DROP_GRATUITOUS;
	if (!find_destination4(target, destination))
		return DROP_DESTINATION_UNKNOWN;
	if (source.node && source.node == destination->node)
		return DROP_GRATUITOUS;
	reason = check_destination(p, destination);
	if (reason)
		return reason;
	/* A request is rewritten to the target's MAC instead of being flooded; behind us it has to be. */
	if (!request || p->hook == HOOK_EGRESS) {
		reason = check_destination_mac(p, destination);
		if (reason)
			return reason;
	}
	return check_tenants(&source, destination);
}

#endif
