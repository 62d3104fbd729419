/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * The DPU's own addresses, for packets that come in on an uplink and are for none of the nodes. A node never
 * reaches them: neither from its own port (they are no endpoints) nor from behind an uplink.
 */
#ifndef DPUD_LOCAL_H
#define DPUD_LOCAL_H

#include "peer.h"

static __always_inline bool is_local4(const struct packet *p, __be32 addr)
{
	struct address4 key;

	__builtin_memcpy(key.addr, &addr, sizeof(key.addr));
	return p->role == PORT_UPLINK && bpf_map_lookup_elem(&local4, &key);
}

static __always_inline bool is_local6(const struct packet *p, const struct in6_addr *addr)
{
	struct address6 key;

	__builtin_memcpy(key.addr, addr, sizeof(key.addr));
	return p->role == PORT_UPLINK && bpf_map_lookup_elem(&local6, &key);
}

static __always_inline enum drop_reason judge_local(const struct packet *p, bool source_is_node)
{
	struct peer peer;

	if (source_is_node || find_node_mac(p->eth->h_source, &peer))
		return DROP_LOCAL_FROM_NODE;
	/* With a node's MAC the bridge would carry it to the node. */
	if (find_node_mac(p->eth->h_dest, &peer))
		return DROP_DESTINATION_MAC;
	return PASSED_LOCAL;
}

#endif
