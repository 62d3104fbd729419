package gossip

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/time/rate"
)

const (
	// goneMax and goneFor bound the memory of members that are gone.
	goneMax = 1024
	goneFor = 24 * time.Hour
	// rejoinTargets is how many absent members one attempt dials at most, aloneTargets while alone.
	rejoinTargets = 3
	aloneTargets  = 8
	// rejoinAttempts is how many members of the pool attempt in one interval, on average: each does so with
	// probability rejoinAttempts/n, so a dead DPU is not dialled by a thousand others at once.
	rejoinAttempts = 10
	resolveTimeout = 2 * time.Second
)

// roster knows the other members: who is live, and where those were who are gone. memberlist calls its delegate
// methods with its own lock held, so they call nothing of it.
type roster struct {
	g *Gossip

	mu   sync.Mutex
	live map[string]memberlist.Node
	gone map[string]gone
}

type gone struct {
	addr netip.AddrPort
	at   time.Time
}

var (
	_ memberlist.EventDelegate    = (*roster)(nil)
	_ memberlist.ConflictDelegate = (*roster)(nil)
)

func newRoster(g *Gossip) *roster {
	return &roster{g: g, live: make(map[string]memberlist.Node), gone: make(map[string]gone)}
}

// NotifyJoin implements memberlist.EventDelegate.
func (r *roster) NotifyJoin(n *memberlist.Node) {
	if n.Name == r.g.name {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live[n.Name] = *n
	delete(r.gone, n.Name)
}

// NotifyUpdate implements memberlist.EventDelegate.
func (r *roster) NotifyUpdate(n *memberlist.Node) { r.NotifyJoin(n) }

// NotifyLeave implements memberlist.EventDelegate.
func (r *roster) NotifyLeave(n *memberlist.Node) {
	if n.Name == r.g.name {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.live, n.Name)
	now := time.Now()
	r.gone[n.Name] = gone{addr: addrPort(n.Addr, int(n.Port)), at: now}
	oldest := n.Name
	for name, g := range r.gone {
		if now.Sub(g.at) > goneFor {
			delete(r.gone, name)
		} else if g.at.Before(r.gone[oldest].at) {
			oldest = name
		}
	}
	if len(r.gone) > goneMax {
		delete(r.gone, oldest)
	}
}

// NotifyConflict implements memberlist.ConflictDelegate.
func (r *roster) NotifyConflict(existing, other *memberlist.Node) {
	r.g.counters.conflicts.Add(1)
	r.g.refusals.Do(func() {
		r.g.log.Error("gossip: two members of one name", "name", existing.Name, "addr", existing.Address(), "other", other.Address())
	})
}

// size is the number of live members, this one included.
func (r *roster) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.live) + 1
}

func (r *roster) liveMembers() []Member {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := make([]Member, 0, len(r.live)+1)
	for name, n := range r.live {
		m = append(m, Member{Name: name, Addr: addrPort(n.Addr, int(n.Port))})
	}
	return m
}

func (r *roster) node(name string) (memberlist.Node, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, ok := r.live[name]
	return n, ok
}

// random returns one live member other than this one.
func (r *roster) random() (memberlist.Node, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.live) == 0 {
		return memberlist.Node{}, false
	}
	i := rand.IntN(len(r.live))
	for _, n := range r.live {
		if i == 0 {
			return n, true
		}
		i--
	}
	panic("unreachable")
}

// absent returns, of seeds and of the members that are gone, those where nobody live is.
func (r *roster) absent(seeds []netip.AddrPort, self netip.AddrPort) []netip.AddrPort {
	r.mu.Lock()
	defer r.mu.Unlock()
	here := map[netip.AddrPort]bool{self: true}
	for _, n := range r.live {
		here[addrPort(n.Addr, int(n.Port))] = true
	}
	var out []netip.AddrPort
	add := func(a netip.AddrPort) {
		if a.IsValid() && !here[a] {
			here[a] = true
			out = append(out, a)
		}
	}
	for _, a := range seeds {
		add(a)
	}
	for _, g := range r.gone {
		add(g.addr)
	}
	return out
}

// rejoinLoop joins the pool, and joins its parts again after a partition, until the member is closed.
func (g *Gossip) rejoinLoop() {
	failures := rate.Sometimes{First: 1, Interval: time.Minute}
	wait := time.Duration(0)
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-time.After(wait):
		}
		n := g.roster.size()
		if n == 1 || rand.Float64() < float64(rejoinAttempts)/float64(n) {
			g.rejoin(n == 1, &failures)
		}
		wait = g.cfg.RejoinInterval
		if g.roster.size() == 1 {
			wait = min(wait, time.Second)
		}
		wait = wait/2 + rand.N(wait) // so that members do not go in step
	}
}

func (g *Gossip) rejoin(alone bool, failures *rate.Sometimes) {
	targets := g.roster.absent(g.resolveSeeds(), g.Addr())
	rand.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
	limit := rejoinTargets
	if alone {
		limit = aloneTargets
	}
	var wg sync.WaitGroup
	for _, t := range targets[:min(limit, len(targets))] {
		wg.Go(func() {
			if _, err := g.ml.Join([]string{t.String()}); err != nil {
				g.counters.joinsFailed.Add(1)
				if g.ctx.Err() == nil {
					failures.Do(func() { g.log.Warn("gossip: member does not answer, trying on", "addr", t, "err", err) })
				}
				return
			}
			g.counters.joins.Add(1)
			g.log.Info("gossip: joined", "addr", t, "members", g.roster.size())
		})
	}
	wg.Wait()
}

func (g *Gossip) resolveSeeds() []netip.AddrPort {
	var out []netip.AddrPort
	for _, s := range g.cfg.Seeds {
		host, port := s, g.Addr().Port()
		if h, p, err := net.SplitHostPort(s); err == nil {
			n, err := strconv.ParseUint(p, 10, 16)
			if err != nil {
				g.refusals.Do(func() { g.log.Warn("gossip: seed has a bad port", "seed", s) })
				continue
			}
			host, port = h, uint16(n)
		}
		if a, err := netip.ParseAddr(host); err == nil {
			out = append(out, netip.AddrPortFrom(a.Unmap(), port))
			continue
		}
		ctx, cancel := context.WithTimeout(g.ctx, resolveTimeout)
		addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		cancel()
		if err != nil {
			g.refusals.Do(func() { g.log.Warn("gossip: seed is not resolved", "seed", s, "err", err) })
			continue
		}
		for _, a := range addrs {
			out = append(out, netip.AddrPortFrom(a.Unmap(), port))
		}
	}
	return out
}
