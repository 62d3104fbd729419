package controller

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"sync"

	"dpud/pkg/api/dpudv1/dpudv1connect"
	"dpud/pkg/control/management"
	"dpud/pkg/gossip"
	"dpud/pkg/record"
	"dpud/pkg/wire"
)

// pool is what the controller needs of gossip.
type pool interface {
	Announce(keys ...record.Key)
	Members() []gossip.Member
	Close() error
}

// fanout brings records to DPUs, by direct messages and by gossip. It keeps every tenant's entries. Its
// methods are safe for concurrent use and do not block on the network.
type fanout struct {
	ctx     context.Context // of the links
	wg      *sync.WaitGroup
	plane   *plane
	seal    sealer
	dial    dialFunc
	metrics *metrics
	log     *slog.Logger
	replica *wire.Replica // nil without gossip

	mu      sync.Mutex
	pool    pool // nil without gossip, and until it has been joined
	links   map[record.DPU]*link
	entries map[record.Key]*record.Entry
}

// sealer wraps records for a site.
type sealer struct {
	site  record.SiteID
	epoch record.Epoch
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// heard spreads what is new in the management plane.
func (f *fanout) heard(news []management.Object) {
	for _, o := range news {
		switch o := o.(type) {
		case *management.Grant:
			f.grant(&o.Grant)
		case *management.Services:
			f.spread(&o.Services, nil)
		case *management.Registration:
			f.register(o.DPU)
		case *management.DPU:
			f.register(o.Name) // its rack may be another
		}
	}
}

// grant goes to the DPUs of the rack and to those that must prove; the ones that may program it get its
// entry too, which may have been there first.
func (f *fanout) grant(g *record.Grant) {
	f.spread(g, func(l *link) bool { return l.rack == g.Rack || slices.Contains(g.Provers, l.dpu) })
	if g.Phase == record.Granted {
		if e := f.entry((&record.Entry{Tenant: g.Tenant, Node: g.Node}).Key()); e != nil {
			f.spread(e, concerned(g))
		}
	}
}

// concerned says which DPUs a node's entry goes to.
func concerned(g *record.Grant) func(*link) bool {
	return func(l *link) bool {
		_, designated := g.Port(l.dpu)
		return designated || slices.Contains(g.Provers, l.dpu)
	}
}

func (f *fanout) entry(k record.Key) *record.Entry {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.entries[k]
}

// tenantEntry takes an entry as a tenant's store holds it.
func (f *fanout) tenantEntry(e *record.Entry) {
	f.mu.Lock()
	if old := f.entries[e.Key()]; old != nil && record.Newest(old, e) == old {
		f.mu.Unlock()
		return
	}
	f.entries[e.Key()] = e
	f.mu.Unlock()
	var g *management.Grant
	f.plane.read(func(c *management.Core) { g = c.Grant(e.Node) })
	if g == nil {
		return // the grant brings it along
	}
	f.spread(e, concerned(&g.Grant))
}

// allEntries returns the entries, in order of tenant and node.
func (f *fanout) allEntries() []*record.Entry {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]*record.Entry, 0, len(f.entries))
	for _, e := range f.entries {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *record.Entry) int { return record.CompareKeys(a.Key(), b.Key()) })
	return all
}

// spread offers a record to the links that want it (nil: all) and to the pool.
func (f *fanout) spread(r record.Record, wants func(*link) bool) {
	f.mu.Lock()
	for _, l := range f.links {
		if wants == nil || wants(l) {
			l.offer(r)
		}
	}
	f.mu.Unlock()
	f.gossip(r)
}

// gossip puts a record into the replica and announces it.
func (f *fanout) gossip(r record.Record) {
	if f.replica == nil {
		return
	}
	changed, err := f.replica.Put(f.seal.epoch, r)
	if err != nil {
		f.log.Error("gossip record", "err", err)
		return
	}
	f.mu.Lock()
	p := f.pool
	f.mu.Unlock()
	if changed && p != nil {
		p.Announce(r.Key())
	}
}

// join begins to announce.
func (f *fanout) join(p pool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pool = p
}

// register makes or renews the link to a DPU whose registration changed.
func (f *fanout) register(dpu record.DPU) {
	var reg *management.Registration
	var rack record.Rack
	f.plane.read(func(c *management.Core) { reg, rack = c.Registration(dpu), c.RackOf(dpu) })
	if reg == nil {
		return
	}
	f.mu.Lock()
	l := f.links[dpu]
	if l == nil {
		l = newLink(dpu, f)
		f.links[dpu] = l
		f.wg.Go(func() { l.run(f.ctx) })
	}
	l.rack = rack
	f.mu.Unlock()
	// Whatever is published from here on is offered to the link; refill takes what was known before.
	l.register(reg)
	f.refill(l)
}

// refill offers a link everything that concerns its DPU.
func (f *fanout) refill(l *link) {
	var grants []*record.Grant
	var services *management.Services
	f.plane.read(func(c *management.Core) { grants, services = c.GrantsOf(l.dpu), c.Services() })
	if services != nil {
		l.offer(&services.Services)
	}
	for _, g := range grants {
		l.offer(g)
		if e := f.entry((&record.Entry{Tenant: g.Tenant, Node: g.Node}).Key()); e != nil && concerned(g)(l) {
			l.offer(e)
		}
	}
}

// link returns the link to a DPU, or nil.
func (f *fanout) link(dpu record.DPU) *link {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.links[dpu]
}

// api returns a client for a DPU's API and its address; nil when it has registered none.
func (f *fanout) api(dpu record.DPU) (dpudv1connect.DPUServiceClient, string) {
	l := f.link(dpu)
	if l == nil {
		return nil, ""
	}
	return l.api()
}
