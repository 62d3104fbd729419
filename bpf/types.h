/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * What the maps hold and what the programs decide. bpf2go generates the Go types of pkg/maps from these;
 * nothing here is written a second time.
 */
#ifndef DPUD_TYPES_H
#define DPUD_TYPES_H

#include <linux/types.h>

/*
 * What happened to a packet: passed, or dropped for one reason. pkg/maps/reason.go says what each means. The numbers
 * are those of pinned counters: append, never renumber.
 */
enum drop_reason {
	PASSED = 0,
	PASSED_LOCAL,
	PASSED_OFF,

	DROP_UNKNOWN_PORT,
	DROP_LEASE_EXPIRED,

	DROP_TRUNCATED,
	DROP_MALFORMED,
	DROP_ETHERTYPE,
	DROP_VLAN_DEPTH,
	DROP_VLAN_STACKED,
	DROP_EXTENSION_HEADERS,

	DROP_SOURCE_MAC,
	DROP_SOURCE_UNKNOWN,
	DROP_SOURCE_SPOOFED,
	DROP_SOURCE_UNASSIGNED,

	DROP_DESTINATION_UNKNOWN,
	DROP_DESTINATION_MULTICAST,
	DROP_DESTINATION_MAC,
	DROP_DESTINATION_UNASSIGNED,
	DROP_HAIRPIN,
	DROP_EGRESS_PORT,

	DROP_TENANT_MISMATCH,
	DROP_LOCAL_FROM_NODE,

	DROP_GRATUITOUS,
	DROP_ND_TYPE,
	DROP_ND_EXTENSION,

	DROP_REWRITE_FAILED,

	DROP_REASONS, /* how many there are */
};

/* Which kind of neighbour a port leads to. */
enum port_role {
	PORT_NODE = 1,
	PORT_UPLINK = 2,
};

/* What the verdict does. An unset mode is enforce. */
enum mode {
	MODE_ENFORCE = 1, /* a packet with a drop reason is dropped */
	MODE_AUDIT = 2,	  /* it is counted under the reason, and passes unchanged */
	MODE_OFF = 3,	  /* nothing is judged, everything passes */
};

/* Where a packet is judged. */
enum hook {
	HOOK_INGRESS = 1, /* XDP, on every port */
	HOOK_EGRESS = 2,  /* tc, on node ports: the last check */
};

/* Addresses, MACs and prefixes are in network byte order, numbers in the machine's. */
struct node_key {
	__u32 node;
};

/* Read as one 64-bit word, and only valid if node equals the key: see tenant_of. */
struct node_tenant {
	__u32 tenant;
	__u32 node;
} __attribute__((aligned(8)));

struct node_state {
	__u64 epoch;
	__u64 generation;
	__u64 revision;
};

/* scope 0 is the site. */
struct endpoint4_key {
	__u32 scope;
	__u8 addr[4];
};

struct endpoint6_key {
	__u32 scope;
	__u8 addr[16];
};

struct mac_key {
	__u8 mac[6];
	__u8 pad[2];
};

struct endpoint {
	__u32 node;
	__u32 ifindex;
	__u16 vlan; /* 0 is untagged */
	__u8 mac[6];
};

struct prefix4 {
	__u32 prefixlen;
	__u8 addr[4];
};

struct prefix6 {
	__u32 prefixlen;
	__u8 addr[16];
};

/* The neighbour on an uplink that leads to a shared service. */
struct service {
	__u8 mac[6];
	__u8 pad[2];
};

struct address4 {
	__u8 addr[4];
};

struct address6 {
	__u8 addr[16];
};

struct listed {
	__u32 listed; /* 1 */
};

struct port_key {
	__u32 ifindex;
};

struct port {
	enum port_role role;
};

struct traffic {
	__u64 ingress_packets;
	__u64 ingress_bytes;
	__u64 egress_packets;
	__u64 egress_bytes;
};

struct settings {
	__u64 mode;	/* enum mode */
	__u64 deadline; /* CLOCK_MONOTONIC nanoseconds after which every packet drops; 0 is none */
	__u64 layout;	/* fingerprint of the maps' types, written once when they are made */
};

#define MAX_REASONS 64 /* room for later ones without another layout */

_Static_assert(DROP_REASONS <= MAX_REASONS, "every reason has a counter");
_Static_assert(sizeof(struct node_tenant) == 8, "one 64-bit word");
_Static_assert(sizeof(struct endpoint4_key) == 8, "no padding in a key");
_Static_assert(sizeof(struct endpoint6_key) == 20, "no padding in a key");
_Static_assert(sizeof(struct mac_key) == 8, "no padding in a key");
_Static_assert(sizeof(struct endpoint) == 16, "no padding in a value");
_Static_assert(sizeof(struct prefix4) == 8, "no padding in a key");
_Static_assert(sizeof(struct prefix6) == 20, "no padding in a key");

/* An enum that only code uses would be missing from BTF, and so from Go. */
extern const enum drop_reason *unused_drop_reason __attribute__((unused));
const enum drop_reason *unused_drop_reason __attribute__((unused));
extern const enum mode *unused_mode __attribute__((unused));
const enum mode *unused_mode __attribute__((unused));

#endif
