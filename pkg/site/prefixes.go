package site

import (
	"cmp"
	"net/netip"
	"slices"
)

// owned is a prefix of a service, without bits behind its length, and where it stands.
type owned struct {
	prefix         netip.Prefix
	service, index int
}

// prefixes is what services share, for finding overlaps. Prefixes that are invalid or match everything
// are not in it: they are errors already, and would only bring more.
type prefixes struct {
	// conflicts names, for (service, index), an earlier prefix that it overlaps: of another service, or
	// an equal one of the same.
	conflicts map[[2]int]owned
	// outermost prefixes, which are disjoint, in ascending order.
	outermost []owned
}

func newPrefixes(services []Service) prefixes {
	var all []owned
	for i, v := range services {
		for k, p := range v.Prefixes {
			if p.IsValid() && p.Bits() > 0 {
				all = append(all, owned{p.Masked(), i, k})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b owned) int {
		return cmp.Or(a.prefix.Addr().Compare(b.prefix.Addr()), cmp.Compare(a.prefix.Bits(), b.prefix.Bits()))
	})
	set := prefixes{conflicts: make(map[[2]int]owned)}
	// Two prefixes are disjoint or nested, so in this order those around one are still open when it comes.
	var open []owned
	for _, p := range all {
		for len(open) > 0 && !open[len(open)-1].prefix.Overlaps(p.prefix) {
			open = open[:len(open)-1]
		}
		if len(open) == 0 {
			set.outermost = append(set.outermost, p)
		}
		conflict := slices.IndexFunc(open, func(o owned) bool { return o.service != p.service || o.prefix == p.prefix })
		if conflict >= 0 {
			set.conflict(open[conflict], p)
		}
		if len(open) == 0 || open[len(open)-1].prefix != p.prefix {
			open = append(open, p)
		}
	}
	return set
}

// conflict blames the one that stands later in the file.
func (set *prefixes) conflict(a, b owned) {
	if cmp.Or(cmp.Compare(a.service, b.service), cmp.Compare(a.index, b.index)) > 0 {
		a, b = b, a
	}
	set.conflicts[[2]int{b.service, b.index}] = a
}

// around returns an outermost prefix that contains a.
func (set *prefixes) around(a netip.Addr) (owned, bool) {
	i, found := slices.BinarySearchFunc(set.outermost, a, func(o owned, a netip.Addr) int { return o.prefix.Addr().Compare(a) })
	if !found {
		i--
	}
	if i < 0 || !set.outermost[i].prefix.Contains(a) {
		return owned{}, false
	}
	return set.outermost[i], true
}
