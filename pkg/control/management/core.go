package management

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"dpud/pkg/record"
)

// Errors that callers match. Each comes wrapped in a sentence that says what to do.
var (
	// ErrNotFound: a name is not in the site.
	ErrNotFound = errors.New("not found")
	// ErrPrecondition: the guard or another precondition refuses.
	ErrPrecondition = errors.New("refused")
	// ErrInvalid: the request itself is wrong.
	ErrInvalid = errors.New("invalid")
)

// Core holds a copy of the store's objects and decides on it. It is not safe for concurrent use.
type Core struct {
	objects map[Key]held
	grants  map[record.NodeID]*Grant
	nodes   map[string]*Node
	// revoked holds the nodes for which the guard may become satisfied.
	revoked map[record.NodeID]struct{}
	// behind holds the nodes of each port that is not an uplink, to find those that share one.
	behind map[record.NodePort][]*Node
}

type held struct {
	object   Object // nil: deleted
	revision int64
}

// New returns a core that knows an empty store.
func New() *Core {
	return &Core{
		objects: make(map[Key]held), grants: make(map[record.NodeID]*Grant),
		nodes: make(map[string]*Node), revoked: make(map[record.NodeID]struct{}),
	}
}

// Learn takes an object as the store held it at a revision, or nil for a deleted one. News may come in any
// order and any number of times; older ones are ignored.
func (c *Core) Learn(key Key, object Object, revision int64) {
	if h, ok := c.objects[key]; ok && revision <= h.revision {
		return
	}
	c.objects[key] = held{object, revision}
	switch o := object.(type) {
	case *Grant:
		c.grants[o.Node] = o
		delete(c.revoked, o.Node)
		if o.Phase == record.Revoked {
			c.revoked[o.Node] = struct{}{}
		}
	case *Node:
		c.nodes[o.Name] = o
		c.behind = nil
	case *DPU:
		c.behind = nil
	case nil:
		if kind, name, _ := cutKey(key); kind == "node" {
			delete(c.nodes, name)
			c.behind = nil
		}
	}
}

// Revision at which the core knows a key; 0 when absent.
func (c *Core) revision(key Key) int64 {
	if h := c.objects[key]; h.object != nil {
		return h.revision
	}
	return 0
}

// reads returns the condition that keys are as the core knows them.
func (c *Core) reads(keys ...Key) map[Key]int64 {
	m := make(map[Key]int64, len(keys))
	for _, k := range keys {
		m[k] = c.revision(k)
	}
	return m
}

func lookup[O Object](c *Core, key Key) O {
	o, _ := c.objects[key].object.(O)
	return o
}

// Meta returns the site's identity, or nil before Init.
func (c *Core) Meta() *Meta { return lookup[*Meta](c, metaKey) }

// Init makes a site out of an empty store. id must be new and random; epoch must be higher than any that a
// DPU of this site may hold (the caller derives it from the clock).
func (c *Core) Init(id record.SiteID, epoch record.Epoch) (Txn, error) {
	if c.Meta() != nil {
		return Txn{}, fmt.Errorf("init site: the store already holds site %s: %w", c.Meta().SiteID, ErrPrecondition)
	}
	return Txn{If: c.reads(metaKey), Put: []Object{&Meta{SiteID: id, Epoch: epoch}}}, nil
}

// Node returns a node of the inventory by name.
func (c *Core) Node(name string) (*Node, error) {
	if n := c.nodes[name]; n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("node %q is not in the site; see `ctl get nodes`: %w", name, ErrNotFound)
}

// Grant returns a node's register, or nil if the node was never assigned.
func (c *Core) Grant(n record.NodeID) *Grant { return c.grants[n] }

// Confirmation returns what a DPU last confirmed of a node, or nil.
func (c *Core) Confirmation(d record.DPU, n record.NodeID) *Confirmation {
	return lookup[*Confirmation](c, confirmationKey(d, n))
}

