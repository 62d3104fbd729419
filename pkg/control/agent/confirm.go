package agent

import (
	"maps"
	"slices"

	"dpud/pkg/record"
	"dpud/pkg/table"
)

// outbox holds the newest confirmation of each node in this boot, and which of them nobody has answered.
type outbox struct {
	sequence   uint64
	issued     map[NodeID]*record.Confirmation
	unanswered map[NodeID]struct{}
}

func newOutbox() outbox {
	return outbox{issued: make(map[NodeID]*record.Confirmation), unanswered: make(map[NodeID]struct{})}
}

// owes returns the state that the core would confirm of a node now and has not yet, if a read-back bears it
// out; StateNone when there is nothing to say.
func (c *Core) owes(n NodeID) record.State {
	g := c.grants[n]
	if g == nil || !c.held || c.boot == 0 || !slices.Contains(g.Provers, c.cfg.DPU) {
		return record.StateNone
	}
	state := record.StateNone
	want, wanted := c.want(n)
	switch gone := len(c.byNode[n]) == 0; {
	case wanted && c.holds(want):
		state = record.Programmed
	case g.Phase == record.Revoked && gone:
		state = record.Cleared
	case g.Phase == record.Granted && gone && c.withdrawn(g):
		state = record.Withdrawn
	}
	last := c.issued[n]
	if last != nil && last.Boot == c.boot && last.State == state && last.Epoch == g.Epoch && last.Generation == g.Generation && last.Revision == g.Revision {
		return record.StateNone
	}
	return state
}

// withdrawn says whether a granted node is not to be programmed here although this DPU may have had it.
func (c *Core) withdrawn(g *record.Grant) bool {
	_, designated := g.Port(c.cfg.DPU)
	e := c.entryOf(g)
	return !designated || e != nil && e.Deleted && e.Epoch == g.Epoch && e.Generation == g.Generation
}

func (c *Core) holds(want table.Tables) bool {
	for k, v := range want {
		if have, ok := c.kernel[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// confirm issues what a read-back has just borne out of a node, and says whether the node is done with. A
// node is not confirmed as cleared while a port is unguarded.
func (c *Core) confirm(n NodeID, unguarded error) bool {
	state := c.owes(n)
	switch {
	case state == record.StateNone:
		return true
	case state != record.Programmed && c.unsettled:
		return false
	case state == record.Cleared && unguarded != nil:
		return false
	}
	g := c.grants[n]
	c.sequence++
	c.issued[n] = &record.Confirmation{
		DPU: c.cfg.DPU, Node: n, Boot: c.boot, Sequence: c.sequence,
		State: state, Epoch: g.Epoch, Generation: g.Generation, Revision: g.Revision,
	}
	c.unanswered[n] = struct{}{}
	return true
}

// Unanswered returns the confirmations to send, again and again until Answered, in order of node.
func (c *Core) Unanswered() []*record.Confirmation {
	var f []*record.Confirmation
	for _, n := range slices.Sorted(maps.Keys(c.unanswered)) {
		f = append(f, c.issued[n])
	}
	return f
}

// Answered reports that confirmations are durable at the management plane.
func (c *Core) Answered(confirmations []*record.Confirmation) {
	for _, f := range confirmations {
		if last := c.issued[f.Node]; last != nil && last.Version() == f.Version() {
			delete(c.unanswered, f.Node)
		}
	}
}
