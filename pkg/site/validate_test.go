package site

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"dpud/pkg/record"
)

// base is a sound site with one of everything that the rules speak of.
func base() *Site {
	mac := func(i byte) record.MAC { return record.MAC{2, 0, 0, 0, 0, i} }
	addrs := func(s ...string) (list []netip.Addr) {
		for _, a := range s {
			list = append(list, netip.MustParseAddr(a))
		}
		return list
	}
	return &Site{
		Name:    "example",
		Racks:   []Rack{{"r1"}, {"r2"}},
		DPUs:    []DPU{{"d1", "r1", []string{"uplink0"}}, {"d2", "r1", []string{"uplink0"}}, {"d3", "r2", nil}},
		Tenants: []Tenant{{"t1", 1}, {"t2", 1<<24 - 1}},
		Nodes: []Node{
			{"n1", "r1", mac(1), addrs("10.0.0.1", "2001:db8::1"), []record.NodePort{{DPU: "d1", Port: "p1"}, {DPU: "d2", Port: "uplink0"}}, false},
			{"n2", "r1", mac(2), addrs("10.0.0.2"), []record.NodePort{{DPU: "d1", Port: "p2"}, {DPU: "d2", Port: "uplink0"}}, false},
			{"n3", "r1", mac(3), addrs("10.0.0.3"), []record.NodePort{{DPU: "d2", Port: "p1", VLAN: 3}}, false},
			{"n4", "r2", mac(4), addrs("10.0.0.4"), []record.NodePort{{DPU: "d3", Port: "p1"}}, false},
		},
		Services: []Service{
			{"dns", prefixList("10.1.0.0/16", "2001:db8:9::/48"), record.MAC{2, 0, 0, 0, 1, 1}},
			{"ntp", prefixList("10.2.0.0/16"), record.MAC{2, 0, 0, 0, 1, 1}},
		},
	}
}

