package agent

import (
	"maps"
	"slices"

	"dpud/pkg/record"
	"dpud/pkg/table"
)

// want returns a node's entries if this DPU wants it programmed.
func (c *Core) want(n NodeID) (table.Tables, bool) {
	g := c.grants[n]
	if g == nil || g.Phase != record.Granted {
		return nil, false
	}
	port, designated := g.Port(c.cfg.DPU)
	e := c.entryOf(g)
	if !designated || e == nil || e.Deleted || e.Epoch != g.Epoch || e.Generation != g.Generation {
		return nil, false
	}
	ifindex, ok := c.ports[port.Port]
	if !ok {
		return nil, false
	}
	end := table.Value{Node: n, Ifindex: ifindex, VLAN: port.VLAN, MAC: g.MAC}
	t := table.Tables{
		{Map: table.NodeState, Node: n}:      {Epoch: g.Epoch, Generation: g.Generation, Revision: g.Revision},
		{Map: table.EndpointMAC, MAC: g.MAC}: end,
		{Map: table.NodeTenant, Node: n}:     {Node: n, Tenant: g.Tenant},
	}
	for _, a := range g.Addresses {
		t[table.EndpointKey(a)] = end
	}
	return t, true
}

func (c *Core) entryOf(g *record.Grant) *record.Entry {
	return c.entries[(&record.Entry{Tenant: g.Tenant, Node: g.Node}).Key()]
}

// over says whether a register that the core holds is newer than what the kernel holds for a node, so that
// the node must be removed.
func (c *Core) over(n NodeID) bool {
	state, ok := c.kernel[table.Key{Map: table.NodeState, Node: n}]
	if !ok {
		return true // entries without node_state are unknown
	}
	g := c.grants[n]
	if g == nil {
		return false
	}
	if g.Version().Compare(record.GrantedVersion(state.Epoch, state.Generation)) > 0 {
		return true // revoked, free, or another generation
	}
	if _, designated := g.Port(c.cfg.DPU); !designated && g.Revision > state.Revision {
		return true
	}
	e := c.entryOf(g)
	return e != nil && e.Deleted && e.Epoch == state.Epoch && e.Generation == state.Generation
}

// misplaced takes out endpoints that point at an interface which has become another port's: the node's own port
// is gone, and its index was given away. Whoever is behind it now must not pass for the node.
func (c *Core) misplaced(s *steps, n NodeID) (found bool) {
	g := c.grants[n]
	if g == nil {
		return false
	}
	own, _ := g.Port(c.cfg.DPU)
	for k := range c.byNode[n] {
		for name, ifindex := range c.ports {
			if v := c.kernel[k]; v.Ifindex != 0 && v.Ifindex == ifindex && name != own.Port {
				s.delete(k)
				found = true
			}
		}
	}
	return found
}

// ahead says whether the kernel holds a later grant than the core has heard: it has restarted, and a peer
// told it old news.
func (c *Core) ahead(n NodeID) bool {
	state, ok := c.kernel[table.Key{Map: table.NodeState, Node: n}]
	g := c.grants[n]
	if !ok || g == nil {
		return false
	}
	order := record.CompareGenerations(state.Epoch, state.Generation, g.Epoch, g.Generation)
	return order > 0 || order == 0 && g.Phase == record.Granted && state.Revision > g.Revision
}

// steps of one pass, in the order in which they are carried out.
type steps struct {
	tenants, endpoints []Op // deletions, before the barrier
	states             []Op // deletions, after it
	puts               []Op
	verify             []NodeID
}

// makePlan decides what to do about every dirty node and the services.
func (c *Core) makePlan() {
	c.plan, c.planned = c.plan[:0], true
	var s steps
	for _, n := range slices.Sorted(maps.Keys(c.dirty)) {
		if !c.planNode(&s, n) {
			delete(c.dirty, n)
		}
	}
	s.sort()

	c.plan = append(c.plan, s.tenants...)
	c.plan = append(c.plan, s.endpoints...)
	deletes := len(c.plan) > 0
	if deletes || c.unsettled && (len(s.states)+len(s.puts)+len(s.verify) > 0) {
		// The plan goes on when it is made anew after the barrier.
		c.plan = append(c.plan, Op{Verb: Barrier})
		return
	}
	c.plan = append(c.plan, s.states...)
	c.plan = append(c.plan, s.puts...)
	if len(s.verify) > 0 {
		c.plan = append(c.plan, Op{Verb: Verify, Nodes: s.verify, Keys: c.keysOf(s.verify)})
	}
}

