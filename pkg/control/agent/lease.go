package agent

import (
	"fmt"
	"slices"
	"time"

	"dpud/pkg/record"
)

// lease is the part of the core that holds, and asks for, the lease of this boot.
type lease struct {
	held  bool
	boot  record.Boot
	nonce record.Nonce // of the last request
	// asked is when the outstanding request was made; zero when none is outstanding.
	asked time.Time
	// patience is how long the outstanding request has before a new one takes its place.
	patience time.Duration
	// since is when the request of the newest answer was made.
	since   time.Time
	rack    record.Rack
	refused error
}

// Times of the lease protocol. A static lease holds until dpud ends; it is renewed so that a DPU that
// missed both direct messages and gossip learns of it.
const (
	// RenewEvery is the time from one lease to the next request.
	RenewEvery = 5 * time.Second
	// AskEvery is the time after which an unanswered or refused request is replaced by a new one, whose answer
	// alone counts then. It doubles each time up to AskAtMost, so that answers on slow ways arrive in time.
	AskEvery = time.Second
	// AskAtMost bounds AskEvery.
	AskAtMost = 8 * time.Second
)

// LeaseRequest returns a request to send now, or false. One is outstanding at a time: an answer to an
// earlier one is dropped.
func (c *Core) LeaseRequest(now time.Time) (*record.LeaseRequest, bool) {
	switch {
	case !c.asked.IsZero() && now.Sub(c.asked) < c.patience:
		return nil, false
	case c.asked.IsZero() && c.held && now.Sub(c.since) < RenewEvery:
		return nil, false
	}
	if c.patience = min(2*c.patience, AskAtMost); c.asked.IsZero() {
		c.patience = AskEvery
	}
	c.nonce = max(c.nonce+1, record.Nonce(now.UnixNano()))
	c.asked = now
	return &record.LeaseRequest{
		DPU: c.cfg.DPU, Instance: c.cfg.Instance, Boot: c.boot, Nonce: c.nonce, HardwareID: c.cfg.HardwareID,
		KernelBoot: c.cfg.KernelBoot, Address: c.cfg.Address, Digest: c.digest(),
	}, true
}

// digest of the grants that a lease would bring: those of this DPU's rack, and any that it must prove.
func (c *Core) digest() record.Digest {
	var d record.Digest
	for _, g := range c.grants {
		if g.Rack == c.rack || slices.Contains(g.Provers, c.cfg.DPU) {
			d = d.Add(g.Key(), g.Version())
		}
	}
	return d
}

// HearNonce makes later requests newer than one that is still about from an earlier run.
func (c *Core) HearNonce(n record.Nonce) { c.nonce = max(c.nonce, n) }

// HearLease takes an answer. One to another boot, run or request is dropped. It returns why the controller
// refused, if it did.
func (c *Core) HearLease(l *record.Lease) error {
	if l.DPU != c.cfg.DPU || l.Instance != c.cfg.Instance || l.Nonce != c.nonce || c.asked.IsZero() {
		return nil
	}
	if l.Refused != "" {
		// asked stays: the next request comes after AskEvery, and registers anew.
		c.boot, c.held = 0, false
		c.refused = fmt.Errorf("get lease: refused: %s", l.Refused)
		return c.refused
	}
	if !c.held || l.Boot != c.boot {
		c.touchAll()
	}
	c.held, c.boot, c.rack, c.refused = true, l.Boot, l.Rack, nil
	c.since, c.asked = c.asked, time.Time{}
	for _, g := range l.Grants {
		c.Hear(g)
	}
	return nil
}

// Lease returns the boot under which the core holds a lease and when that lease was asked for, or false.
func (c *Core) Lease() (boot record.Boot, asked time.Time, held bool) {
	return c.boot, c.since, c.held
}
