package site

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"dpud/pkg/record"
)

// decoder walks a YAML document by the shape of a site, no deeper than that, and collects what it can't read.
// What it can't read stays zero, so that indices stay those of the file.
type decoder struct {
	errs Errors
	// unread holds the paths whose values were not understood: Validate would call them missing.
	unread map[string]bool
}

// key is one key that a mapping may have, and what reads its value.
type key struct {
	name string
	read func(n *yaml.Node, path string)
}

func (d *decoder) site(n *yaml.Node) *Site {
	s := &Site{Racks: []Rack{}, DPUs: []DPU{}, Tenants: []Tenant{}, Nodes: []Node{}, Services: []Service{}}
	d.object(n, "", []key{
		{"site", func(n *yaml.Node, p string) { s.Name = d.text(n, p) }},
		{"racks", func(n *yaml.Node, p string) { s.Racks = list(d, n, p, d.rack) }},
		{"dpus", func(n *yaml.Node, p string) { s.DPUs = list(d, n, p, d.dpu) }},
		{"tenants", func(n *yaml.Node, p string) { s.Tenants = list(d, n, p, d.tenant) }},
		{"nodes", func(n *yaml.Node, p string) { s.Nodes = list(d, n, p, d.node) }},
		{"services", func(n *yaml.Node, p string) { s.Services = list(d, n, p, d.service) }},
	})
	return s
}

func (d *decoder) rack(n *yaml.Node, path string) (r Rack) {
	d.object(n, path, []key{
		{"name", func(n *yaml.Node, p string) { r.Name = record.Rack(d.text(n, p)) }},
	})
	return r
}

func (d *decoder) dpu(n *yaml.Node, path string) (v DPU) {
	d.object(n, path, []key{
		{"name", func(n *yaml.Node, p string) { v.Name = record.DPU(d.text(n, p)) }},
		{"rack", func(n *yaml.Node, p string) { v.Rack = record.Rack(d.text(n, p)) }},
		{"uplinks", func(n *yaml.Node, p string) { v.Uplinks = list(d, n, p, d.text) }},
	})
	return v
}

func (d *decoder) tenant(n *yaml.Node, path string) (t Tenant) {
	d.object(n, path, []key{
		{"name", func(n *yaml.Node, p string) { t.Name = d.text(n, p) }},
		{"vni", func(n *yaml.Node, p string) { t.VNI = record.VNI(d.number(n, p, maxVNI, vniFix)) }},
	})
	return t
}

func (d *decoder) node(n *yaml.Node, path string) (v Node) {
	d.object(n, path, []key{
		{"name", func(n *yaml.Node, p string) { v.Name = d.text(n, p) }},
		{"rack", func(n *yaml.Node, p string) { v.Rack = record.Rack(d.text(n, p)) }},
		{"mac", func(n *yaml.Node, p string) { v.MAC = d.mac(n, p) }},
		{"addresses", func(n *yaml.Node, p string) { v.Addresses = list(d, n, p, d.addr) }},
		{"dpus", func(n *yaml.Node, p string) { v.DPUs = list(d, n, p, d.nodePort) }},
		{"shared_port", func(n *yaml.Node, p string) { v.SharedPort = d.boolean(n, p) }},
	})
	return v
}

func (d *decoder) nodePort(n *yaml.Node, path string) (v record.NodePort) {
	d.object(n, path, []key{
		{"dpu", func(n *yaml.Node, p string) { v.DPU = record.DPU(d.text(n, p)) }},
		{"port", func(n *yaml.Node, p string) { v.Port = d.text(n, p) }},
		{"vlan", func(n *yaml.Node, p string) { v.VLAN = uint16(d.number(n, p, maxVLAN, vlanFix)) }},
	})
	return v
}

func (d *decoder) service(n *yaml.Node, path string) (v Service) {
	d.object(n, path, []key{
		{"name", func(n *yaml.Node, p string) { v.Name = d.text(n, p) }},
		{"prefixes", func(n *yaml.Node, p string) { v.Prefixes = list(d, n, p, d.prefix) }},
		{"mac", func(n *yaml.Node, p string) { v.MAC = d.mac(n, p) }},
	})
	return v
}

func (d *decoder) mac(n *yaml.Node, path string) record.MAC {
	return parsed(d, n, path, record.ParseMAC, "MAC", macFix)
}

func (d *decoder) addr(n *yaml.Node, path string) netip.Addr {
	return parsed(d, n, path, netip.ParseAddr, "IP address",
		"write one address like 10.0.0.1 or 2001:db8::1, without a prefix length")
}

func (d *decoder) prefix(n *yaml.Node, path string) netip.Prefix {
	return parsed(d, n, path, netip.ParsePrefix, "prefix",
		"write a prefix like 10.9.0.0/24 or 2001:db8:9::/64; one address is 10.9.0.1/32")
}

// object reads a mapping. A misspelt key is reported and then read as the one that it resembles, so that one
// slip does not hide or cause other errors.
func (d *decoder) object(n *yaml.Node, path string, keys []key) {
	if !d.plain(n, path) {
		return
	}
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.name
	}
	if n.Kind != yaml.MappingNode {
		d.fail(n, path, "want keys and values, have "+kindOf(n), "write "+strings.Join(names, ", ")+", each as `key: value`")
		return
	}
	seen := make(map[string]int, len(keys))
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if line, twice := seen[k.Value]; twice && k.Kind == yaml.ScalarNode {
			d.report(k, join(path, pathKey(k.Value)), fmt.Sprintf("key %s is there twice, first in line %d", quote(k.Value), line), "keep one of them")
			continue
		}
		seen[k.Value] = k.Line
		i := d.key(k, path, keys, names)
		if i < 0 || (keys[i].name != k.Value && valueOf(n, keys[i].name) != nil) {
			continue
		}
		keys[i].read(v, join(path, keys[i].name))
	}
}

