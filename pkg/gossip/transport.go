package gossip

import (
	"fmt"
	"log"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// Numbers that differ from memberlist's profile for a LAN, or that it leaves to us.
const (
	// retransmitMult gives retransmitMult*ceil(log10(n+1)) sends of each broadcast by each member: 4 at 50
	// members, 6 at 500. As everyone relays, a share of about exp(-sends) misses it (0.2 to 2 %) and learns
	// it from a digest. memberlist's 4 would double the traffic for the last 2 %.
	retransmitMult = 2
	// packetSize keeps a packet within an Ethernet frame of 1500 bytes under IPv6 (40), UDP (8) and encryption.
	packetSize = 1400
	// packetOverhead is what memberlist takes of a packet beside the label: the compound header (2), and for each message
	// a length (2) and a type (1); encryption (at most 45).
	packetOverhead = 2 + 2 + 1 + 45
	// reclaimAfter lets a member that died come back under another address; after it has left, at once.
	reclaimAfter = 30 * time.Second
	// protocol of this package's messages; memberlist refuses pools without a common one.
	protocol = 1
)

func (g *Gossip) start() error {
	logger := log.New(newLogWriter(g.log, &g.counters), "", 0)
	c := memberlist.DefaultLANConfig()
	c.Name = g.name
	c.Label = g.cfg.Label
	c.SecretKey = g.cfg.Key
	c.Logger = logger
	c.Delegate = delegate{g}
	c.DelegateProtocolMin, c.DelegateProtocolMax, c.DelegateProtocolVersion = protocol, protocol, protocol
	c.Events = g.roster
	c.Conflict = g.roster
	c.GossipInterval = g.cfg.GossipInterval
	c.PushPullInterval = g.cfg.PushPullInterval
	c.TCPTimeout = g.cfg.StreamTimeout
	c.UDPBufferSize = packetSize
	c.DeadNodeReclaimTime = reclaimAfter
	// Bandwidth in a rack is cheaper than a DPU's cores, and LZW is tried on every packet.
	c.EnableCompression = false
	// Default 1024; a burst fills it with broadcasts and the overflow is lost.
	c.HandoffQueueDepth = inboxLen
	g.broadcastMax = packetSize - packetOverhead - 2 - len(c.Label)

	inner := g.cfg.Transport
	if inner == nil {
		nt, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{
			BindAddrs: []string{g.cfg.Bind.Addr().String()},
			BindPort:  int(g.cfg.Bind.Port()),
			Logger:    logger,
		})
		if err != nil {
			return fmt.Errorf("bind %s: %w", g.cfg.Bind, err)
		}
		c.BindPort = nt.GetAutoBindPort()
		c.AdvertisePort = c.BindPort
		if a := g.cfg.Advertise; a.IsValid() {
			c.AdvertiseAddr = a.Addr().String()
			if a.Port() != 0 {
				c.AdvertisePort = int(a.Port())
			}
		}
		inner = nt
	}
	g.transport = &transport{NodeAwareTransport: inner, timeout: g.cfg.StreamTimeout, conns: make(map[*conn]struct{})}
	c.Transport = g.transport
	ml, err := memberlist.Create(c)
	if err != nil {
		_ = inner.Shutdown() // the first error is the one that explains
		return err
	}
	g.ml = ml
	return nil
}

// transport bounds what memberlist does not: the time that a stream we dialled may take (it writes user messages
// without a deadline), and streams that are open at shutdown.
type transport struct {
	memberlist.NodeAwareTransport
	timeout time.Duration
	self    netip.AddrPort // set before memberlist starts, then constant

	mu     sync.Mutex
	conns  map[*conn]struct{}
	closed bool
}

type conn struct {
	net.Conn
	t *transport
}

// FinalAdvertiseAddr implements memberlist.Transport, which calls it first from Create.
func (t *transport) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	addr, port, err := t.NodeAwareTransport.FinalAdvertiseAddr(ip, port)
	if err != nil {
		return nil, 0, err
	}
	if !t.self.IsValid() {
		t.self = addrPort(addr, port)
	}
	return addr, port, nil
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	t.mu.Lock()
	closed := t.closed
	t.mu.Unlock()
	if closed {
		return nil, net.ErrClosed
	}
	inner, err := t.NodeAwareTransport.DialAddressTimeout(a, timeout)
	if err != nil {
		return nil, err
	}
	if err := inner.SetDeadline(time.Now().Add(t.timeout)); err != nil {
		_ = inner.Close()
		return nil, err
	}
	c := &conn{Conn: inner, t: t}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		_ = inner.Close()
		return nil, net.ErrClosed
	}
	t.conns[c] = struct{}{}
	return c, nil
}

func (c *conn) Close() error {
	c.t.mu.Lock()
	delete(c.t.conns, c)
	c.t.mu.Unlock()
	return c.Conn.Close()
}

// Shutdown implements memberlist.Transport.
func (t *transport) Shutdown() error {
	t.mu.Lock()
	t.closed = true
	for c := range t.conns {
		_ = c.Conn.Close() // its user reports the error
	}
	t.mu.Unlock()
	return t.NodeAwareTransport.Shutdown()
}

func addrPort(ip net.IP, port int) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), uint16(port))
}
