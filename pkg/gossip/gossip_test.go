package gossip

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"dpud/pkg/record"
)

// pool is members on one in-memory network, in a synctest bubble.
type pool struct {
	t       *testing.T
	net     *network
	members []*member
}

type member struct {
	*Gossip
	regs *registers
	addr netip.AddrPort
	host *host
}

func newPool(t *testing.T) *pool {
	const seed = 1
	t.Logf("seed %d", seed)
	// A bubble's time stands still once the test has ended, and memberlist's probes outlive Close. Runs last.
	t.Cleanup(func() { time.Sleep(time.Minute) })
	return &pool{t: t, net: newNetwork(seed)}
}

func testAddr(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 7946)
}

func testLogger() *slog.Logger {
	if os.Getenv("GOSSIP_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return slog.New(slog.DiscardHandler)
}

// join adds a member, with the first two addresses as seeds unless changed.
func (p *pool) join(name string, i int, change ...func(*Config)) *member {
	p.t.Helper()
	m := &member{regs: newRegisters(), addr: testAddr(i)}
	m.host = p.net.host(m.addr)
	cfg := Config{
		Name:      name,
		Seeds:     []string{testAddr(1).String(), testAddr(2).String()},
		Label:     "s1/r1",
		Records:   m.regs,
		Logger:    testLogger(),
		Transport: m.host,
	}
	for _, c := range change {
		c(&cfg)
	}
	g, err := Join(cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	m.Gossip = g
	p.t.Cleanup(func() { m.close(p.t) })
	p.members = append(p.members, m)
	return m
}

// close closes the member and checks that its set is left alone from then on.
func (m *member) close(t *testing.T) {
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	m.regs.close()
}

func (p *pool) joinN(n int) {
	p.t.Helper()
	for i := 1; i <= n; i++ {
		p.join(fmt.Sprintf("d%d", i), i)
	}
	p.within(time.Minute, "everyone to know everyone", func() bool { return p.know(n) })
}

func (p *pool) know(n int) bool {
	for _, m := range p.members {
		if m.Stats().Members != n {
			return false
		}
	}
	return true
}

func (m *member) change(items ...item) {
	for _, it := range items {
		m.regs.put(it)
		m.Announce(it.key)
	}
}

// within waits until cond holds and returns how long it took, in the bubble's time.
func (p *pool) within(limit time.Duration, what string, cond func() bool) time.Duration {
	p.t.Helper()
	start := time.Now()
	for !cond() {
		if time.Since(start) > limit {
			for _, m := range p.members {
				p.t.Logf("%s: %d registers, %+v", m.name, len(m.regs.versions()), m.Stats())
			}
			p.t.Fatalf("waited %v for %s", limit, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(start)
}

func (p *pool) converge(limit time.Duration) time.Duration {
	p.t.Helper()
	d := p.within(limit, "equal sets", p.equal)
	p.t.Logf("%d members converged on %d registers after %v", len(p.members), len(p.members[0].regs.versions()), d)
	return d
}

func (p *pool) equal() bool {
	for _, m := range p.members[1:] {
		if !sameVersions(m.regs, p.members[0].regs) {
			return false
		}
	}
	return true
}

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

func TestPartitionHeals(t *testing.T) {
	for _, seeds := range []bool{true, false} {
		t.Run(fmt.Sprintf("seeds %v", seeds), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPool(t)
				for i := 1; i <= 8; i++ {
					p.join(fmt.Sprintf("d%d", i), i, func(c *Config) {
						if !seeds && i > 1 {
							c.Seeds = []string{testAddr(i - 1).String()} // never across the later cut, but for one
						}
						if !seeds && i == 5 {
							c.Seeds = []string{testAddr(8).String()}
						}
					})
				}
				if !seeds {
					p.members[0].ml.Join([]string{testAddr(5).String()})
				}
				p.within(time.Minute, "everyone to know everyone", func() bool { return p.know(8) })
				for _, m := range p.members[4:] {
					p.net.setSide(1, m.addr)
				}
				p.within(2*time.Minute, "both sides to give the other up", func() bool { return p.know(4) })
				time.Sleep(10 * time.Minute) // memberlist forgets the dead meanwhile
				p.members[0].change(grant(1, 1, 300), grant(2, 2, 300))
				p.members[7].change(grant(2, 1, 300), grant(3, 1, 64<<10))
				p.within(10*time.Second, "each side to converge", func() bool {
					return sameVersions(p.members[0].regs, p.members[3].regs) && sameVersions(p.members[4].regs, p.members[7].regs)
				})
				if sameVersions(p.members[0].regs, p.members[7].regs) {
					t.Fatal("the partition leaks")
				}
				for _, m := range p.members {
					p.net.setSide(0, m.addr)
				}
				p.within(30*time.Second, "everyone to know everyone again", func() bool { return p.know(8) })
				p.converge(10 * time.Second)
			})
		})
	}
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

func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t)
		p.joinN(3)
		for node := range 1000 {
			p.members[0].change(grant(node, 1, 300))
		}
		p.converge(10 * time.Second)

		t.Log("closed and started again, empty")
		p.members[2].close(t)
		p.members = p.members[:2]
		p.join("d3", 3)
		p.converge(5 * time.Second)
		p.within(10*time.Second, "everyone to know everyone", func() bool { return p.know(3) })

		t.Log("killed, and started again at another address")
		p.net.setSide(9, p.members[2].addr) // nothing it says is heard, goodbye included
		p.members[2].close(t)
		p.members = p.members[:2]
		p.join("d3", 33)
		p.converge(time.Minute)
		p.within(2*time.Minute, "everyone to know everyone", func() bool { return p.know(3) })
		if got := p.members[0].Members()[2]; got != (Member{Name: "d3", Addr: testAddr(33)}) {
			t.Errorf("d1 has %v", got)
		}
	})
}

