package gossip

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

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