// planNode adds a node's steps, and says whether there is anything to do or confirm for it.
func (c *Core) planNode(s *steps, n NodeID) bool {
	if _, failed := c.failed[n]; failed {
		return true
	}
	if n == services {
		return c.planServices(s)
	}
	want, wanted := c.want(n)
	switch {
	case c.ahead(n):
		return false // the kernel knows better than the records heard so far
	case wanted:
		return c.planWanted(s, n, want)
	case len(c.byNode[n]) > 0 && c.over(n):
		for k := range c.byNode[n] {
			s.delete(k)
		}
		s.verify = append(s.verify, n)
		return true
	}
	if c.misplaced(s, n) {
		return true
	}
	if len(c.byNode[n]) == 0 && c.owes(n) != record.StateNone {
		s.verify = append(s.verify, n)
		return true
	}
	return false
}

// planWanted brings a node that is wanted to what it should be. An entry that differs is taken out first, and
// put anew in the next plan; node_state is not on the packet path and is replaced in place.
func (c *Core) planWanted(s *steps, n NodeID, want table.Tables) bool {
	differs, blocked := false, false
	for k := range c.byNode[n] {
		if v, ok := want[k]; k.Map != table.NodeState && (!ok || v != c.kernel[k]) {
			s.delete(k)
			differs = true
		}
	}
	var puts []Op
	for k, v := range want {
		have, ok := c.kernel[k]
		if !ok || k.Map == table.NodeState && have != v {
			puts = append(puts, Op{Verb: Put, Key: k, Value: v})
		}
		// Another node's entry stands there until a newer register removes it.
		blocked = blocked || ok && owner(k, have) != n
	}
	switch {
	case differs, blocked, len(puts) > 0 && !c.held:
		return true // go on after the barrier; or wait for news or a lease, and do not forget the node
	case len(puts) > 0:
		slices.SortFunc(puts, func(a, b Op) int { return table.CompareKeys(a.Key, b.Key) })
		s.puts = append(s.puts, puts...)
	case c.owes(n) == record.StateNone:
		return false
	}
	s.verify = append(s.verify, n)
	return true
}

// services stands for the services tables among the nodes.
const services NodeID = 0

// planServices brings the services tables to what the newest register says, and says whether there is more
// to do. Without a register they stay.
func (c *Core) planServices(s *steps) bool {
	if c.services == nil {
		return false
	}
	want := make(table.Tables)
	for _, v := range c.services.Services {
		for _, p := range v.Prefixes {
			want[table.ServiceKey(p)] = table.Value{MAC: v.MAC}
		}
	}
	more := false
	for k := range c.byNode[services] {
		if v, ok := want[k]; !ok || v != c.kernel[k] {
			s.delete(k)
			more = true
		}
	}
	var puts []Op
	for k, v := range want {
		if _, ok := c.kernel[k]; !ok {
			puts = append(puts, Op{Verb: Put, Key: k, Value: v})
			more = true
		}
	}
	if c.held {
		slices.SortFunc(puts, func(a, b Op) int { return table.CompareKeys(a.Key, b.Key) })
		s.puts = append(s.puts, puts...)
	}
	return more
}

func (s *steps) delete(k table.Key) {
	op := Op{Verb: Delete, Key: k}
	switch k.Map {
	case table.NodeTenant:
		s.tenants = append(s.tenants, op)
	case table.NodeState:
		s.states = append(s.states, op)
	default:
		s.endpoints = append(s.endpoints, op)
	}
}

// sort makes the order of deletions independent of Go's map order.
func (s *steps) sort() {
	for _, ops := range [][]Op{s.tenants, s.endpoints, s.states} {
		slices.SortFunc(ops, func(a, b Op) int { return table.CompareKeys(a.Key, b.Key) })
	}
}

// keysOf returns every key under which the kernel may hold something of the nodes, sorted.
func (c *Core) keysOf(nodes []NodeID) []table.Key {
	set := make(map[table.Key]struct{})
	for _, n := range nodes {
		set[table.Key{Map: table.NodeState, Node: n}] = struct{}{}
		set[table.Key{Map: table.NodeTenant, Node: n}] = struct{}{}
		for k := range c.byNode[n] {
			set[k] = struct{}{}
		}
		if g := c.grants[n]; g != nil {
			set[table.Key{Map: table.EndpointMAC, MAC: g.MAC}] = struct{}{}
			for _, a := range g.Addresses {
				set[table.EndpointKey(a)] = struct{}{}
			}
		}
	}
	return slices.SortedFunc(maps.Keys(set), table.CompareKeys)
}
