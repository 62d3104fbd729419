package record

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
)

// Kind of a register.
type Kind uint8

// The kinds, in the order in which a receiver applies them when several arrive together.
const (
	KindNone Kind = iota
	KindServices
	KindGrant
	KindEntry
	KindConfirmation
	KindLeaseRequest
	KindLease
)

var kindNames = [...]string{"none", "services", "grant", "entry", "confirmation", "lease_request", "lease"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Key names one register. Parts that a kind does not use are zero.
type Key struct {
	Kind   Kind
	Name   DPU // confirmation, lease request, lease
	Tenant TenantID
	Node   NodeID
}

func (k Key) String() string {
	switch k.Kind {
	case KindGrant:
		return fmt.Sprintf("grant/%d", k.Node)
	case KindEntry:
		return fmt.Sprintf("entry/%d/%d", k.Tenant, k.Node)
	case KindConfirmation:
		return fmt.Sprintf("confirmation/%s/%d", k.Name, k.Node)
	case KindLeaseRequest, KindLease:
		return fmt.Sprintf("%s/%s", k.Kind, k.Name)
	default:
		return k.Kind.String()
	}
}

// Version is a register's place in its total order, compared from the first part to the last.
type Version [4]uint64

// Compare returns -1, 0 or +1.
func (v Version) Compare(w Version) int { return slices.Compare(v[:], w[:]) }

// Record is one version of a register.
type Record interface {
	Key() Key
	Version() Version
}

var (
	_ Record = (*Grant)(nil)
	_ Record = (*Entry)(nil)
	_ Record = (*Confirmation)(nil)
	_ Record = (*LeaseRequest)(nil)
	_ Record = (*Lease)(nil)
	_ Record = (*Services)(nil)
)

// Key is the node.
func (g *Grant) Key() Key { return Key{Kind: KindGrant, Node: g.Node} }

// Version is (epoch, generation, phase, revision).
func (g *Grant) Version() Version {
	return Version{uint64(g.Epoch), uint64(g.Generation), uint64(g.Phase), uint64(g.Revision)}
}

// Key is (tenant, node).
func (e *Entry) Key() Key { return Key{Kind: KindEntry, Tenant: e.Tenant, Node: e.Node} }

// Version is (epoch, generation, revision, deleted last).
func (e *Entry) Version() Version {
	var deleted uint64
	if e.Deleted {
		deleted = 1
	}
	return Version{uint64(e.Epoch), uint64(e.Generation), uint64(e.Revision), deleted}
}

// Key is (DPU, node).
func (c *Confirmation) Key() Key { return Key{Kind: KindConfirmation, Name: c.DPU, Node: c.Node} }

// Version is (boot, sequence).
func (c *Confirmation) Version() Version { return Version{uint64(c.Boot), c.Sequence} }

// Key is the DPU.
func (r *LeaseRequest) Key() Key { return Key{Kind: KindLeaseRequest, Name: r.DPU} }

// Version is the nonce.
func (r *LeaseRequest) Version() Version { return Version{uint64(r.Nonce)} }

// Key is the DPU.
func (l *Lease) Key() Key { return Key{Kind: KindLease, Name: l.DPU} }

// Version is (boot, nonce).
func (l *Lease) Version() Version { return Version{uint64(l.Boot), uint64(l.Nonce)} }

// Key is one for the site.
func (s *Services) Key() Key { return Key{Kind: KindServices} }

// Version is (epoch, revision).
func (s *Services) Version() Version { return Version{uint64(s.Epoch), uint64(s.Revision)} }

// Digest is an order-independent 64-bit fingerprint of a set of versions. It finds differences between
// peers that follow the protocol; it is no defence against one that forges.
type Digest uint64

// Add returns the digest with one more version in the set; adding the same one again takes it out.
func (d Digest) Add(k Key, v Version) Digest {
	h := fnv.New64a()
	var b [8]byte
	put := func(x uint64) {
		binary.LittleEndian.PutUint64(b[:], x)
		_, _ = h.Write(b[:])
	}
	put(uint64(k.Kind))
	_, _ = h.Write([]byte(k.Name))
	put(uint64(k.Tenant))
	put(uint64(k.Node))
	for _, x := range v {
		put(x)
	}
	return d ^ Digest(h.Sum64())
}

// GrantsDigest is the digest of the grants' versions.
func GrantsDigest(grants []*Grant) Digest {
	var d Digest
	for _, g := range grants {
		d = d.Add(g.Key(), g.Version())
	}
	return d
}

// Set holds the newest version of each register that it was given. The zero value is ready; it is not safe
// for concurrent use.
type Set struct {
	m map[Key]Record
}

// Merge keeps r if it is newer than what the set holds, and says whether it was.
func (s *Set) Merge(r Record) bool {
	k := r.Key()
	if old, ok := s.m[k]; ok && r.Version().Compare(old.Version()) <= 0 {
		return false
	}
	if s.m == nil {
		s.m = make(map[Key]Record)
	}
	s.m[k] = r
	return true
}

// Get returns the newest version of a register, or nil.
func (s *Set) Get(k Key) Record { return s.m[k] }

// Len returns the number of registers.
func (s *Set) Len() int { return len(s.m) }

// Keys returns the keys, sorted.
func (s *Set) Keys() []Key {
	keys := make([]Key, 0, len(s.m))
	for k := range s.m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, CompareKeys)
	return keys
}

// All calls yield for each register of a kind, in key order, until it returns false.
func (s *Set) All(kind Kind) func(yield func(Record) bool) {
	return func(yield func(Record) bool) {
		for _, k := range s.Keys() {
			if k.Kind == kind && !yield(s.m[k]) {
				return
			}
		}
	}
}

// GrantedVersion is the version of a generation's first grant: a register above it ends or changes what a
// map entry of that generation stands for.
func GrantedVersion(e Epoch, g Generation) Version {
	return Version{uint64(e), uint64(g), uint64(Granted), ^uint64(0)}
}

// CompareGenerations orders (epoch, generation) pairs.
func CompareGenerations(e1 Epoch, g1 Generation, e2 Epoch, g2 Generation) int {
	return cmp.Or(cmp.Compare(e1, e2), cmp.Compare(g1, g2))
}
