package site

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"dpud/pkg/record"
)

// large returns a sound site of n nodes, 8 behind each DPU, 16 in each rack.
func large(n int) *Site {
	s := &Site{Name: "large"}
	for i := range n {
		rack, dpu := record.Rack(fmt.Sprintf("r%d", i/16)), record.DPU(fmt.Sprintf("d%d", i/8))
		if i%16 == 0 {
			s.Racks = append(s.Racks, Rack{rack})
		}
		if i%8 == 0 {
			s.DPUs = append(s.DPUs, DPU{Name: dpu, Rack: rack})
		}
		b := [4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}
		s.Nodes = append(s.Nodes, Node{
			Name: fmt.Sprintf("n%d", i), Rack: rack, MAC: record.MAC{2, 0, 10, b[1], b[2], b[3]},
			Addresses: []netip.Addr{netip.AddrFrom4(b)},
			DPUs:      []record.NodePort{{DPU: dpu, Port: fmt.Sprintf("p%d", i%8)}},
		})
	}
	return s
}

// TestOrderHasNoMeaning shuffles every list: no change, whatever the order.
func TestOrderHasNoMeaning(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	shuffled := base()
	for range 20 {
		shuffle(r, shuffled.Racks)
		shuffle(r, shuffled.DPUs)
		shuffle(r, shuffled.Tenants)
		shuffle(r, shuffled.Nodes)
		shuffle(r, shuffled.Services)
		for _, n := range shuffled.Nodes {
			shuffle(r, n.Addresses)
			shuffle(r, n.DPUs)
		}
		for _, v := range shuffled.Services {
			shuffle(r, v.Prefixes)
		}
		if changes := Compare(base(), shuffled); len(changes) > 0 {
			t.Fatalf("seed %d: %v", seed, changes)
		}
		if errs := shuffled.Validate(); len(errs) > 0 {
			t.Fatalf("seed %d: %v", seed, errs)
		}
	}
}

func shuffle[T any](r *rand.Rand, list []T) {
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
}

// TestCompareFields changes each field of each kind: one change, named as in the file.
func TestCompareFields(t *testing.T) {
	for want, edit := range map[string]func(s *Site){
		"~ site example: site example → other":                     func(s *Site) { s.Name = "other" },
		"~ dpu d1: rack r1 → r2":                                   func(s *Site) { s.DPUs[0].Rack = "r2" },
		"~ dpu d1: uplinks [uplink0] → []":                         func(s *Site) { s.DPUs[0].Uplinks = nil },
		"~ tenant t1: vni 1 → 7":                                   func(s *Site) { s.Tenants[0].VNI = 7 },
		"~ node n4: rack r2 → r1":                                  func(s *Site) { s.Nodes[3].Rack = "r1" },
		"~ node n4: mac 02:00:00:00:00:04 → 02:00:00:00:00:09":     func(s *Site) { s.Nodes[3].MAC[5] = 9 },
		"~ node n1: addresses [10.0.0.1 2001:db8::1] → [10.0.0.1]": func(s *Site) { s.Nodes[0].Addresses = s.Nodes[0].Addresses[:1] },
		"~ node n3: dpus [d2:p1:3] → [d2:p1]":                      func(s *Site) { s.Nodes[2].DPUs[0].VLAN = 0 },
		"~ node n4: dpus [d3:p1] → [d3:p2]":                        func(s *Site) { s.Nodes[3].DPUs[0].Port = "p2" },
		"~ node n4: shared_port false → true":                      func(s *Site) { s.Nodes[3].SharedPort = true },
		"~ service ntp: prefixes [10.2.0.0/16] → [10.2.0.0/17]":    setPrefix("10.2.0.0/17"),
		"~ service ntp: mac 02:00:00:00:01:01 → 02:00:00:00:01:09": func(s *Site) { s.Services[1].MAC[5] = 9 },
		"- tenant t2":       func(s *Site) { s.Tenants = s.Tenants[:1] },
		"+ rack r0":         func(s *Site) { s.Racks = append(s.Racks, Rack{"r0"}) },
		"+ dpu d0: rack r1": func(s *Site) { s.DPUs = append(s.DPUs, DPU{Name: "d0", Rack: "r1"}) },
		"+ service x: prefixes [10.3.0.0/16], mac 02:00:00:00:00:09": func(s *Site) {
			s.Services = append(s.Services, Service{"x", prefixList("10.3.0.0/16"), record.MAC{2, 5: 9}})
		},
		"- node n4":            func(s *Site) { s.Nodes = s.Nodes[:3] },
		"+ tenant t10: vni 10": func(s *Site) { s.Tenants = append(s.Tenants, Tenant{"t10", 10}) },
		"- rack r2":            func(s *Site) { s.Racks = s.Racks[:1] },
	} {
		s := base()
		edit(s)
		changes := Compare(base(), s)
		if len(changes) != 1 || changes[0].String() != want {
			t.Errorf("want %s, have %v", want, changes)
		}
	}
}

// TestCompareBack: what one way adds the other removes, with the same values.
func TestCompareBack(t *testing.T) {
	other := base()
	other.Nodes = other.Nodes[1:]
	other.Tenants = append(other.Tenants, Tenant{"t3", 3})
	other.DPUs[2].Uplinks = []string{"u"}
	there, back := Compare(base(), other), Compare(other, base())
	if len(there) != 3 {
		t.Fatalf("have %v", there)
	}
	opposite := map[string]string{"add": "remove", "remove": "add", "change": "change"}
	for i, c := range there {
		b := Change{opposite[c.Verb], c.Kind, c.Name, c.Field, c.New, c.Old}
		if back[i] != b {
			t.Errorf("there %+v, back %+v", c, back[i])
		}
	}
	if gone := Compare(base(), nil); !slices.ContainsFunc(gone, func(c Change) bool { return c.String() == "- site example" }) {
		t.Errorf("have %v", gone)
	}
}
