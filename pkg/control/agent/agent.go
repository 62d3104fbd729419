// Package agent is the pure core of dpud: from the grants and entries that it heard it decides which map
// entries the kernel must hold, one kernel operation at a time, and what may be confirmed.
//
// The rules (docs/architecture.md, "Assign, program, reclaim"):
//   - It wants a node iff its newest grant for it is granted(t, g) and names this DPU, and t's newest entry
//     for it has g and is not deleted.
//   - It adds only under a lease of its present boot.
//   - It removes only because a register that it holds is newer than what the map holds, or because an entry
//     has no node_state; never because a record is absent. So a restarted dpud adopts what it finds.
//   - Removals come first: node_tenant, endpoints, then a barrier, then node_state. Additions come after the
//     barrier: node_state, endpoints, node_tenant last.
//   - It confirms only what a read-back of the kernel, made after the last change, shows.
//
// The core has no goroutine, clock, network or kernel: the caller carries out [Core.Next] and reports with
// [Core.Done]; a crash may come between any two.
package agent

import (
	"fmt"
	"maps"
	"slices"

	"dpud/pkg/record"
	"dpud/pkg/table"
)

// Verb of an operation.
type Verb uint8

// The operations that the core asks for.
const (
	// ReadAll reads every table back.
	ReadAll Verb = iota + 1
	// Delete removes one entry; an absent one is no error.
	Delete
	// Put inserts one entry; an existing one is an error.
	Put
	// Barrier waits until no program runs that began before it.
	Barrier
	// Verify reads Keys back and asks the kernel whether every port is guarded and enforces.
	Verify
)

var verbNames = [...]string{"none", "read_all", "delete", "put", "barrier", "verify"}

func (v Verb) String() string { return verbNames[v] }

// Op is one operation on the kernel.
type Op struct {
	Verb  Verb
	Key   table.Key   // Delete, Put
	Value table.Value // Put
	Nodes []NodeID    // Verify: whose entries
	Keys  []table.Key // Verify
}

// NodeID is short for record.NodeID.
type NodeID = record.NodeID

// Result of an operation.
type Result struct {
	Err error
	// Tables that ReadAll and Verify found. Verify finds a subset of its keys.
	Tables table.Tables
	// Unguarded is why a port does not enforce, from Verify; nil when all do.
	Unguarded error
}

// Config of a core.
type Config struct {
	DPU record.DPU
	// Instance is random for each run.
	Instance   string
	HardwareID string
	KernelBoot string
	// Address of the DPU's API that controllers reach; may be empty.
	Address string
}

// Core is the agent of one DPU. It is not safe for concurrent use.
type Core struct {
	cfg Config
	lease
	outbox

	grants   map[NodeID]*record.Grant
	entries  map[record.Key]*record.Entry
	services *record.Services
	ports    map[string]uint32 // guarded ports: name → ifindex

	kernel table.Tables                      // as last read back, with every change since
	byNode map[NodeID]map[table.Key]struct{} // the kernel's keys of each node, and of services
	known  bool                              // kernel was read
	// unsettled is set from a deletion, and at start (an earlier run may have died before its barrier),
	// until the next barrier. While it is set nothing is added and nothing confirmed as gone.
	unsettled bool

	dirty   map[NodeID]struct{} // nodes whose state or confirmation may have to change
	plan    []Op
	planned bool // plan is up to date
	halted  bool // an operation that serves all nodes failed; wait for Retry
	// failed holds the nodes for which an operation failed. They wait for Retry, others go on.
	failed map[NodeID]struct{}

	stats Stats
}

// Stats counts what the core did since it was made.
type Stats struct {
	Steps, Errors uint64 // operations done, and failed
	// Repairs counts entries that a later ReadAll found changed by someone else.
	Repairs uint64
	LastErr error // of the last operation; nil after one that succeeded
}

// New returns a core that has heard nothing and knows nothing of the kernel.
func New(cfg Config) *Core {
	return &Core{
		cfg: cfg, outbox: newOutbox(),
		grants: make(map[NodeID]*record.Grant), entries: make(map[record.Key]*record.Entry),
		ports: make(map[string]uint32), dirty: make(map[NodeID]struct{}), failed: make(map[NodeID]struct{}), unsettled: true,
	}
}

// Hear takes a record, in any order and any number of times, and says whether it was newer than what the
// core held. Kinds that the agent does not decide on are ignored.
func (c *Core) Hear(r record.Record) bool {
	switch r := r.(type) {
	case *record.Grant:
		old := c.grants[r.Node]
		if old != nil && record.Newest(old, r) == old {
			return false
		}
		c.grants[r.Node] = r
		c.touch(r.Node)
	case *record.Entry:
		if old := c.entries[r.Key()]; old != nil && record.Newest(old, r) == old {
			return false
		}
		c.entries[r.Key()] = r
		c.touch(r.Node)
	case *record.Services:
		if c.services != nil && record.Newest(c.services, r) == c.services {
			return false
		}
		c.services = r
		c.touch(services)
	default:
		return false
	}
	return true
}

// SetPorts tells which ports are attached, guarded and up, by name. A node whose port is missing can't be
// programmed; one whose port came back with another ifindex is programmed anew.
func (c *Core) SetPorts(ports map[string]uint32) {
	if maps.Equal(c.ports, ports) {
		return
	}
	c.ports = maps.Clone(ports)
	c.touchAll()
}

// Audit makes the next operation a read-back of every table, to find what somebody else changed.
func (c *Core) Audit() { c.known, c.planned = false, false }