func prefixList(s ...string) (list []netip.Prefix) {
	for _, p := range s {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}

func setAddr(a string) func(s *Site) {
	return func(s *Site) { s.Nodes[1].Addresses[0] = netip.MustParseAddr(a) }
}

func setPrefix(p string) func(s *Site) {
	return func(s *Site) { s.Services[1].Prefixes[0] = netip.MustParsePrefix(p) }
}

func setName(name string) func(s *Site) { return func(s *Site) { s.Nodes[3].Name = name } }

func setPort(port string) func(s *Site) { return func(s *Site) { s.Nodes[3].DPUs[0].Port = port } }

// TestRules breaks one rule at a time: the error must be there, at that path, and be the only one.
func TestRules(t *testing.T) {
	for _, test := range []struct {
		name          string
		edit          func(s *Site)
		path, problem string
	}{
		{"no site name", func(s *Site) { s.Name = "" }, "site", "the name is missing"},
		{"name missing", setName(""), "nodes[3].name", "the name is missing"},
		{"name with capital", setName("N4"), "nodes[3].name", `"N4" is not a name`},
		{"name with dot", setName("n4.r2"), "nodes[3].name", "is not a name"},
		{"name with underscore", setName("n_4"), "nodes[3].name", "is not a name"},
		{"name starts with dash", setName("-n4"), "nodes[3].name", "is not a name"},
		{"name ends with dash", setName("n4-"), "nodes[3].name", "is not a name"},
		{"name of digits", setName("4"), "nodes[3].name", "is not a name"},
		{"name with newline", setName("n4\n"), "nodes[3].name", `"n4\n" is not a name`},
		{"name of 64", setName(strings.Repeat("n", 64)), "nodes[3].name", "is not a name"},
		{"huge name is cut", setName(strings.Repeat("n", 70)), "nodes[3].name", strings.Repeat("n", 64) + `"… is not a name`},

		{"duplicate rack", func(s *Site) { s.Racks = append(s.Racks, Rack{"r1"}) }, "racks[2].name", `"r1" is the name of racks[0] too`},
		{"duplicate DPU", func(s *Site) { s.DPUs = append(s.DPUs, s.DPUs[2]) }, "dpus[3].name", `"d3" is the name of dpus[2] too`},
		{"duplicate tenant", func(s *Site) { s.Tenants = append(s.Tenants, Tenant{"t1", 7}) }, "tenants[2].name", `"t1" is the name of tenants[0] too`},
		{"duplicate node", setName("n1"), "nodes[3].name", `"n1" is the name of nodes[0] too`},
		{"duplicate service", func(s *Site) { s.Services[1].Name = "dns" }, "services[1].name", `"dns" is the name of services[0] too`},

		{"DPU without rack", func(s *Site) { s.DPUs = append(s.DPUs, DPU{Name: "d4"}) }, "dpus[3].rack", "the rack is missing"},
		{"DPU in unknown rack", func(s *Site) { s.DPUs = append(s.DPUs, DPU{Name: "d4", Rack: "r9"}) }, "dpus[3].rack", `there is no rack "r9"`},
		{"bad uplink", func(s *Site) { s.DPUs[2].Uplinks = []string{"a/b"} }, "dpus[2].uplinks[0]", `"a/b" is not an interface name`},
		{"uplink twice", func(s *Site) { s.DPUs[2].Uplinks = []string{"u", "u"} }, "dpus[2].uplinks[1]", `port "u" is there twice`},

		{"VNI 0", func(s *Site) { s.Tenants[1].VNI = 0 }, "tenants[1].vni", "the VNI is missing or 0"},
		{"VNI too high", func(s *Site) { s.Tenants[1].VNI = 1 << 24 }, "tenants[1].vni", "VNI 16777216 is above 16777215"},
		{"duplicate VNI", func(s *Site) { s.Tenants[1].VNI = 1 }, "tenants[1].vni", `VNI 1 is that of tenants[0] ("t1") too`},

		{"node without rack", func(s *Site) { s.Nodes[3].Rack = "" }, "nodes[3].rack", "the rack is missing"},
		{"node in unknown rack", func(s *Site) { s.Nodes[3].Rack = "r9" }, "nodes[3].rack", `there is no rack "r9"`},
		{"no MAC", func(s *Site) { s.Nodes[3].MAC = record.MAC{} }, "nodes[3].mac", "the MAC is missing or zero"},
		{"group MAC", func(s *Site) { s.Nodes[3].MAC[0] = 1 }, "nodes[3].mac", "MAC 01:00:00:00:00:04 is a group address"},
		{"duplicate MAC", func(s *Site) { s.Nodes[3].MAC = s.Nodes[0].MAC }, "nodes[3].mac", `is that of nodes[0] ("n1") too`},

		{"no address", func(s *Site) { s.Nodes[3].Addresses = nil }, "nodes[3].addresses", "the node has no address"},
		{"zero address", func(s *Site) { s.Nodes[1].Addresses[0] = netip.Addr{} }, "nodes[1].addresses[0]", "the address is missing"},
		{"unspecified", setAddr("0.0.0.0"), "nodes[1].addresses[0]", "is the unspecified address"},
		{"unspecified v6", setAddr("::"), "nodes[1].addresses[0]", "is the unspecified address"},
		{"loopback", setAddr("127.0.0.2"), "nodes[1].addresses[0]", "is a loopback address"},
		{"loopback v6", setAddr("::1"), "nodes[1].addresses[0]", "is a loopback address"},
		{"link-local", setAddr("169.254.1.1"), "nodes[1].addresses[0]", "is a link-local address"},
		{"link-local v6", setAddr("fe80::1"), "nodes[1].addresses[0]", "is a link-local address"},
		{"multicast", setAddr("239.0.0.1"), "nodes[1].addresses[0]", "is a multicast address"},
		{"multicast v6", setAddr("ff02::1"), "nodes[1].addresses[0]", "is a multicast address"},
		{"broadcast", setAddr("255.255.255.255"), "nodes[1].addresses[0]", "is the broadcast address"},
		{"mapped", setAddr("::ffff:10.0.0.9"), "nodes[1].addresses[0]", "is an IPv4 address mapped into IPv6"},
		{"zone", setAddr("2001:db8::9%eth0"), "nodes[1].addresses[0]", "has a zone"},
		{"duplicate address", setAddr("10.0.0.1"), "nodes[1].addresses[0]", "10.0.0.1 is nodes[0].addresses[0] too (node n1)"},
		{"same address twice in a node", func(s *Site) { s.Nodes[0].Addresses[1] = s.Nodes[0].Addresses[0] }, "nodes[0].addresses[1]", "10.0.0.1 is nodes[0].addresses[0] too (node n1)"},
		{"in a service", setAddr("10.2.255.255"), "nodes[1].addresses[0]", `10.2.255.255 is inside 10.2.0.0/16 of service "ntp"`},
		{"first of a service", setAddr("10.1.0.0"), "nodes[1].addresses[0]", `inside 10.1.0.0/16 of service "dns"`},
		{"in a service v6", setAddr("2001:db8:9::7"), "nodes[1].addresses[0]", `inside 2001:db8:9::/48 of service "dns"`},

		{"no DPU", func(s *Site) { s.Nodes[3].DPUs = nil }, "nodes[3].dpus", "no DPU serves the node"},
		{"DPU missing", func(s *Site) { s.Nodes[3].DPUs[0].DPU = "" }, "nodes[3].dpus[0].dpu", "the DPU is missing"},
		{"unknown DPU", func(s *Site) { s.Nodes[3].DPUs[0].DPU = "d9" }, "nodes[3].dpus[0].dpu", `there is no DPU "d9"`},
		{"DPU of another rack", func(s *Site) { s.Nodes[3].DPUs[0].DPU, s.Nodes[3].DPUs[0].Port = "d1", "p4" }, "nodes[3].dpus[0].dpu", `DPU "d1" is in rack "r1", the node in rack "r2"`},
		{"DPU twice", func(s *Site) { s.Nodes[3].DPUs = append(s.Nodes[3].DPUs, record.NodePort{DPU: "d3", Port: "p2"}) }, "nodes[3].dpus[1].dpu", `DPU "d3" is there twice`},
		{"uplinks only", func(s *Site) { s.Nodes[0].DPUs = s.Nodes[0].DPUs[1:] }, "nodes[0].dpus", "the node sits behind uplinks only"},
		{"no port", setPort(""), "nodes[3].dpus[0].port", "the port is missing"},
		{"port of 16", setPort(strings.Repeat("p", 16)), "nodes[3].dpus[0].port", "is not an interface name"},
		{"port with slash", setPort("a/b"), "nodes[3].dpus[0].port", "is not an interface name"},
		{"port with colon", setPort("a:b"), "nodes[3].dpus[0].port", "is not an interface name"},
		{"port with blank", setPort("a b"), "nodes[3].dpus[0].port", "is not an interface name"},
		{"port beyond ASCII", setPort("é"), "nodes[3].dpus[0].port", "is not an interface name"},
		{"port dot", setPort("."), "nodes[3].dpus[0].port", "is not an interface name"},
		{"port dots", setPort(".."), "nodes[3].dpus[0].port", "is not an interface name"},
		{"VLAN too high", func(s *Site) { s.Nodes[3].DPUs[0].VLAN = 4095 }, "nodes[3].dpus[0].vlan", "VLAN 4095 is above 4094"},
		{"two untagged", func(s *Site) { s.Nodes[1].DPUs[0].Port = "p1" }, "nodes[0].dpus[0]", `several nodes sit untagged behind port "p1" of DPU "d1": "n1", "n2"`},
		{"one does not share", func(s *Site) { s.Nodes[1].DPUs[0].Port, s.Nodes[0].SharedPort = "p1", true }, "nodes[1].dpus[0]", "several nodes sit untagged"},
		{"two in a VLAN", func(s *Site) { s.Nodes[1].DPUs[0] = s.Nodes[2].DPUs[0]; s.Nodes[1].DPUs = s.Nodes[1].DPUs[:1] }, "nodes[1].dpus[0]", `several nodes sit in VLAN 3 behind port "p1" of DPU "d2"`},

		{"service without MAC", func(s *Site) { s.Services[1].MAC = record.MAC{} }, "services[1].mac", "the MAC is missing"},
		{"service with group MAC", func(s *Site) { s.Services[1].MAC[0] = 3 }, "services[1].mac", "is a group address"},
		{"service at a node", func(s *Site) { s.Services[1].MAC = s.Nodes[1].MAC }, "services[1].mac", `is that of nodes[1] ("n2")`},
		{"no prefix", func(s *Site) { s.Services[1].Prefixes = nil }, "services[1].prefixes", "the service has no prefix"},
		{"zero prefix", func(s *Site) { s.Services[1].Prefixes[0] = netip.Prefix{} }, "services[1].prefixes[0]", "the prefix is missing"},
		{"prefix of everything", setPrefix("0.0.0.0/0"), "services[1].prefixes[0]", "0.0.0.0/0 matches every address"},
		{"prefix of everything v6", setPrefix("::/0"), "services[1].prefixes[0]", "::/0 matches every address"},
		{"host bits", setPrefix("10.2.0.1/16"), "services[1].prefixes[0]", "10.2.0.1/16 has bits set behind its length"},
		{"multicast prefix", setPrefix("224.0.0.0/8"), "services[1].prefixes[0]", "starts with a multicast address"},
		{"link-local prefix", setPrefix("fe80::/64"), "services[1].prefixes[0]", "starts with a link-local address"},
		{"mapped prefix", setPrefix("::ffff:10.2.0.0/112"), "services[1].prefixes[0]", "mapped into IPv6"},
		{"equal prefix", setPrefix("10.1.0.0/16"), "services[1].prefixes[0]", "10.1.0.0/16 overlaps services[0].prefixes[0] 10.1.0.0/16 (service dns)"},
		{"narrower prefix", setPrefix("10.1.7.0/24"), "services[1].prefixes[0]", "10.1.7.0/24 overlaps services[0].prefixes[0] 10.1.0.0/16 (service dns)"},
		{"wider prefix", setPrefix("2001:db8:8::/47"), "services[1].prefixes[0]", "2001:db8:8::/47 overlaps services[0].prefixes[1] 2001:db8:9::/48"},
		{"prefix twice", func(s *Site) { s.Services[1].Prefixes = append(s.Services[1].Prefixes, s.Services[1].Prefixes[0]) }, "services[1].prefixes[1]", "overlaps services[1].prefixes[0]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := base()
			test.edit(s)
			errs := s.Validate()
			if len(errs) != 1 || errs[0].Path != test.path || !strings.Contains(errs[0].Problem, test.problem) {
				t.Fatalf("want one error, at %s: %s\nhave %v", test.path, test.problem, errs)
			}
			if errs[0].Fix == "" || errs[0].Line != 0 {
				t.Errorf("want a fix and no line: %+v", errs[0])
			}
		})
	}
}

