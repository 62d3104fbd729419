/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Every packet is counted exactly once for each hook: passed, or dropped for one reason. */
#ifndef DPUD_COUNT_H
#define DPUD_COUNT_H

#include "maps.h"
#include "parse.h"

static __always_inline void count(const struct packet *p, enum drop_reason reason)
{
	__u32 index = reason;
	struct traffic *traffic = bpf_map_lookup_elem(&reasons, &index);

	if (!traffic)
		return;
	if (p->hook == HOOK_INGRESS) {
		traffic->ingress_packets++;
		traffic->ingress_bytes += p->length;
	} else {
		traffic->egress_packets++;
		traffic->egress_bytes += p->length;
	}
}

#endif
