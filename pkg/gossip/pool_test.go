package gossip

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"testing"
	"time"
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
