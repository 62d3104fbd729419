package dpud

import (
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"dpud/internal/dpud/config"
	"dpud/pkg/gossip"
	"dpud/pkg/record"
	"dpud/pkg/wire"
)

// gossipController answers lease requests by gossip alone.
type gossipController struct {
	*gossip.Gossip
	*wire.Replica

	mu    sync.Mutex
	heard map[record.Key]record.Record
}

func newGossipController(t *testing.T) *gossipController {
	t.Helper()
	c := &gossipController{heard: make(map[record.Key]record.Record)}
	requests := make(chan *record.LeaseRequest, 64)
	c.Replica = wire.NewReplica(testSite, func(r record.Record) {
		c.mu.Lock()
		c.heard[r.Key()] = r
		c.mu.Unlock()
		if q, ok := r.(*record.LeaseRequest); ok {
			requests <- q
		}
	})
	g, err := gossip.Join(gossip.Config{
		Name: "controller", Bind: netip.MustParseAddrPort("127.0.0.1:0"), Records: c.Replica, GossipInterval: 10 * time.Millisecond,
		SyncInterval: 100 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Gossip = g
	done := make(chan struct{})
	go func() {
		defer close(done)
		for q := range requests {
			c.put(t, &record.Lease{DPU: q.DPU, Instance: q.Instance, Boot: 1, Nonce: q.Nonce, Epoch: 1, Rack: "r1"})
		}
	}()
	t.Cleanup(func() {
		_ = g.Close()
		close(requests)
		<-done
	})
	return c
}

func (c *gossipController) put(t *testing.T, recs ...record.Record) {
	for _, r := range recs {
		if _, err := c.Put(1, r); err != nil {
			t.Error(err)
		}
		c.Announce(r.Key())
	}
}

func (c *gossipController) state(n record.NodeID) record.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, ok := c.heard[record.Key{Kind: record.KindConfirmation, Name: "d1", Node: n}].(*record.Confirmation)
	if !ok {
		return record.StateNone
	}
	return f.State
}

// With every direct message cut, lease, grant, entry and confirmation all go by gossip; even a dpud that belongs
// to no site yet gets there, and one that heard of another site first.
func TestGossipAlone(t *testing.T) {
	for name, controllers := range map[string][]string{"no controllers": nil, "a dead controller": {"unix:///nobody/answers"}} {
		t.Run(name, func(t *testing.T) {
			c, k := newGossipController(t), newMemory()
			c.put(t, testGrant(1, record.Granted, 1), testEntry(1, 1))
			d := startWith(t, k, pinIn(t), func(cfg *config.Config) {
				cfg.Gossip = config.Gossip{Bind: "127.0.0.1:0", Seeds: []string{c.Addr().String()}}
				cfg.Controllers = controllers
			})
			e, err := wire.Seal("site-2", 1, testGrant(2, record.Granted, 1))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = d.records.Take(e)
			eventually(t, "programmed", func() bool { return c.state(1) == record.Programmed })
			c.put(t, testGrant(1, record.Revoked, 1))
			eventually(t, "cleared", func() bool { return c.state(1) == record.Cleared })
			if site, err := loadSite(d.cfg.Pin); err != nil || site != testSite {
				t.Errorf("site is %q, %v", site, err)
			}
		})
	}
}

// Gossip carries lease requests only where the direct way fails.
func TestDirectRequestsStayOffGossip(t *testing.T) {
	c, k, pin := newFakeController(t), newMemory(), pinIn(t)
	if err := saveSite(pin, testSite); err != nil {
		t.Fatal(err)
	}
	d := startWith(t, k, pin, func(cfg *config.Config) {
		cfg.Gossip, cfg.Controllers = config.Gossip{Bind: "127.0.0.1:0"}, []string{c.url}
	})
	eventually(t, "lease", func() bool { return d.ready(t) == nil })
	request := record.Key{Kind: record.KindLeaseRequest, Name: "d1"}
	if r := d.records.Record(request); r != nil {
		t.Errorf("gossip carries %+v", r)
	}
	c.set(func() { c.down = true })
	eventually(t, "a request goes by gossip", func() bool { return d.records.Record(request) != nil }) // the next is due in 5 s
}

// A request of an earlier run that is still about is overtaken, or this run's would be taken for old news.
func TestNonceOvertakesAnEarlierRun(t *testing.T) {
	c, k := newGossipController(t), newMemory()
	future := record.Nonce(time.Now().Add(time.Hour).UnixNano())
	c.put(t, &record.LeaseRequest{DPU: "d1", Instance: "earlier", Boot: 1, Nonce: future, HardwareID: "hw"})
	d := startWith(t, k, pinIn(t), func(cfg *config.Config) {
		cfg.Gossip = config.Gossip{Bind: "127.0.0.1:0", Seeds: []string{c.Addr().String()}}
	})
	eventually(t, "lease", func() bool { return d.ready(t) == nil })
	r, ok := c.Record(record.Key{Kind: record.KindLeaseRequest, Name: "d1"}).(*record.LeaseRequest)
	if !ok || r.Instance != d.instance || r.Nonce <= future {
		t.Errorf("the pool's newest request is %+v", r)
	}
}