// TestAllowed is what looks like a break of a rule and is none.
func TestAllowed(t *testing.T) {
	for _, test := range []struct {
		name string
		edit func(s *Site)
	}{
		{"the base", func(*Site) {}},
		{"only a name", func(s *Site) { *s = Site{Name: "example"} }},
		{"name of 63", setName(strings.Repeat("n", 63))},
		{"name like 9a-0", setName("9a-0")},
		{"one name for a rack, a DPU, a tenant and a node", func(s *Site) {
			s.Racks = append(s.Racks, Rack{"x"})
			s.DPUs = append(s.DPUs, DPU{Name: "x", Rack: "x"})
			s.Tenants[0].Name, s.Nodes[3].Name = "x", "x"
		}},
		{"port of 15", setPort(strings.Repeat("p", 15))},
		{"highest VLAN", func(s *Site) { s.Nodes[3].DPUs[0].VLAN = 4094 }},
		{"one port, other VLAN", func(s *Site) { s.Nodes[1].DPUs = []record.NodePort{{DPU: "d2", Port: "p1", VLAN: 4}} }},
		{"one port, one untagged", func(s *Site) { s.Nodes[1].DPUs = []record.NodePort{{DPU: "d2", Port: "p1"}} }},
		{"all say shared_port", func(s *Site) {
			s.Nodes[1].DPUs[0].Port, s.Nodes[0].SharedPort, s.Nodes[1].SharedPort = "p1", true, true
		}},
		{"shared_port alone", func(s *Site) { s.Nodes[0].SharedPort = true }},
		{"a node on two DPUs' own ports", func(s *Site) { s.Nodes[0].DPUs[1].Port = "p9" }},
		{"prefixes of one service nested", func(s *Site) {
			s.Services[1].Prefixes = append(s.Services[1].Prefixes, netip.MustParsePrefix("10.2.7.0/24"))
		}},
		{"address beside a prefix", setAddr("10.3.0.0")},
		{"order of lists", func(s *Site) {
			slices.Reverse(s.Racks)
			slices.Reverse(s.DPUs)
			slices.Reverse(s.Nodes)
			slices.Reverse(s.Nodes[3].DPUs)
			slices.Reverse(s.Services)
			slices.Reverse(s.Services[1].Prefixes)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := base()
			test.edit(s)
			if errs := s.Validate(); len(errs) > 0 {
				t.Error(errs)
			}
		})
	}
}