func TestLateJoiner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t)
		t.Log("nobody answers yet")
		d3 := p.join("d3", 3)
		d3.change(grant(3, 1, 300))
		p.within(time.Minute, "attempts", func() bool { return d3.Stats().JoinsFailed > 0 })
		p.join("d1", 1).change(grant(1, 1, 300))
		p.converge(15 * time.Second)
		for node := range 5000 {
			d3.regs.put(grant(node, 2, 300)) // not announced: digests alone
		}
		p.converge(10 * time.Second)
		p.join("d2", 2)
		p.converge(5 * time.Second)
	})
}

func TestStrangersStayApart(t *testing.T) {
	key := []byte("0123456789abcdef")
	for _, tt := range []struct {
		name string
		a, b func(*Config)
		same bool
	}{
		{"same key", func(c *Config) { c.Key = key }, func(c *Config) { c.Key = key }, true},
		{"other label", func(c *Config) {}, func(c *Config) { c.Label = "s1/r2" }, false},
		{"no label", func(c *Config) {}, func(c *Config) { c.Label = "" }, false},
		{"other key", func(c *Config) { c.Key = key }, func(c *Config) { c.Key = []byte("fedcba9876543210") }, false},
		{"no key", func(c *Config) { c.Key = key }, func(c *Config) {}, false},
		{"key unasked", func(c *Config) {}, func(c *Config) { c.Key = key }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPool(t)
				a, b := p.join("d1", 1, tt.a), p.join("d2", 2, tt.b)
				a.change(grant(1, 1, 300))
				b.change(grant(2, 1, 300))
				if tt.same {
					p.converge(5 * time.Second)
					return
				}
				p.within(10*time.Second, "both to refuse the other", func() bool {
					return a.Stats().Strangers > 0 && b.Stats().Strangers > 0
				})
				time.Sleep(time.Minute)
				if len(a.regs.versions()) != 1 || len(b.regs.versions()) != 1 || !p.know(1) {
					t.Errorf("they talk: %v %v", a.Members(), b.Members())
				}
			})
		})
	}
}

func TestNameConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t)
		p.joinN(3)
		p.join("d3", 4)
		p.within(10*time.Second, "the conflict to be seen", func() bool { return p.members[0].Stats().Conflicts > 0 })
	})
}

func TestRefusedRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t)
		p.joinN(3)
		p.members[0].regs.site = "other"
		p.members[0].change(grant(1, 1, 300))
		p.members[1].change(grant(2, 1, 300))
		p.within(10*time.Second, "refusals on both sides", func() bool {
			return p.members[0].Stats().Refused > 0 && p.members[1].Stats().Refused > 0
		})
		p.within(10*time.Second, "what is valid to spread", func() bool { return len(p.members[2].regs.versions()) == 1 })
		if _, ok := p.members[2].regs.Version(grant(1, 1, 0).key); ok {
			t.Error("a refused record was relayed and kept")
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

// TestClose closes members that others still talk to, twice, and checks that their sets are left alone afterwards.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t)
		p.joinN(5)
		for node := range 200 {
			p.members[node%5].change(grant(node, 1, 2000))
		}
		for _, m := range p.members[:3] {
			start := time.Now()
			m.close(t)
			if d := time.Since(start); d > leaveTimeout+10*time.Second {
				t.Errorf("closing %s took %v", m.name, d)
			}
			m.Announce(grant(1, 1, 0).key)
		}
		p.members[3].change(grant(1, 2, 300))
		time.Sleep(time.Minute)
		for _, m := range p.members[:3] {
			m.close(t)
			if b := (delegate{m.Gossip}).LocalState(false); b != nil { // memberlist may call late
				t.Errorf("%s: state after Close", m.name)
			}
			if m.regs.late != 0 {
				t.Errorf("%s: %d calls after Close", m.name, m.regs.late)
			}
		}
		p.members = p.members[3:]
		p.converge(5 * time.Second)
		if !p.know(2) {
			t.Errorf("the rest see %v", p.members[0].Members())
		}
	})
}

func TestConfigErrors(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"empty", Config{}, "join gossip: name \"\": want 1 to 128 bytes\nrecords: none given\nbind: no address given"},
		{"key", Config{
			Name: "d1", Records: newRegisters(), Key: []byte("short"),
			Bind: netip.MustParseAddrPort("127.0.0.1:0"),
		}, "join gossip: key: want 16, 24 or 32 bytes, got 5"},
		{"advertise", Config{
			Name: "d1", Records: newRegisters(),
			Bind: netip.MustParseAddrPort("[::]:7946"),
		}, "join gossip: bind [::]:7946: give the address to advertise"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Join(tt.cfg); err == nil || err.Error() != tt.want {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}