// Assign grants a free node to a tenant: the next generation. Assigning it again to the same tenant asks
// for nothing.
func (c *Core) Assign(node, tenant string, now time.Time) (Txn, error) {
	n, err := c.Node(node)
	if err != nil {
		return Txn{}, err
	}
	t := lookup[*Tenant](c, tenantKey(tenant))
	if t == nil {
		return Txn{}, fmt.Errorf("tenant %q is not in the site; see `ctl get tenants`: %w", tenant, ErrNotFound)
	}
	old := c.grants[n.ID]
	if old == nil {
		old = &Grant{Grant: record.Grant{Node: n.ID, Phase: record.Free}}
	}
	switch {
	case old.Phase == record.Granted && old.Tenant == t.ID:
		return Txn{}, nil
	case old.Phase == record.Granted:
		return Txn{}, fmt.Errorf("node %s is assigned to tenant %s; reclaim it first with `ctl reclaim %s`: %w", node, old.TenantName, node, ErrPrecondition)
	case old.Phase == record.Revoked:
		return Txn{}, fmt.Errorf("node %s is being reclaimed from tenant %s and waits for %s; see `ctl status`: %w",
			node, old.TenantName, joinDPUs(c.Unproved(&old.Grant)), ErrPrecondition)
	}
	cond := c.reads(metaKey, grantKey(n.ID), nodeKey(n.Name), tenantKey(t.Name))
	if err := c.checkNeighbours(n, t, cond); err != nil {
		return Txn{}, err
	}
	g := &Grant{At: now, Grant: record.Grant{
		Node: n.ID, Epoch: c.Meta().Epoch, Generation: old.Generation + 1, Phase: record.Granted, Revision: 1,
		Tenant: t.ID, Name: n.Name, TenantName: t.Name, Rack: n.Rack, VNI: t.VNI, MAC: n.MAC,
		Addresses: slices.Clone(n.Addresses), Ports: slices.Clone(n.DPUs),
	}}
	for _, p := range n.DPUs {
		g.Provers = append(g.Provers, p.DPU)
	}
	g.Provers = record.SortDPUs(g.Provers)
	return Txn{If: cond, Put: []Object{g}}, nil
}

// checkNeighbours refuses a second tenant behind a port that several nodes share, and adds what it read to cond.
func (c *Core) checkNeighbours(n *Node, t *Tenant, cond map[Key]int64) error {
	c.indexPorts()
	for _, p := range n.DPUs {
		for _, other := range c.behind[p] {
			if other.ID == n.ID {
				continue
			}
			cond[grantKey(other.ID)] = c.revision(grantKey(other.ID))
			if g := c.grants[other.ID]; g != nil && g.Phase != record.Free && g.Tenant != t.ID {
				return fmt.Errorf("node %s shares port %s of %s with node %s, which belongs to tenant %s; a shared port serves one tenant: %w",
					n.Name, p.Port, p.DPU, other.Name, g.TenantName, ErrPrecondition)
			}
		}
	}
	return nil
}

// indexPorts fills behind. Uplinks carry several tenants' nodes by design and are left out.
func (c *Core) indexPorts() {
	if c.behind != nil {
		return
	}
	c.behind = make(map[record.NodePort][]*Node)
	for _, n := range c.nodes {
		for _, p := range n.DPUs {
			if d := lookup[*DPU](c, dpuKey(p.DPU)); d == nil || !slices.Contains(d.Uplinks, p.Port) {
				c.behind[p] = append(c.behind[p], n)
			}
		}
	}
}

// Reclaim revokes a node's grant. Reclaiming a node that is revoked or free asks for nothing.
func (c *Core) Reclaim(node string, now time.Time) (Txn, error) {
	n, err := c.Node(node)
	if err != nil {
		return Txn{}, err
	}
	old := c.grants[n.ID]
	if old == nil || old.Phase != record.Granted {
		return Txn{}, nil
	}
	return c.advance(old, record.Revoked, now), nil
}

// advance moves a grant to its next phase, on condition that it is as the core knows it.
func (c *Core) advance(old *Grant, phase record.Phase, now time.Time) Txn {
	g := *old
	g.Phase, g.Revision, g.At = phase, old.Revision+1, now
	return Txn{If: c.reads(g.Key()), Put: []Object{&g}}
}

// Unproved returns the DPUs that have not proved that they cleared the grant's generation.
func (c *Core) Unproved(g *record.Grant) []record.DPU {
	return slices.DeleteFunc(slices.Clone(g.Provers), func(d record.DPU) bool { return c.proved(g, d) })
}