func TestOverlapBehindNested(t *testing.T) {
	// dns's own narrower prefix stands between its wide one and that of ntp.
	s := base()
	s.Services[0].Prefixes = prefixList("10.2.0.0/15", "10.3.0.0/24")
	s.Services[1].Prefixes = prefixList("10.3.0.7/32", "10.3.1.0/24", "10.4.0.0/16")
	var paths []string
	for _, e := range s.Validate() {
		paths = append(paths, e.Path)
	}
	if want := []string{"services[1].prefixes[0]", "services[1].prefixes[1]"}; !slices.Equal(paths, want) {
		t.Errorf("overlaps at %v, want %v", paths, want)
	}
}

func TestLookups(t *testing.T) {
	s := base()
	s.Nodes[1].DPUs[0].Port, s.Nodes[0].SharedPort, s.Nodes[1].SharedPort = "p1", true, true
	for node, want := range map[string][]string{"n1": {"n2"}, "n2": {"n1"}, "n3": nil, "n9": nil} {
		if got := s.SharedWith(node); !slices.Equal(got, want) {
			t.Errorf("%s shares its port with %v, want %v", node, got, want)
		}
	}
	if n := s.Node("n2"); n != &s.Nodes[1] {
		t.Errorf("node n2 is %+v", n)
	}
	if x := s.Tenant("t2"); x != &s.Tenants[1] {
		t.Errorf("tenant t2 is %+v", x)
	}
	if s.Node("t1") != nil || s.Tenant("n1") != nil {
		t.Error("found what is not there")
	}
}
