package gossip

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// network is an in-memory network for synctest bubbles. Packets take latency, are lost with some probability and when
// the receiver's buffer is full. Streams are reliable. Both fail between sides of a partition.
type network struct {
	latency time.Duration

	mu    sync.Mutex
	rand  *rand.Rand
	loss  float64
	side  map[netip.AddrPort]int // hosts of different sides do not reach each other
	hosts map[netip.AddrPort]*host
}

func newNetwork(seed uint64) *network {
	return &network{
		latency: time.Millisecond,
		rand:    rand.New(rand.NewPCG(seed, 0)),
		side:    make(map[netip.AddrPort]int),
		hosts:   make(map[netip.AddrPort]*host),
	}
}

func (n *network) setLoss(p float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.loss = p
}

// setSide puts hosts on a side; all start on side 0.
func (n *network) setSide(side int, addrs ...netip.AddrPort) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range addrs {
		n.side[a] = side
	}
}

// host returns the transport of a new host, in place of an earlier one at that address.
func (n *network) host(addr netip.AddrPort) *host {
	h := &host{net: n, addr: addr, packets: make(chan *memberlist.Packet, 1024), streams: make(chan net.Conn, 128)}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts[addr] = h
	return h
}

// reach returns the host at an address, or nil if from does not reach it.
func (n *network) reach(from, to netip.AddrPort) *host {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.side[from] != n.side[to] {
		return nil
	}
	return n.hosts[to]
}

func (n *network) lost() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rand.Float64() < n.loss
}

type host struct {
	net     *network
	addr    netip.AddrPort
	packets chan *memberlist.Packet
	streams chan net.Conn
}

var _ memberlist.NodeAwareTransport = (*host)(nil)

func (h *host) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return h.addr.Addr().AsSlice(), int(h.addr.Port()), nil
}

func (h *host) PacketCh() <-chan *memberlist.Packet { return h.packets }
func (h *host) StreamCh() <-chan net.Conn           { return h.streams }

func (h *host) WriteTo(b []byte, addr string) (time.Time, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return time.Time{}, err
	}
	h.inject(append([]byte(nil), b...), to)
	return time.Now(), nil
}

// inject sends a packet, whatever is in it.
func (h *host) inject(b []byte, to netip.AddrPort) {
	if h.net.lost() {
		return
	}
	time.AfterFunc(h.net.latency, func() {
		peer := h.net.reach(h.addr, to)
		if peer == nil {
			return
		}
		select {
		case peer.packets <- &memberlist.Packet{Buf: b, From: net.UDPAddrFromAddrPort(h.addr), Timestamp: time.Now()}:
		default:
		}
	})
}

func (h *host) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return h.WriteTo(b, a.Addr)
}

func (h *host) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return h.DialTimeout(a.Addr, timeout)
}

func (h *host) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	time.Sleep(h.net.latency)
	peer := h.net.reach(h.addr, to)
	if peer == nil {
		time.Sleep(timeout - h.net.latency) // as when the address swallows packets
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	}
	near, far := net.Pipe()
	select {
	case peer.streams <- &stream{far, peer, h.addr}:
		return &stream{near, h, to}, nil
	default:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	}
}

func (h *host) Shutdown() error {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	if h.net.hosts[h.addr] == h {
		delete(h.net.hosts, h.addr)
	}
	for {
		select {
		case c := <-h.streams:
			_ = c.Close()
		default:
			return nil
		}
	}
}

// stream fails to write once a partition is between its ends.
type stream struct {
	net.Conn
	host *host
	peer netip.AddrPort
}

func (s *stream) Write(b []byte) (int, error) {
	if s.host.net.reach(s.host.addr, s.peer) == nil {
		return 0, &net.OpError{Op: "write", Net: "tcp", Err: os.ErrDeadlineExceeded}
	}
	return s.Conn.Write(b)
}

func (s *stream) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(s.peer) }