// proved is the guard's test. A proof is the DPU's own confirmation of this very generation.
func (c *Core) proved(g *record.Grant, d record.DPU) bool {
	f := c.Confirmation(d, g.Node)
	return f != nil && f.State == record.Cleared && f.Epoch == g.Epoch && f.Generation == g.Generation
}

// Unprogrammed returns the designated DPUs that have not confirmed the grant's generation as programmed in their
// present boot: what an earlier one confirmed may have been lost with the DPU's power.
func (c *Core) Unprogrammed(g *record.Grant) []record.DPU {
	var missing []record.DPU
	for _, p := range g.Ports {
		f, r := c.Confirmation(p.DPU, g.Node), c.Registration(p.DPU)
		if f == nil || r == nil || f.Boot != r.Boot || f.State != record.Programmed || f.Epoch != g.Epoch || f.Generation != g.Generation {
			missing = append(missing, p.DPU)
		}
	}
	return missing
}

// Freeable returns the revoked nodes whose guard is satisfied, in order of id.
func (c *Core) Freeable() []record.NodeID {
	var nodes []record.NodeID
	for n := range c.revoked {
		if len(c.Unproved(&c.grants[n].Grant)) == 0 {
			nodes = append(nodes, n)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// Free returns a revoked node to the pool. This is the guard: it refuses until every DPU that could ever
// have received the grant has proved that it no longer forwards for it.
func (c *Core) Free(n record.NodeID, now time.Time) (Txn, error) {
	g := c.grants[n]
	if g == nil || g.Phase != record.Revoked {
		return Txn{}, fmt.Errorf("free node %d: it is not being reclaimed: %w", n, ErrPrecondition)
	}
	if missing := c.Unproved(&g.Grant); len(missing) > 0 {
		return Txn{}, fmt.Errorf("free node %s: no proof from %s: %w", g.Name, joinDPUs(missing), ErrPrecondition)
	}
	return c.advance(g, record.Free, now), nil
}

// Confirm stores those confirmations that are newer than what the store holds. One that can't be true is left out
// and named in the error; the transaction holds the others all the same.
func (c *Core) Confirm(confirmations []*record.Confirmation, now time.Time) (Txn, error) {
	newest := make(map[Key]*Confirmation)
	var refused []error
	for _, f := range confirmations {
		if err := c.checkConfirmation(f); err != nil {
			refused = append(refused, err)
			continue
		}
		key := f.Key()
		k := confirmationKey(key.Name, key.Node)
		if old := c.Confirmation(f.DPU, f.Node); old != nil && f.Version().Compare(old.Version()) <= 0 {
			continue
		}
		if prev := newest[k]; prev == nil || f.Version().Compare(prev.Version()) > 0 {
			newest[k] = &Confirmation{Confirmation: *f, At: now}
		}
	}
	txn := Txn{If: make(map[Key]int64, len(newest))}
	for _, k := range sortedKeys(newest) {
		txn.If[k] = c.revision(k)
		txn.Put = append(txn.Put, newest[k])
	}
	return txn, errors.Join(refused...)
}

// checkConfirmation refuses what no DPU can honestly say.
func (c *Core) checkConfirmation(f *record.Confirmation) error {
	r, g := c.Registration(f.DPU), c.grants[f.Node]
	switch {
	case r == nil || f.Boot == 0 || f.Boot > r.Boot:
		return fmt.Errorf("confirm node %d: DPU %q has no boot %d: %w", f.Node, f.DPU, f.Boot, ErrPrecondition)
	case g == nil:
		return fmt.Errorf("confirm node %d: it was never assigned: %w", f.Node, ErrPrecondition)
	case record.CompareGenerations(f.Epoch, f.Generation, g.Epoch, g.Generation) > 0:
		return fmt.Errorf("confirm node %d of epoch %d generation %d: the store knows none after epoch %d generation %d; was an older copy put in its place?: %w",
			f.Node, f.Epoch, f.Generation, g.Epoch, g.Generation, ErrPrecondition)
	}
	return nil
}

func sortedKeys[V any](m map[Key]V) []Key {
	keys := make([]Key, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func joinDPUs(dpus []record.DPU) string {
	s := make([]string, len(dpus))
	for i, d := range dpus {
		s[i] = string(d)
	}
	return strings.Join(s, ", ")
}
