package explore

import (
	"errors"
	"fmt"
	"maps"

	"dpud/pkg/control/agent"
	"dpud/pkg/control/management"
	"dpud/pkg/record"
	"dpud/pkg/table"
)

// The safety properties, by the names of the specification.
var (
	ErrIsolation   = errors.New("property TenantIsolation: a node is in two tenants")
	ErrFreeIsClear = errors.New("property FreeIsClear: a free node is in a map")
	ErrOwner       = errors.New("property Owner: a node is programmed for another than the owner of its present generation")
	ErrAdopts      = errors.New("property Adopts: an entry left the map although its grant stands")
	ErrCleared     = errors.New("property ClearedIsFinal: a generation is back in the map after it was confirmed as cleared")
	ErrReuse       = errors.New("property BarrierFirst: an entry was added before a barrier followed the last deletion")
	ErrGuarded     = errors.New("property GuardedProof: cleared was confirmed while a port was unguarded")
	ErrNarrows     = errors.New("property EntryNarrows: a node is programmed in a generation for which its tenant has no entry")
	ErrProgrammed  = errors.New("property ProgrammedIsTrue: programmed was confirmed of a node that is not in the map")
)

// execute carries out an operation on a DPU's kernel as the kernel would, and checks what the operation itself
// must not do.
func (w *World) execute(d *dpu, op agent.Op) (agent.Result, error) {
	var res agent.Result
	switch op.Verb {
	case agent.ReadAll:
		res.Tables = maps.Clone(d.kernel)
	case agent.Put:
		if _, ok := d.kernel[op.Key]; ok && op.Key.Map != table.NodeState {
			res.Err = errors.New("exists")
			return res, nil
		}
		if d.unsettled && op.Key.Map != table.NodeState {
			return res, fmt.Errorf("%s puts %s: %w", d.name, op.Key, ErrReuse)
		}
		if op.Key.Map == table.NodeTenant && !w.asked(op.Value.Tenant, op.Key.Node, d.kernel[table.Key{Map: table.NodeState, Node: op.Key.Node}].Generation) {
			return res, fmt.Errorf("%s puts %s: %w", d.name, op.Key, ErrNarrows)
		}
		d.kernel[op.Key] = op.Value
	case agent.Delete:
		if op.Key.Map == table.NodeTenant {
			if err := w.checkAdopts(d, op.Key.Node); err != nil {
				return res, err
			}
		}
		delete(d.kernel, op.Key)
		d.unsettled = d.unsettled || op.Key.Map != table.NodeState
	case agent.Barrier:
		d.unsettled = false
	case agent.Verify:
		res.Tables = make(table.Tables)
		for _, k := range op.Keys {
			if v, ok := d.kernel[k]; ok {
				res.Tables[k] = v
			}
		}
		if d.unguarded {
			res.Unguarded = errors.New("port p1 is unguarded")
		}
	}
	return res, nil
}

// asked says whether a tenant ever had an entry for a node's generation.
func (w *World) asked(t record.TenantID, n record.NodeID, g record.Generation) bool {
	for _, e := range w.entries {
		if e.Tenant == t && e.Node == n && e.Generation == g && !e.Deleted {
			return true
		}
	}
	return false
}

// checkAdopts holds while dpud lives: an entry leaves the map only if its grant is over, or was changed by hand.
func (w *World) checkAdopts(d *dpu, n record.NodeID) error {
	state, ok := d.kernel[table.Key{Map: table.NodeState, Node: n}]
	if !ok {
		return nil
	}
	g := w.register(n)
	if g != nil && g.Version().Compare(record.GrantedVersion(state.Epoch, state.Generation)) <= 0 && g.Phase == record.Granted && g.Generation == state.Generation {
		return fmt.Errorf("%s deletes node %d of generation %d: %w", d.name, n, state.Generation, ErrAdopts)
	}
	return nil
}

// register returns the store's grant of a node, or nil.
func (w *World) register(n record.NodeID) *record.Grant {
	if g, ok := w.store[(&management.Grant{Grant: record.Grant{Node: n}}).Key()].object.(*management.Grant); ok {
		return &g.Grant
	}
	return nil
}

// Check returns the first safety property that the present state breaks.
func (w *World) Check() error {
	tenants := make(map[record.NodeID]record.TenantID)
	for _, d := range w.Site.DPUs {
		kernel := w.dpus[d.Name].kernel
		for k, v := range kernel {
			n := v.Node
			if k.Map == table.NodeState {
				n = k.Node
			}
			g := w.register(n)
			if g == nil || g.Phase == record.Free {
				return fmt.Errorf("%s on %s: %w", k, d.Name, ErrFreeIsClear)
			}
			if k.Map != table.NodeTenant {
				continue
			}
			if t, ok := tenants[n]; ok && t != v.Tenant {
				return fmt.Errorf("node %d on %s: %w", n, d.Name, ErrIsolation)
			}
			tenants[n] = v.Tenant
			state := kernel[table.Key{Map: table.NodeState, Node: n}]
			if v.Tenant != g.Tenant || state.Generation != g.Generation {
				return fmt.Errorf("node %d on %s has tenant %d generation %d, not %d, %d: %w", n, d.Name, v.Tenant, state.Generation, g.Tenant, g.Generation, ErrOwner)
			}
			if w.cleared[claim{d.Name, n, state.Generation}] {
				return fmt.Errorf("node %d generation %d on %s: %w", n, state.Generation, d.Name, ErrCleared)
			}
		}
	}
	return nil
}

// checkProofs holds of confirmations at the moment they are issued.
func (w *World) checkProofs(d *dpu, before map[record.NodeID]uint64) error {
	if d.core == nil {
		return nil
	}
	for _, f := range d.core.Unanswered() {
		if f.Sequence <= before[f.Node] {
			continue
		}
		_, held := d.kernel[table.Key{Map: table.NodeTenant, Node: f.Node}]
		switch {
		case f.State == record.Cleared && d.unguarded:
			return fmt.Errorf("node %d on %s: %w", f.Node, d.name, ErrGuarded)
		case f.State == record.Cleared && (held || d.unsettled):
			return fmt.Errorf("node %d on %s: %w", f.Node, d.name, ErrCleared)
		case f.State == record.Programmed && !held:
			return fmt.Errorf("node %d on %s: %w", f.Node, d.name, ErrProgrammed)
		}
	}
	return nil
}
