// Package tenant is the pure core of one tenant's control plane: it decides which of its nodes are to be
// programmed, and says so in entries.
//
// It can only narrow what the management plane grants. It buffers nothing that a crash may not lose: a new
// core that hears the grants and lists its store's entries again arrives at the same requests. It removes
// entries by comparing generations, never by a name or by the absence of a grant. It has no goroutine,
// clock, network or disk.
package tenant

import (
	"maps"
	"slices"

	"dpud/pkg/record"
)

// Core is one tenant's control plane. It is not safe for concurrent use.
type Core struct {
	tenant  record.TenantID
	grants  map[record.NodeID]*record.Grant
	entries map[record.NodeID]held
	buffer  map[record.NodeID]struct{} // nodes whose entry may have to change
}

type held struct {
	entry    *record.Entry
	revision int64
}

// Put asks the store to hold an entry, if the node's entry there still has the revision If (0: absent).
type Put struct {
	Entry *record.Entry
	If    int64
}

// New returns the core of a tenant that has heard nothing yet.
func New(t record.TenantID) *Core {
	return &Core{
		tenant: t, grants: make(map[record.NodeID]*record.Grant),
		entries: make(map[record.NodeID]held), buffer: make(map[record.NodeID]struct{}),
	}
}

// HearGrant takes a grant of any node, in any order and any number of times.
func (c *Core) HearGrant(g *record.Grant) {
	if old := c.grants[g.Node]; old != nil && record.Newest(old, g) == old {
		return
	}
	c.grants[g.Node] = g
	c.buffer[g.Node] = struct{}{}
}

// Learn takes an entry as the tenant's store held it at a revision. Older news is ignored.
func (c *Core) Learn(e *record.Entry, revision int64) {
	if revision <= c.entries[e.Node].revision {
		return
	}
	c.entries[e.Node] = held{e, revision}
	c.buffer[e.Node] = struct{}{}
}

// Next returns a change that the store lacks, lowest node first, or false when there is none. It returns
// the same one until the store's answer, or a newer grant, is heard.
func (c *Core) Next() (Put, bool) {
	for _, n := range slices.Sorted(maps.Keys(c.buffer)) {
		if e := c.decide(n); e != nil {
			return Put{Entry: e, If: c.entries[n].revision}, true
		}
		delete(c.buffer, n)
	}
	return Put{}, false
}

// decide returns the entry that a node should get instead of the one it has, or nil.
func (c *Core) decide(n record.NodeID) *record.Entry {
	g, old := c.grants[n], c.entries[n].entry
	if g == nil {
		return nil // an absent grant says nothing
	}
	ours := g.Tenant == c.tenant && g.Phase == record.Granted
	if old == nil {
		if !ours {
			return nil
		}
		return &record.Entry{Tenant: c.tenant, Node: n, Epoch: g.Epoch, Generation: g.Generation, Revision: 1}
	}
	switch order := record.CompareGenerations(old.Epoch, old.Generation, g.Epoch, g.Generation); {
	case order > 0:
		return nil // the grant is older than the entry: wait for news
	case ours && order < 0:
		return &record.Entry{Tenant: c.tenant, Node: n, Epoch: g.Epoch, Generation: g.Generation, Revision: 1}
	case ours && old.Deleted:
		e := *old
		e.Revision, e.Deleted = old.Revision+1, false
		return &e
	case !ours && !old.Deleted:
		e := *old
		e.Revision, e.Deleted = old.Revision+1, true
		return &e
	}
	return nil
}
