package site

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"dpud/pkg/record"
)

// Validate returns everything that is wrong with the site, in the order of its lists; nothing when it is
// sound. It costs O(n log n) in the size of the site. The errors have no lines.
func (s *Site) Validate() Errors {
	c := newChecker(s)
	c.add("site")(checkName(s.Name))
	for i, r := range s.Racks {
		c.name("racks", i, string(r.Name), c.racks)
	}
	for i := range s.DPUs {
		c.dpu(i)
	}
	for i := range s.Tenants {
		c.tenant(i)
	}
	for i := range s.Nodes {
		c.node(i)
	}
	for i := range s.Services {
		c.service(i)
	}
	return c.errs
}

// checker holds, for each thing that must be unique, the index of the first that has it.
type checker struct {
	s    *Site
	errs Errors

	racks, dpus, tenants, nodes, services map[string]int

	vnis     map[record.VNI]int
	macs     map[record.MAC]int    // of nodes
	addrs    map[netip.Addr]string // path of the first
	uplinks  map[uplink]bool
	clashes  map[record.NodePort]clash
	prefixes prefixes
}

func newChecker(s *Site) *checker {
	return &checker{
		s:        s,
		racks:    first(s.Racks, func(r Rack) string { return string(r.Name) }),
		dpus:     first(s.DPUs, func(d DPU) string { return string(d.Name) }),
		tenants:  first(s.Tenants, func(t Tenant) string { return t.Name }),
		nodes:    first(s.Nodes, func(n Node) string { return n.Name }),
		services: first(s.Services, func(v Service) string { return v.Name }),
		vnis:     first(s.Tenants, func(t Tenant) record.VNI { return t.VNI }),
		macs:     first(s.Nodes, func(n Node) record.MAC { return n.MAC }),
		addrs:    make(map[netip.Addr]string, len(s.Nodes)),
		uplinks:  s.uplinks(),
		clashes:  s.clashes(),
		prefixes: newPrefixes(s.Services),
	}
}

func first[T any, K comparable](list []T, of func(T) K) map[K]int {
	m := make(map[K]int, len(list))
	for i, v := range list {
		if _, ok := m[of(v)]; !ok {
			m[of(v)] = i
		}
	}
	return m
}

// add returns a function that reports a problem at path, unless there is none.
func (c *checker) add(path string) func(problem, fix string) {
	return func(problem, fix string) {
		if problem != "" {
			c.errs = append(c.errs, Error{Path: path, Object: c.s.objectAt(path), Problem: problem, Fix: fix})
		}
	}
}

// name checks the name of one element of a list, and returns the element's path.
func (c *checker) name(list string, i int, name string, seen map[string]int) string {
	path := list + "[" + strconv.Itoa(i) + "]"
	report := c.add(path + ".name")
	report(checkName(name))
	if k := seen[name]; name != "" && k != i {
		report(fmt.Sprintf("%s is the name of %s[%d] too", quote(name), list, k), "give each its own name, or take out one of them")
	}
	return path
}

// rack checks a reference to a rack.
func (c *checker) rack(path string, rack record.Rack) {
	switch {
	case rack == "":
		c.add(path)("the rack is missing", "name one of the racks")
	case !c.hasRack(rack):
		c.add(path)("there is no rack "+quote(rack), "name one of the racks, or add this one under racks")
	}
}

func (c *checker) hasRack(rack record.Rack) bool {
	_, ok := c.racks[string(rack)]
	return ok && rack != ""
}

func (c *checker) dpu(i int) {
	d := c.s.DPUs[i]
	path := c.name("dpus", i, string(d.Name), c.dpus)
	c.rack(path+".rack", d.Rack)
	seen := make(map[string]bool, len(d.Uplinks))
	for k, port := range d.Uplinks {
		report := c.add(fmt.Sprintf("%s.uplinks[%d]", path, k))
		report(checkPort(port))
		if seen[port] && port != "" {
			report("port "+quote(port)+" is there twice", "name each uplink once")
		}
		seen[port] = true
	}
}

func (c *checker) tenant(i int) {
	t := c.s.Tenants[i]
	path := c.name("tenants", i, t.Name, c.tenants)
	report := c.add(path + ".vni")
	report(checkVNI(t.VNI))
	if k := c.vnis[t.VNI]; t.VNI != 0 && k != i {
		report(fmt.Sprintf("VNI %d is that of tenants[%d] (%s) too", t.VNI, k, quote(c.s.Tenants[k].Name)), vniFix)
	}
}

func (c *checker) node(i int) {
	n := c.s.Nodes[i]
	path := c.name("nodes", i, n.Name, c.nodes)
	c.rack(path+".rack", n.Rack)
	report := c.add(path + ".mac")
	report(checkMAC(n.MAC))
	if k := c.macs[n.MAC]; n.MAC != (record.MAC{}) && k != i {
		report(fmt.Sprintf("MAC %s is that of nodes[%d] (%s) too", n.MAC, k, quote(c.s.Nodes[k].Name)), "correct one of them; each node has a MAC of its own")
	}
	if len(n.Addresses) == 0 {
		c.add(path+".addresses")("the node has no address", "give it at least one IPv4 or IPv6 address")
	}
	for k, a := range n.Addresses {
		c.address(fmt.Sprintf("%s.addresses[%d]", path, k), a)
	}
	if len(n.DPUs) == 0 {
		c.add(path+".dpus")("no DPU serves the node", "name the DPU that it hangs on and the port there: [{dpu: d1, port: n1}]")
	}
	c.nodePorts(i, path)
}