// Retry lets the core go on after an operation that failed; what it left is read back first. Call it every so
// often.
func (c *Core) Retry() {
	if len(c.failed) > 0 {
		clear(c.failed)
		c.known = false
	}
	c.halted, c.planned = false, false
}

func (c *Core) touch(n NodeID) {
	c.dirty[n] = struct{}{}
	c.planned = false
}

func (c *Core) touchAll() {
	c.dirty[services] = struct{}{}
	for n := range c.grants {
		c.dirty[n] = struct{}{}
	}
	for n := range c.byNode {
		c.dirty[n] = struct{}{}
	}
	c.planned = false
}

// Next returns the operation to carry out now, or false when there is nothing to do until something is
// heard, Retry or Audit. It returns the same one until Done.
func (c *Core) Next() (Op, bool) {
	switch {
	case c.halted:
		return Op{}, false
	case !c.known:
		return Op{Verb: ReadAll}, true
	case !c.planned:
		c.makePlan()
	}
	if len(c.plan) == 0 {
		return Op{}, false
	}
	return c.plan[0], true
}

// Done reports the outcome of the operation that Next returned. A node for which one failed is left alone until
// Retry, and read back then; an error of an operation that serves all nodes holds up all of them.
func (c *Core) Done(op Op, res Result) {
	c.stats.Steps++
	c.stats.LastErr = res.Err
	if res.Err != nil {
		c.stats.Errors++
		c.planned = false
		switch op.Verb {
		case Put:
			c.failed[owner(op.Key, op.Value)] = struct{}{}
		case Delete:
			c.failed[owner(op.Key, c.kernel[op.Key])] = struct{}{}
			c.unsettled = true // whether it took place is unknown
		default:
			c.known, c.halted = false, true
		}
		return
	}
	// A plan that was made before the latest news is made anew; one that is still current loses its head.
	current := c.planned
	if c.planned && len(c.plan) > 0 {
		c.plan = c.plan[1:]
		c.planned = len(c.plan) > 0 // what it led to may need another
	}
	switch op.Verb {
	case ReadAll:
		c.adopt(res.Tables)
	case Put:
		c.set(op.Key, op.Value)
	case Delete:
		// node_state is not on the packet path.
		c.unsettled = c.unsettled || op.Key.Map != table.NodeState
		c.unset(op.Key)
	case Barrier:
		c.unsettled = false
		c.planned = false
	case Verify:
		c.verified(op, res, current)
	}
}

// adopt takes over what a full read-back found.
func (c *Core) adopt(found table.Tables) {
	if c.kernel != nil {
		for k, v := range found {
			if old, ok := c.kernel[k]; !ok || old != v {
				c.stats.Repairs++
			}
		}
		for k := range c.kernel {
			if _, ok := found[k]; !ok {
				c.stats.Repairs++
			}
		}
		if !maps.Equal(c.kernel, found) {
			c.unsettled = true // whoever changed it made no barrier
		}
	}
	c.kernel, c.byNode, c.known = make(table.Tables, len(found)), make(map[NodeID]map[table.Key]struct{}), true
	for k, v := range found {
		c.set(k, v)
	}
	c.touchAll()
}

func (c *Core) set(k table.Key, v table.Value) {
	if old, ok := c.kernel[k]; ok && old != v {
		c.unset(k)
	}
	c.kernel[k] = v
	n := owner(k, v)
	if c.byNode[n] == nil {
		c.byNode[n] = make(map[table.Key]struct{})
	}
	c.byNode[n][k] = struct{}{}
}

func (c *Core) unset(k table.Key) {
	n := owner(k, c.kernel[k])
	delete(c.kernel, k)
	delete(c.byNode[n], k)
	if len(c.byNode[n]) == 0 {
		delete(c.byNode, n)
	}
}

// owner returns the node that an entry is about; services' entries belong to the node services.
func owner(k table.Key, v table.Value) NodeID {
	switch k.Map {
	case table.NodeState, table.NodeTenant:
		return k.Node
	default:
		return v.Node
	}
}

// verified compares a read-back with the core's picture and confirms what holds. If it is not current, there has
// been news since it was asked for, and the nodes are looked at again.
func (c *Core) verified(op Op, res Result, current bool) {
	same := true
	for _, k := range op.Keys {
		want, had := c.kernel[k]
		if got, ok := res.Tables[k]; ok != had || got != want {
			same = false
			c.stats.Repairs++
		}
	}
	if !same {
		c.known = false // somebody else writes: look at everything again
		return
	}
	for _, n := range op.Nodes {
		if c.confirm(n, res.Unguarded) && current {
			delete(c.dirty, n)
		}
	}
	if res.Unguarded != nil && len(c.dirty) > 0 {
		c.stats.LastErr = fmt.Errorf("confirm cleared: %w", res.Unguarded)
		c.halted = true
	}
}

// Stats returns the counters.
func (c *Core) Stats() Stats { return c.stats }

// Grants returns the grants held, in order of node.
func (c *Core) Grants() []*record.Grant {
	g := make([]*record.Grant, 0, len(c.grants))
	for _, n := range slices.Sorted(maps.Keys(c.grants)) {
		g = append(g, c.grants[n])
	}
	return g
}

// Kernel returns the core's picture of the kernel. Read it, do not change it.
func (c *Core) Kernel() table.Tables { return c.kernel }

// Counts returns how many nodes the core wants programmed, and how many the kernel holds a tenant for.
func (c *Core) Counts() (wanted, programmed int) {
	for n := range c.grants {
		if _, ok := c.want(n); ok {
			wanted++
		}
	}
	for k := range c.kernel {
		if k.Map == table.NodeTenant {
			programmed++
		}
	}
	return wanted, programmed
}
