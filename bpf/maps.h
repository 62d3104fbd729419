/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * Every map. Go sets the sizes of those that grow with the site (pkg/maps, Options); values are only ever
 * inserted new, never updated in place, because a program may be reading them.
 */
#ifndef DPUD_MAPS_H
#define DPUD_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "types.h"

/* The isolation map, the only authority: an entry is here exactly while the node is assigned. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct node_key);
	__type(value, struct node_tenant);
} node_tenant SEC(".maps");

/* For confirming and adopting; no program reads it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct node_key);
	__type(value, struct node_state);
} node_state SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct endpoint4_key);
	__type(value, struct endpoint);
} endpoint4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct endpoint6_key);
	__type(value, struct endpoint);
} endpoint6 SEC(".maps");

/* For senders without an address of their own: ARP probes, and discovery from :: or fe80::/10. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct mac_key);
	__type(value, struct endpoint);
} endpoint_mac SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix4);
	__type(value, struct service);
} services4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix6);
	__type(value, struct service);
} services6 SEC(".maps");

/* The MACs of services4 and services6: who discovers from fe80::/10 on an uplink. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2048);
	__type(key, struct mac_key);
	__type(value, struct service);
} service_mac SEC(".maps");

/* The DPU's own addresses. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct address4);
	__type(value, struct listed);
} local4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct address6);
	__type(value, struct listed);
} local6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct port_key);
	__type(value, struct port);
} ports SEC(".maps");

/* Indexed by enum drop_reason; each packet is counted once for each hook that judged it. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_REASONS);
	__type(key, __u32);
	__type(value, struct traffic);
} reasons SEC(".maps");

/* Memory-mapped, so that each field changes by a single 64-bit store. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

/* An update of a map of maps makes the kernel wait for running programs (pkg/maps, Barrier). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(
		values, struct {
			__uint(type, BPF_MAP_TYPE_ARRAY);
			__uint(max_entries, 1);
			__type(key, __u32);
			__type(value, __u32);
		});
} barrier SEC(".maps");

#endif
