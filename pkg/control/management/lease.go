package management

import (
	"cmp"
	"fmt"
	"slices"

	"dpud/pkg/record"
)

// Register mints the boot that a lease request needs. It asks for nothing when the request's instance has
// one already, so repeating a request is harmless. Another hardware identity under the same name is refused.
func (c *Core) Register(req *record.LeaseRequest) (Txn, error) {
	if lookup[*DPU](c, dpuKey(req.DPU)) == nil {
		return Txn{}, fmt.Errorf("DPU %q is not in the site; add it to the site file and `ctl apply` it: %w", req.DPU, ErrNotFound)
	}
	if req.Instance == "" || req.HardwareID == "" {
		return Txn{}, fmt.Errorf("register DPU %s: instance and hardware id are required: %w", req.DPU, ErrInvalid)
	}
	key := registrationKey(req.DPU)
	old := lookup[*Registration](c, key)
	r := Registration{DPU: req.DPU}
	if old != nil {
		r = *old
		if old.HardwareID != req.HardwareID {
			return Txn{}, fmt.Errorf("DPU %s is bound to hardware %s, this is %s; a replaced DPU keeps its proofs to give, so it can't take the name over: %w",
				req.DPU, old.HardwareID, req.HardwareID, ErrPrecondition)
		}
	}
	if req.Instance != r.Instance {
		if req.Boot != 0 {
			// An older run that woke up, or one whose boot a delayed request has overtaken. It may register anew.
			return Txn{}, fmt.Errorf("boot %d of DPU %s is over, boot %d has begun: %w", req.Boot, req.DPU, r.Boot, ErrPrecondition)
		}
		r.Boot++
	} else if req.Address == r.Address {
		return Txn{}, nil
	}
	r.HardwareID, r.KernelBoot, r.Instance, r.Address = req.HardwareID, req.KernelBoot, req.Instance, req.Address
	return Txn{If: c.reads(metaKey, dpuKey(req.DPU), key), Put: []Object{&r}}, nil
}

// Lease answers a request whose boot is registered. The caller must have learned the grants by a
// linearizable read that began after the request came in; storeRevision is that read's.
func (c *Core) Lease(req *record.LeaseRequest, storeRevision int64) *record.Lease {
	d, r := lookup[*DPU](c, dpuKey(req.DPU)), lookup[*Registration](c, registrationKey(req.DPU))
	l := &record.Lease{
		DPU: req.DPU, Instance: req.Instance, Nonce: req.Nonce, Epoch: c.Meta().Epoch, StoreRevision: storeRevision,
	}
	if d == nil || r == nil || r.Instance != req.Instance || (req.Boot != 0 && req.Boot != r.Boot) {
		return Refuse(req, "its registration changed meanwhile; ask again")
	}
	l.Boot, l.Rack = r.Boot, d.Rack
	l.Grants = c.GrantsOf(req.DPU)
	if record.GrantsDigest(l.Grants) == req.Digest {
		l.Grants, l.Unchanged = nil, true
	}
	return l
}

// Refuse answers a request with the reason why there is no lease.
func Refuse(req *record.LeaseRequest, why string) *record.Lease {
	return &record.Lease{DPU: req.DPU, Instance: req.Instance, Boot: req.Boot, Nonce: req.Nonce, Refused: why}
}

// GrantsOf returns the grants that concern a DPU, in order of node: those of its rack, and any that it must
// prove. Grants of nodes that have left the inventory stay, or a peer's older version could come back.
func (c *Core) GrantsOf(d record.DPU) []*record.Grant {
	var rack record.Rack
	if o := lookup[*DPU](c, dpuKey(d)); o != nil {
		rack = o.Rack
	}
	var grants []*record.Grant
	for _, g := range c.grants {
		if g.Rack == rack || slices.Contains(g.Provers, d) {
			grants = append(grants, &g.Grant)
		}
	}
	slices.SortFunc(grants, func(a, b *record.Grant) int { return cmp.Compare(a.Node, b.Node) })
	return grants
}

// Registration returns a DPU's registration, or nil.
func (c *Core) Registration(d record.DPU) *Registration {
	return lookup[*Registration](c, registrationKey(d))
}

// Services returns the register of shared services, or nil before the first apply.
func (c *Core) Services() *Services { return lookup[*Services](c, servicesKey) }
