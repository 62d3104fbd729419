package controller

import (
	"context"
	"sync"
	"time"

	"dpud/pkg/record"
)

// inbox holds what gossip told the controller and is not yet dealt with: confirmations and lease requests, the
// newest of each.
type inbox struct {
	wake chan struct{}
	mu   sync.Mutex
	set  map[record.Key]record.Record
}

func newInbox() *inbox {
	return &inbox{wake: make(chan struct{}, 1), set: make(map[record.Key]record.Record)}
}

// put takes a record that the replica found new. It does not block.
func (i *inbox) put(r record.Record) {
	if k := r.Key().Kind; k != record.KindConfirmation && k != record.KindLeaseRequest {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if old := i.set[r.Key()]; old != nil && record.Newest(old, r) == old {
		return
	}
	i.set[r.Key()] = r
	signal(i.wake)
}

func (i *inbox) take() map[record.Key]record.Record {
	i.mu.Lock()
	defer i.mu.Unlock()
	set := i.set
	i.set = make(map[record.Key]record.Record)
	return set
}

// hearGossip deals with the inbox until ctx ends. What the store could not take is tried again; what the core
// refuses is noted and dropped: the DPU says it anew in its next boot.
func (c *Controller) hearGossip(ctx context.Context) {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.inbox.wake:
		case <-again:
		}
		again = nil
		for _, r := range c.inbox.take() {
			if err := c.hear(ctx, r); err != nil && !refusal(err) && ctx.Err() == nil {
				c.log.Warn("record heard by gossip", "record", r.Key().String(), "err", err)
				c.inbox.put(r)
				again = time.After(time.Second)
			}
		}
	}
}

// hear deals with one record from gossip.
func (c *Controller) hear(ctx context.Context, r record.Record) error {
	switch r := r.(type) {
	case *record.Confirmation:
		return c.confirm(ctx, []*record.Confirmation{r})
	case *record.LeaseRequest:
		if c.wasAnswered(r) { // directly: gossip is for the DPUs that the direct way fails
			return nil
		}
		l, err := c.lease(ctx, r)
		if err != nil {
			return err
		}
		c.fanout.gossip(l)
	}
	return nil
}
