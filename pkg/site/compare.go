package site

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"dpud/pkg/record"
)

// Change is one difference between two sites.
type Change struct {
	Verb string // add, remove or change
	Kind string // site, rack, dpu, tenant, node or service
	Name string
	// Field that changed, named as in the file; empty when the object is added or removed.
	Field string
	// Old and New are the field's values, or all of the object that is removed or added.
	Old, New string
}

// String returns one line: "+ node n1: …", "~ node n1: addresses […] → […]", "- node n1".
func (c Change) String() string {
	switch c.Verb {
	case "add":
		if c.New == "" {
			return fmt.Sprintf("+ %s %s", c.Kind, c.Name)
		}
		return fmt.Sprintf("+ %s %s: %s", c.Kind, c.Name, c.New)
	case "remove":
		return fmt.Sprintf("- %s %s", c.Kind, c.Name)
	default:
		return fmt.Sprintf("~ %s %s: %s %s → %s", c.Kind, c.Name, c.Field, c.Old, c.New)
	}
}

// Compare returns what makes updated out of old; nothing when they mean the same, in whatever order their
// lists are. Both must be valid; a nil site is one without anything. Changes are in the order of kinds
// (site, rack, dpu, tenant, node, service), then names, then fields as in the file.
func Compare(old, updated *Site) []Change {
	if old == nil {
		old = &Site{}
	}
	if updated == nil {
		updated = &Site{}
	}
	changes := compareNames(old.Name, updated.Name)
	was, is := objects(old), objects(updated)
	for len(was) > 0 || len(is) > 0 {
		switch order := next(was, is); {
		case order < 0:
			changes = append(changes, Change{Verb: "remove", Kind: was[0].kind, Name: was[0].name, Old: was[0].summary()})
			was = was[1:]
		case order > 0:
			changes = append(changes, Change{Verb: "add", Kind: is[0].kind, Name: is[0].name, New: is[0].summary()})
			is = is[1:]
		default:
			for i, f := range was[0].fields {
				if now := is[0].fields[i]; f != now {
					changes = append(changes, Change{Verb: "change", Kind: was[0].kind, Name: was[0].name, Field: f.name, Old: f.value, New: now.value})
				}
			}
			was, is = was[1:], is[1:]
		}
	}
	return changes
}

func compareNames(old, updated string) []Change {
	switch {
	case old == updated:
		return nil
	case old == "":
		return []Change{{Verb: "add", Kind: "site", Name: updated}}
	case updated == "":
		return []Change{{Verb: "remove", Kind: "site", Name: old}}
	}
	return []Change{{Verb: "change", Kind: "site", Name: old, Field: "site", Old: old, New: updated}}
}

// object is an element of a site with its values as canonical text: equal exactly when they mean the same.
type object struct {
	rank   int // of the kind
	kind   string
	name   string
	fields []fieldValue
}

type fieldValue struct{ name, value string }

// next says which of two sorted lists has the lower object in front: -1, +1, or 0 for the same in both.
func next(a, b []object) int {
	switch {
	case len(a) == 0:
		return 1
	case len(b) == 0:
		return -1
	}
	return compareObjects(a[0], b[0])
}

func compareObjects(a, b object) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.name, b.name))
}

// summary names what is worth naming: not the fields that are left out of a file.
func (o object) summary() string {
	var parts []string
	for _, f := range o.fields {
		if f.value != "[]" && f.value != "false" {
			parts = append(parts, f.name+" "+f.value)
		}
	}
	return strings.Join(parts, ", ")
}

// objects returns the elements of a site, sorted.
func objects(s *Site) []object {
	var all []object
	for _, r := range s.Racks {
		all = append(all, object{1, "rack", string(r.Name), nil})
	}
	for _, d := range s.DPUs {
		all = append(all, object{2, "dpu", string(d.Name), []fieldValue{
			{"rack", string(d.Rack)},
			{"uplinks", set(d.Uplinks, func(s string) string { return s })},
		}})
	}
	for _, t := range s.Tenants {
		all = append(all, object{3, "tenant", t.Name, []fieldValue{{"vni", fmt.Sprint(t.VNI)}}})
	}
	for _, n := range s.Nodes {
		all = append(all, object{4, "node", n.Name, []fieldValue{
			{"rack", string(n.Rack)},
			{"mac", n.MAC.String()},
			{"addresses", set(n.Addresses, netip.Addr.String)},
			{"dpus", set(n.DPUs, portText)},
			{"shared_port", strconv.FormatBool(n.SharedPort)},
		}})
	}
	for _, v := range s.Services {
		all = append(all, object{5, "service", v.Name, []fieldValue{
			{"prefixes", set(v.Prefixes, netip.Prefix.String)},
			{"mac", v.MAC.String()},
		}})
	}
	slices.SortFunc(all, compareObjects)
	return all
}

// set returns the elements' texts, sorted: none of them contains a blank.
func set[T any](list []T, text func(T) string) string {
	texts := make([]string, len(list))
	for i, v := range list {
		texts[i] = text(v)
	}
	slices.Sort(texts)
	return "[" + strings.Join(texts, " ") + "]"
}

// portText is dpu:port or dpu:port:vlan; names of DPUs and ports contain no colon.
func portText(p record.NodePort) string {
	if p.VLAN == 0 {
		return fmt.Sprintf("%s:%s", p.DPU, p.Port)
	}
	return fmt.Sprintf("%s:%s:%d", p.DPU, p.Port, p.VLAN)
}