// key returns which of keys is meant, or -1, and reports a key that is none of them.
func (d *decoder) key(n *yaml.Node, path string, keys []key, names []string) int {
	if n.Kind != yaml.ScalarNode {
		d.report(n, path, "a key is "+kindOf(n), "use these keys: "+strings.Join(names, ", "))
		return -1
	}
	nearest := -1
	for i, k := range keys {
		if k.name == n.Value {
			return i
		}
		if resembles(n.Value, k.name) && nearest < 0 {
			nearest = i
		}
	}
	problem, fix := "unknown key "+quote(n.Value), "use these keys: "+strings.Join(names, ", ")
	switch {
	case n.Value == "<<":
		problem, fix = "merge keys are not used in a site file", "write the keys out"
	case nearest >= 0:
		problem += ", did you mean " + names[nearest] + "?"
	}
	d.report(n, join(path, pathKey(n.Value)), problem, fix)
	return nearest
}

// list reads a sequence; nothing at all is an empty one.
func list[T any](d *decoder, n *yaml.Node, path string, read func(*yaml.Node, string) T) []T {
	if !d.plain(n, path) || isNull(n) {
		return []T{}
	}
	if n.Kind != yaml.SequenceNode {
		d.fail(n, path, "want a list, have "+kindOf(n), "write a list, even of one: [ … ], or lines that start with '-'")
		return []T{}
	}
	out := make([]T, len(n.Content))
	for i, c := range n.Content {
		out[i] = read(c, path+"["+strconv.Itoa(i)+"]")
	}
	return out
}

// text reads a single value as it is written, so that a name like 10e3 or yes needs no quotes.
func (d *decoder) text(n *yaml.Node, path string) string {
	if !d.plain(n, path) || isNull(n) {
		return ""
	}
	if n.Kind != yaml.ScalarNode {
		d.fail(n, path, "want one value, have "+kindOf(n), "write one value on the line of the key")
		return ""
	}
	return n.Value
}

func parsed[T any](d *decoder, n *yaml.Node, path string, parse func(string) (T, error), what, fix string) T {
	var zero T
	s := d.text(n, path)
	if s == "" {
		return zero
	}
	v, err := parse(s)
	if err != nil {
		d.fail(n, path, fmt.Sprintf("%s is not a valid %s", quote(s), what), fix)
		return zero
	}
	return v
}

// number reads a decimal number of at most highest. Forms that YAML 1.1 and 1.2 read differently (010) or
// that nobody expects (0x10, 1_000) are refused.
func (d *decoder) number(n *yaml.Node, path string, highest uint64, fix string) uint64 {
	s := d.text(n, path)
	if s == "" {
		return 0
	}
	v, err := strconv.ParseUint(s, 10, 64)
	switch {
	case n.ShortTag() != "!!int" || err != nil || strconv.FormatUint(v, 10) != s:
		d.fail(n, path, quote(s)+" is not a plain decimal number", "write it in digits, without quotes, sign or leading zeros")
	case v > highest:
		d.fail(n, path, fmt.Sprintf("%d is above %d", v, highest), fix)
	default:
		return v
	}
	return 0
}

func (d *decoder) boolean(n *yaml.Node, path string) bool {
	s := d.text(n, path)
	if s != "" && (n.ShortTag() != "!!bool" || (s != "true" && s != "false")) {
		d.fail(n, path, quote(s)+" is neither true nor false", "write true or false, without quotes")
	}
	return s == "true"
}

// plain refuses what makes a file mean something elsewhere than where it is written.
func (d *decoder) plain(n *yaml.Node, path string) bool {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		d.fail(n, path, "anchors and aliases (& and *) are not used in a site file", "write the value out")
	case n.Style&yaml.TaggedStyle != 0:
		d.fail(n, path, fmt.Sprintf("the tag %s is not used in a site file", quote(n.Tag)), "leave out the tag")
	default:
		return true
	}
	return false
}

// fail reports a value that could not be read.
func (d *decoder) fail(n *yaml.Node, path, problem, fix string) {
	d.unread[path] = true
	d.report(n, path, problem, fix)
}

func (d *decoder) report(n *yaml.Node, path, problem, fix string) {
	d.errs = append(d.errs, Error{Path: path, Line: n.Line, column: n.Column, Problem: problem, Fix: fix})
}

// hides says whether the field at path, or something around it, could not be read.
func (d *decoder) hides(path string) bool {
	for path != "" && !d.unread[path] {
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return d.unread[path]
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// pathKey returns a key of the file as it goes into a path: as it is, or quoted and cut when it is odd.
func pathKey(s string) string {
	for i := range len(s) {
		if c := s[i]; i >= 32 || (c != '_' && c != '-' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9')) {
			return quote(s)
		}
	}
	return s
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

func kindOf(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "keys and values"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case isNull(n):
		return "nothing"
	default:
		return quote(n.Value)
	}
}