func (c *checker) address(path string, a netip.Addr) {
	report := c.add(path)
	if problem, fix := checkAddr(a); problem != "" {
		report(problem, fix)
		return
	}
	if other, ok := c.addrs[a]; ok {
		report(fmt.Sprintf("%s is %s too%s", a, other, in(c.s.objectAt(other))), "correct one of them; an address belongs to one node of the site")
		return
	}
	c.addrs[a] = path
	if p, ok := c.prefixes.around(a); ok {
		report(fmt.Sprintf("%s is inside %s of service %s, which every tenant reaches", a, p.prefix, quote(c.s.Services[p.service].Name)),
			"give the node another address, or narrow the service's prefix")
	}
}

func (c *checker) nodePorts(i int, path string) {
	n := c.s.Nodes[i]
	local, unknown := false, false
	seen := make(map[record.DPU]bool, len(n.DPUs))
	for k, p := range n.DPUs {
		at := fmt.Sprintf("%s.dpus[%d]", path, k)
		if !c.servedBy(at+".dpu", n, p.DPU) {
			unknown = true
		}
		if seen[p.DPU] && p.DPU != "" {
			c.add(at+".dpu")("DPU "+quote(p.DPU)+" is there twice", "name each DPU once, with the one port behind which it finds the node")
		}
		seen[p.DPU] = true
		c.add(at + ".port")(checkPort(p.Port))
		c.add(at + ".vlan")(checkVLAN(p.VLAN))
		if !c.uplinks[uplink{p.DPU, p.Port}] {
			local = true
			c.sharedPort(at, i, p)
		}
	}
	if !local && !unknown && len(n.DPUs) > 0 {
		c.add(path+".dpus")("the node sits behind uplinks only, so no DPU checks what it sends",
			"name the DPU that it hangs on with its port there, or take that port out of the DPU's uplinks")
	}
}

// servedBy checks one DPU of a node, and says whether there is that DPU.
func (c *checker) servedBy(path string, n Node, name record.DPU) bool {
	report := c.add(path)
	j, ok := c.dpus[string(name)]
	if name == "" {
		report("the DPU is missing", "name one of the DPUs of the node's rack")
		return false
	}
	if !ok {
		report("there is no DPU "+quote(name), "name one of the DPUs, or add this one under dpus")
		return false
	}
	rack := c.s.DPUs[j].Rack
	if rack != n.Rack && c.hasRack(rack) && c.hasRack(n.Rack) {
		report(fmt.Sprintf("DPU %s is in rack %s, the node in rack %s", quote(name), quote(rack), quote(n.Rack)),
			"name DPUs of the node's own rack only, or correct the rack of the node or of the DPU")
	}
	return true
}

// clash is several nodes that can't be told apart by port and VLAN, where not all of them say shared_port.
type clash struct {
	blamed int // the first that does not say it
	nodes  []int
}

func (s *Site) clashes() map[record.NodePort]clash {
	m := make(map[record.NodePort]clash)
	for p, nodes := range s.localPorts() {
		k := slices.IndexFunc(nodes, func(i int) bool { return !s.Nodes[i].SharedPort })
		if len(nodes) > 1 && k >= 0 && p.DPU != "" && p.Port != "" {
			m[p] = clash{nodes[k], nodes}
		}
	}
	return m
}

// sharedPort reports a clash, once for each port, at the node to blame.
func (c *checker) sharedPort(path string, i int, p record.NodePort) {
	shared, ok := c.clashes[p]
	if !ok || shared.blamed != i {
		return
	}
	names := make([]string, len(shared.nodes))
	for k, n := range shared.nodes {
		names[k] = quote(c.s.Nodes[n].Name)
	}
	where := "untagged"
	if p.VLAN != 0 {
		where = fmt.Sprintf("in VLAN %d", p.VLAN)
	}
	c.add(path)(fmt.Sprintf("several nodes sit %s behind port %s of DPU %s: %s", where, quote(p.Port), quote(p.DPU), some(names)),
		"give each a VLAN of its own; or set shared_port: true on all of them (they then go to one tenant at a time); or, if the port is the plain network between DPUs, list it in the DPU's uplinks")
}

func (c *checker) service(i int) {
	v := c.s.Services[i]
	path := c.name("services", i, v.Name, c.services)
	report := c.add(path + ".mac")
	report(checkMAC(v.MAC))
	if k, ok := c.macs[v.MAC]; ok && v.MAC != (record.MAC{}) {
		report(fmt.Sprintf("MAC %s is that of nodes[%d] (%s)", v.MAC, k, quote(c.s.Nodes[k].Name)),
			"write the MAC of the service's host or of the router before it; a node can't be a shared service")
	}
	if len(v.Prefixes) == 0 {
		c.add(path+".prefixes")("the service has no prefix", "give it at least one prefix")
	}
	for k, p := range v.Prefixes {
		report := c.add(fmt.Sprintf("%s.prefixes[%d]", path, k))
		report(checkPrefix(p))
		if other, ok := c.prefixes.conflicts[[2]int{i, k}]; ok {
			report(fmt.Sprintf("%s overlaps services[%d].prefixes[%d] %s%s", p, other.service, other.index, other.prefix, in(c.s.objectAt(fmt.Sprintf("services[%d]", other.service)))),
				"keep the prefixes of services apart, and name each once")
		}
	}
}

func in(object string) string {
	if object == "" {
		return ""
	}
	return " (" + object + ")"
}
