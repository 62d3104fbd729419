package controller

import (
	"context"
	"errors"
	"maps"
	"time"

	"dpud/pkg/control/management"
)

// guardEvery is how often the guard looks without being woken, in case a try failed.
const guardEvery = 2 * time.Second

// guard frees revoked nodes once every proof is there: when a grant or a confirmation is new, at start, and every
// so often.
func (c *Controller) guard(ctx context.Context) {
	tick := time.NewTicker(guardEvery)
	defer tick.Stop()
	for {
		if err := c.plane.do(ctx, c.free); err != nil && !errors.Is(err, errConflict) && ctx.Err() == nil {
			c.log.Warn("free nodes", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-c.guardWake:
		case <-tick.C:
		}
	}
}

// maxFreed bounds one transaction of the guard; the rest follows in the next.
const maxFreed = 50

// free returns every node whose guard is satisfied to the pool, in one transaction.
func (c *Controller) free(core *management.Core) (management.Txn, error) {
	all := management.Txn{If: make(map[management.Key]int64)}
	nodes := core.Freeable()
	if len(nodes) > maxFreed {
		nodes = nodes[:maxFreed]
		signal(c.guardWake)
	}
	for _, n := range nodes {
		txn, err := core.Free(n, time.Now())
		if err != nil {
			return management.Txn{}, err
		}
		maps.Copy(all.If, txn.If)
		all.Put = append(all.Put, txn.Put...)
	}
	return all, nil
}
