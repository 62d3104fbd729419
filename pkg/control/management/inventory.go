package management

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"dpud/pkg/record"
	"dpud/pkg/site"
)

// Site returns the inventory as a site file would state it, lists sorted by name.
func (c *Core) Site() *site.Site {
	s := new(site.Site)
	if m := c.Meta(); m != nil {
		s.Name = m.Name
	}
	for _, h := range c.objects {
		switch o := h.object.(type) {
		case *Rack:
			s.Racks = append(s.Racks, o.Rack)
		case *DPU:
			s.DPUs = append(s.DPUs, o.DPU)
		case *Tenant:
			s.Tenants = append(s.Tenants, o.Tenant)
		case *Node:
			s.Nodes = append(s.Nodes, o.Node)
		case *Services:
			for _, v := range o.Services.Services {
				s.Services = append(s.Services, site.Service(v))
			}
		}
	}
	slices.SortFunc(s.Racks, func(a, b site.Rack) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(s.DPUs, func(a, b site.DPU) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(s.Tenants, func(a, b site.Tenant) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(s.Nodes, func(a, b site.Node) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(s.Services, func(a, b site.Service) int { return cmp.Compare(a.Name, b.Name) })
	return s
}

// Tenants returns the tenants, sorted by name.
func (c *Core) Tenants() []*Tenant {
	var tenants []*Tenant
	for _, h := range c.objects {
		if t, ok := h.object.(*Tenant); ok {
			tenants = append(tenants, t)
		}
	}
	slices.SortFunc(tenants, func(a, b *Tenant) int { return cmp.Compare(a.Name, b.Name) })
	return tenants
}

// DPUs returns the DPUs of the inventory, sorted by name.
func (c *Core) DPUs() []*DPU {
	var dpus []*DPU
	for _, h := range c.objects {
		if d, ok := h.object.(*DPU); ok {
			dpus = append(dpus, d)
		}
	}
	slices.SortFunc(dpus, func(a, b *DPU) int { return cmp.Compare(a.Name, b.Name) })
	return dpus
}

// RackOf returns the rack of a DPU; "" when it is not in the inventory.
func (c *Core) RackOf(d record.DPU) record.Rack {
	if o := lookup[*DPU](c, dpuKey(d)); o != nil {
		return o.Rack
	}
	return ""
}

// Nodes returns the nodes of the inventory, sorted by name.
func (c *Core) Nodes() []*Node {
	nodes := make([]*Node, 0, len(c.nodes))
	for _, n := range c.nodes {
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b *Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes
}

// ApplySite makes the inventory what want says, all or nothing, and returns what differs. Every reason to
// refuse is found at once and joined. want must be valid ([site.Site.Validate]).
func (c *Core) ApplySite(want *site.Site) (Txn, []site.Change, error) {
	have := c.Site()
	changes := site.Compare(have, want)
	if len(changes) == 0 && have.Name == want.Name {
		return Txn{}, nil, nil
	}
	p := plan{core: c, meta: *c.Meta(), txn: Txn{If: c.reads(metaKey)}, changed: make(map[Key]bool)}
	for _, x := range changes {
		p.changed[Key(x.Kind+"/"+x.Name)] = true
		p.services = p.services || x.Kind == "service"
	}
	p.meta.Name = want.Name
	planKind(&p, have.Racks, want.Racks, func(r site.Rack) Key { return rackKey(r.Name) }, func(r site.Rack) Object { return &Rack{r} }, nil)
	planKind(&p, have.DPUs, want.DPUs, func(d site.DPU) Key { return dpuKey(d.Name) }, func(d site.DPU) Object { return &DPU{d} }, p.checkDPU)
	planKind(&p, have.Tenants, want.Tenants, func(t site.Tenant) Key { return tenantKey(t.Name) }, p.tenant, p.checkTenant)
	planKind(&p, have.Nodes, want.Nodes, func(n site.Node) Key { return nodeKey(n.Name) }, p.node, p.checkNode)
	p.planServices(want.Services)
	if len(p.refused) > 0 {
		return Txn{}, changes, errors.Join(p.refused...)
	}
	p.txn.Put = append(p.txn.Put, &p.meta)
	return p.txn, changes, nil
}

// plan collects an apply's transaction.
type plan struct {
	core    *Core
	meta    Meta
	txn     Txn
	refused []error
	// changed holds the keys of what differs in meaning, whatever the order of its lists.
	changed  map[Key]bool
	services bool // one of them differs
	granted  bool // every grant is among the conditions
}

// planKind puts what is new or changed and deletes what is gone; check may refuse for an object that exists.
func planKind[S any](p *plan, have, want []S, key func(S) Key, object func(S) Object, check func(old S)) {
	byKey := make(map[Key]S, len(have))
	for _, s := range have {
		byKey[key(s)] = s
	}
	for _, s := range want {
		old, exists := byKey[key(s)]
		delete(byKey, key(s))
		if exists && !p.changed[key(s)] {
			continue
		}
		if exists && check != nil {
			check(old)
		}
		p.txn.If[key(s)] = p.core.revision(key(s))
		p.txn.Put = append(p.txn.Put, object(s))
	}
	for _, k := range sortedKeys(byKey) {
		if check != nil {
			check(byKey[k])
		}
		p.txn.If[k] = p.core.revision(k)
		p.txn.Delete = append(p.txn.Delete, k)
	}
}

func (p *plan) tenant(t site.Tenant) Object {
	if old := lookup[*Tenant](p.core, tenantKey(t.Name)); old != nil {
		return &Tenant{ID: old.ID, Tenant: t}
	}
	p.meta.LastTenant++
	return &Tenant{ID: p.meta.LastTenant, Tenant: t}
}

func (p *plan) node(n site.Node) Object {
	if old := p.core.nodes[n.Name]; old != nil {
		return &Node{ID: old.ID, Node: n}
	}
	p.meta.LastNode++
	return &Node{ID: p.meta.LastNode, Node: n}
}

func (p *plan) refuse(format string, args ...any) {
	p.refused = append(p.refused, fmt.Errorf(format+": %w", append(args, ErrPrecondition)...))
}

// sortedGrants returns every grant in order of node, so that the reasons to refuse come in one order.
func (c *Core) sortedGrants() []*Grant {
	return slices.SortedFunc(maps.Values(c.grants), func(a, b *Grant) int { return cmp.Compare(a.Node, b.Node) })
}

// checkNode refuses to change or remove a node that is not free.
func (p *plan) checkNode(old site.Node) {
	n := p.core.nodes[old.Name]
	k := grantKey(n.ID)
	p.txn.If[k] = p.core.revision(k)
	if g := p.core.grants[n.ID]; g != nil && g.Phase != record.Free {
		p.refuse("node %s is %s to tenant %s: its inventory can only be changed or removed while it is free; `ctl reclaim %s` first",
			old.Name, g.Phase, g.TenantName, old.Name)
	}
}

// readGrants adds to the conditions that no node is assigned meanwhile.
func (p *plan) readGrants() {
	if p.granted {
		return
	}
	p.granted = true
	for _, n := range p.core.nodes {
		p.txn.If[grantKey(n.ID)] = p.core.revision(grantKey(n.ID))
	}
}

// checkTenant refuses to change or remove a tenant that has nodes.
func (p *plan) checkTenant(old site.Tenant) {
	p.readGrants()
	t := lookup[*Tenant](p.core, tenantKey(old.Name))
	for _, g := range p.core.sortedGrants() {
		if g.Phase != record.Free && g.Tenant == t.ID {
			p.refuse("tenant %s still has node %s: it can only be changed or removed without nodes; `ctl reclaim %s` first", old.Name, g.Name, g.Name)
		}
	}
}

// checkDPU refuses to change or remove a DPU that owes a proof.
func (p *plan) checkDPU(old site.DPU) {
	p.readGrants()
	for _, g := range p.core.sortedGrants() {
		if g.Phase != record.Free && slices.Contains(g.Provers, old.Name) {
			p.refuse("DPU %s still serves node %s: it can only be changed or removed while no assigned node is designated to it; `ctl reclaim %s` first",
				old.Name, g.Name, g.Name)
		}
	}
}

func (p *plan) planServices(want []site.Service) {
	sorted := slices.SortedFunc(slices.Values(want), func(a, b site.Service) int { return cmp.Compare(a.Name, b.Name) })
	old := p.core.Services()
	if old != nil && !p.services {
		return
	}
	s := &Services{record.Services{Epoch: p.meta.Epoch, Revision: 1}}
	if old != nil && old.Epoch == s.Epoch {
		s.Revision = old.Revision + 1
	}
	for _, v := range sorted {
		s.Services.Services = append(s.Services.Services, record.Service(v))
	}
	p.txn.If[servicesKey] = p.core.revision(servicesKey)
	p.txn.Put = append(p.txn.Put, s)
}
