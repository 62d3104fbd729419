package gossip

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"dpud/pkg/record"
)

func TestConverge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t)
		p.joinN(3)
		p.members[0].change(grant(1, 1, 300))
		p.members[1].change(grant(2, 1, 300))
		p.converge(5 * time.Second)
		// Two versions of one register: the newer stays, whichever way they meet.
		p.members[0].change(grant(1, 3, 300))
		p.members[2].change(grant(1, 2, 300))
		p.converge(5 * time.Second)
		if v := p.members[2].regs.versions()[grant(1, 3, 0).key]; v != grant(1, 3, 0).version {
			t.Errorf("d3 holds %v", v)
		}
	})
}

// TestPaths cuts, in turn, each way on which a change can travel; the others suffice.
func TestPaths(t *testing.T) {
	never := 1000 * time.Hour
	for _, tt := range []struct {
		name   string
		change func(*Config)
		loss   float64
		limit  time.Duration
	}{
		{"broadcasts alone", func(c *Config) { c.SyncInterval, c.PushPullInterval = never, never }, 0, 2 * time.Second},
		{"digests alone", func(c *Config) { c.GossipInterval, c.PushPullInterval = never, never }, 0, 10 * time.Second},
		{"push/pull alone: no packet arrives", func(c *Config) {}, 1, time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPool(t)
				for i := 1; i <= 3; i++ {
					p.join(fmt.Sprintf("d%d", i), i, tt.change)
				}
				p.within(time.Minute, "everyone to know everyone", func() bool { return p.know(3) })
				p.net.setLoss(tt.loss)
				p.members[0].change(grant(1, 1, 300))
				p.members[1].change(grant(2, 1, 64<<10))
				p.converge(tt.limit)
			})
		})
	}
}

// TestRelay checks that broadcasts reach far more members than the one that changed a register sends to (4).
func TestRelay(t *testing.T) {
	for _, size := range []int{300, 2000} { // whole; announced and pulled
		t.Run(fmt.Sprintf("%d bytes", size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPool(t)
				for i := 1; i <= 30; i++ {
					p.join(fmt.Sprintf("d%d", i), i, func(c *Config) { c.SyncInterval, c.PushPullInterval = 1000*time.Hour, 30*time.Second })
				}
				p.within(10*time.Minute, "everyone to know everyone", func() bool { return p.know(30) })
				time.Sleep(time.Minute) // until broadcasts of the membership are over
				p.members[0].change(grant(1, 1, size))
				p.within(5*time.Second, "two thirds to hold it", func() bool {
					n := 0
					for _, m := range p.members {
						n += len(m.regs.versions())
					}
					return n >= 20
				})
			})
		})
	}
}

// TestDigestBothWays checks that a digest brings either end what it lacks: only d2 sends any.
func TestDigestBothWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t)
		never := func(c *Config) { c.PushPullInterval = 1000 * time.Hour }
		d1 := p.join("d1", 1, never, func(c *Config) { c.SyncInterval = 1000 * time.Hour })
		d2 := p.join("d2", 2, never)
		p.within(time.Minute, "both to know each other", func() bool { return p.know(2) })
		time.Sleep(10 * time.Second) // the digests of joining are over
		for node := range 1000 {
			d1.regs.put(grant(2*node, 1, 300)) // not announced
			d2.regs.put(grant(2*node+1, 1, 300))
		}
		p.converge(10 * time.Second)
	})
}

func TestLargeRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t)
		p.joinN(5)
		for node := range 20 {
			p.members[node%5].change(grant(node, 1, 64<<10))
		}
		p.members[3].change(grant(100, 1, 3<<20))
		p.converge(10 * time.Second)
		_, payload, _ := p.members[0].regs.Get(grant(100, 1, 0).key)
		if len(payload) < 3<<20 {
			t.Errorf("record of %d bytes arrived as %d", 3<<20, len(payload))
		}
		// A record at the limit of a packet is broadcast, or announced, but arrives either way.
		for size := 1100; size < 1300; size++ {
			p.members[0].change(grant(size, 1, size))
		}
		p.converge(10 * time.Second)
	})
}

func TestLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t)
		p.net.setLoss(0.3)
		p.joinN(10)
		for node := range 50 {
			p.members[node%10].change(grant(node, 1, 300))
		}
		p.converge(20 * time.Second)
	})
}

func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t)
		p.joinN(50)
		for node := range 500 {
			p.members[0].change(grant(node, 1, 300))
		}
		p.converge(15 * time.Second)
		// From everywhere at once, as when a rack gets its power back.
		for node := range 500 {
			p.members[node%50].change(grant(node, 2, 300))
		}
		p.converge(15 * time.Second)
		p.within(time.Minute, "the queues to empty", func() bool {
			for _, m := range p.members {
				if m.QueueLen() != 0 {
					return false
				}
			}
			return true
		})
		for _, m := range p.members {
			if s := m.Stats(); s.Malformed+s.Refused != 0 {
				t.Errorf("%s: %+v", m.name, s)
			}
		}
	})
}

// TestAnnounceRepeated checks that announcing a version again is not broadcast again.
func TestAnnounceRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t)
		p.joinN(2)
		d1 := p.members[0]
		for range 10 {
			d1.change(grant(1, 1, 300))
			d1.Announce(record.Key{Kind: record.KindGrant, Node: 99}) // not held
			time.Sleep(time.Second)
		}
		p.converge(time.Second)
		if n := d1.Stats().Announced; n != 1 {
			t.Errorf("announced %d times", n)
		}
	})
}
