// Package gossip spreads registers within one pool (a rack or pod of racks: its dpuds and management
// controllers, at most about 1,000 members), so that whoever missed a direct message gets it from a
// neighbour. It runs on hashicorp/memberlist.
//
// It decides who is told what, and when. It refuses to judge a record: order and validity are the owner's
// ([Records]); the keys and versions that travel beside a record only save decoding and sending what is held
// already. It proves nothing about a member: "gone" here is no evidence for a reclaim.
//
// Three ways lead to every member, each repairing what the one before it missed:
//
//   - Broadcasts. A changed register travels in packets, whole when it is small and the queue short, else as an
//     announcement of its version, on which others pull it over a stream from whom they heard it. memberlist
//     relays nothing by itself, so who learns something new by a broadcast broadcasts it in turn.
//   - Digests. Every SyncInterval a member sends a random other one a digest of its versions in 64 buckets;
//     where buckets differ both compare versions and pull what they lack. Push/pull carries the same digest,
//     so a member that joins catches up at once.
//   - Rejoining. memberlist forgets the dead; this package remembers them and keeps trying them and the
//     seeds, which heals partitions and a start before any seed is up.
//
// Everything from the network may be garbage: messages are parsed with bounds (maxMessage), queued in bounded
// queues and dropped, counted, when those are full; digests repair that later. Without a Key anyone on
// the network who knows the Label can take part and can make memberlist buffer 20 MiB for each stream; with one,
// strangers are refused before that.
package gossip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/time/rate"

	"dpud/pkg/record"
)

// Records is the owner's set of registers. Its methods are called from several of gossip's goroutines: the owner
// locks, and does not block on the network or on gossip meanwhile. None is called after Close has
// returned.
type Records interface {
	// Versions calls yield for each register held until yield returns false. yield calls no other method.
	Versions(yield func(record.Key, record.Version) bool)
	// Version returns which version of a register is held, and whether any is.
	Version(record.Key) (record.Version, bool)
	// Get returns what is held of a register, encoded, and whether anything is. The bytes are not changed
	// afterwards by either side.
	Get(record.Key) (record.Version, []byte, bool)
	// Merge decodes and checks an encoded record and keeps it if it is newer than what is held. It says
	// whether it was. An error means that it is refused (malformed, another site's); gossip counts and
	// logs it. Merge copies what it keeps of payload.
	Merge(payload []byte) (changed bool, err error)
}

// Config of a member. Durations left zero get the default.
type Config struct {
	// Name is unique in the pool, 1 to 128 bytes. Two live members of one name fight; it is logged and counted.
	Name string
	// Bind is the address for packets (UDP) and streams (TCP). Port 0 lets the kernel choose.
	Bind netip.AddrPort
	// Advertise is what others are told to use. Default: Bind. Needed when Bind is unspecified (0.0.0.0, ::).
	Advertise netip.AddrPort
	// Seeds are members ("host:port"; without a port, that of Bind) to join through. Names are resolved at every
	// attempt. After a partition that outlasts memory (a day, or a restart) only seeds heal it, so
	// list some on each side of any likely cut: the controllers, and two or three dpuds.
	Seeds []string
	// Label names the pool (site and rack), at most 128 bytes. Members with different labels do not talk.
	Label string
	// Key encrypts and authenticates all traffic: 16, 24 or 32 bytes for AES-128, -192, -256 (GCM).
	// Default: none. Members with different keys do not talk.
	Key []byte
	// Records is the owner's set.
	Records Records
	// Logger; default slog.Default().
	Logger *slog.Logger

	// GossipInterval between packets with broadcasts, 3 of them each time; nothing is sent when nothing
	// is queued. Default 100 ms. Shorter spreads changes sooner, in a burst with more packets.
	GossipInterval time.Duration
	// SyncInterval between digests (one packet of about 600 bytes to one random member). Default 1 s. Shorter
	// repairs losses sooner at the price of one pass over all versions at both ends each time.
	SyncInterval time.Duration
	// PushPullInterval between exchanges of the whole membership with one random member. Default 10 s;
	// memberlist stretches it by ceil(log2(n)-log2(32))+1 above 32 members, so 60 s at 1,000.
	PushPullInterval time.Duration
	// RejoinInterval between attempts to reach seeds and gone members; 1 s at most while alone. Default 5 s.
	RejoinInterval time.Duration
	// StreamTimeout bounds each stream, from dialling to its end. Default 5 s. Shorter frees a sender from a
	// dead peer sooner, and fails large transfers over slow links.
	StreamTimeout time.Duration

	// Transport replaces UDP and TCP on Bind, in tests; its FinalAdvertiseAddr is used.
	Transport memberlist.NodeAwareTransport
}

const (
	// maxName and maxLabel leave most of a packet to its contents.
	maxName  = 128
	maxLabel = 128
	// inboxLen and inboxBytes bound what waits to be handled.
	inboxLen   = 4096
	inboxBytes = 32 << 20
	// jobsLen bounds what waits to be sent over streams; senders is how many go at once.
	jobsLen = 256
	senders = 4
	// leaveTimeout bounds saying goodbye in Close.
	leaveTimeout = 2 * time.Second
)

// Gossip is one member of a pool. Its methods are safe for concurrent use.
type Gossip struct {
	name      string
	cfg       Config
	records   Records
	log       *slog.Logger
	ml        *memberlist.Memberlist
	transport *transport
	roster    *roster
	queue     *memberlist.TransmitLimitedQueue
	// broadcastMax is the longest message that fits a packet of broadcasts, in bytes.
	broadcastMax int
	counters     counters
	refusals     rate.Sometimes

	inbox      chan []byte
	inboxBytes atomic.Int64
	jobs       chan func()
	wake       chan struct{}
	dirtyMu    sync.Mutex
	dirty      map[record.Key]struct{}

	spread spread // owned by run

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	// alive guards calls to Records from memberlist's goroutines, which outlive Close.
	alive     sync.RWMutex
	closed    bool
	closeOnce sync.Once
	closeErr  error
}

// Join starts a member. It fails when the configuration is wrong or the address cannot be bound, not when no
// seed answers: that is tried for ever.
func Join(cfg Config) (*Gossip, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("join gossip: %w", err)
	}
	cfg.setDefaults()
	g := &Gossip{
		name:     cfg.Name,
		cfg:      cfg,
		records:  cfg.Records,
		log:      cfg.Logger.With("member", cfg.Name),
		refusals: rate.Sometimes{First: 5, Interval: 10 * time.Second},
		inbox:    make(chan []byte, inboxLen),
		jobs:     make(chan func(), jobsLen),
		wake:     make(chan struct{}, 1),
		dirty:    make(map[record.Key]struct{}),
		spread:   newSpread(),
	}
	g.roster = newRoster(g)
	g.queue = &memberlist.TransmitLimitedQueue{RetransmitMult: retransmitMult, NumNodes: g.roster.size}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	if err := g.start(); err != nil {
		g.cancel()
		return nil, fmt.Errorf("join gossip: %w", err)
	}
	g.wg.Go(g.run)
	g.wg.Go(g.rejoinLoop)
	for range senders {
		g.wg.Go(g.send)
	}
	return g, nil
}

func (c *Config) check() error {
	var errs []error
	if len(c.Name) < 1 || len(c.Name) > maxName {
		errs = append(errs, fmt.Errorf("name %q: want 1 to %d bytes", c.Name, maxName))
	}
	if len(c.Label) > maxLabel {
		errs = append(errs, fmt.Errorf("label %q: want at most %d bytes", c.Label, maxLabel))
	}
	if l := len(c.Key); l != 0 && l != 16 && l != 24 && l != 32 {
		errs = append(errs, fmt.Errorf("key: want 16, 24 or 32 bytes, got %d", l))
	}
	if c.Records == nil {
		errs = append(errs, errors.New("records: none given"))
	}
	if c.Transport == nil {
		if !c.Bind.IsValid() {
			errs = append(errs, errors.New("bind: no address given"))
		} else if c.Bind.Addr().IsUnspecified() && !c.Advertise.IsValid() {
			errs = append(errs, fmt.Errorf("bind %s: give the address to advertise", c.Bind))
		}
	}
	return errors.Join(errs...)
}

func (c *Config) setDefaults() {
	c.GossipInterval = cmp.Or(c.GossipInterval, 100*time.Millisecond)
	c.SyncInterval = cmp.Or(c.SyncInterval, time.Second)
	c.PushPullInterval = cmp.Or(c.PushPullInterval, 10*time.Second)
	c.RejoinInterval = cmp.Or(c.RejoinInterval, 5*time.Second)
	c.StreamTimeout = cmp.Or(c.StreamTimeout, 5*time.Second)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

// Announce says that registers changed here, or were added. It returns at once and calls nothing of
// Records itself, so the owner may hold its lock. Announcing a version twice costs nothing.
func (g *Gossip) Announce(keys ...record.Key) {
	g.dirtyMu.Lock()
	for _, k := range keys {
		g.dirty[k] = struct{}{}
	}
	g.dirtyMu.Unlock()
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// Member of the pool as seen from here.
type Member struct {
	Name string
	Addr netip.AddrPort
}

// Members returns the live members, this one included, sorted by name.
func (g *Gossip) Members() []Member {
	m := append(g.roster.liveMembers(), Member{Name: g.name, Addr: g.Addr()})
	slices.SortFunc(m, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	return m
}

// Addr is where this member is reached.
func (g *Gossip) Addr() netip.AddrPort { return g.transport.self }

// QueueLen is the number of broadcasts that wait or are not yet repeated often enough.
func (g *Gossip) QueueLen() int { return g.queue.NumQueued() }

// Close leaves the pool and ends every goroutine of this package. It takes at most 2 s for saying goodbye and
// StreamTimeout for streams under way. memberlist's probes run out by themselves within 10 s after it (a
// synctest bubble has to let that time pass). Closing twice does nothing more.
func (g *Gossip) Close() error {
	g.closeOnce.Do(func() {
		if err := g.ml.Leave(leaveTimeout); err != nil {
			g.log.Debug("gossip: nobody heard the goodbye", "err", err)
		}
		g.cancel()
		g.alive.Lock()
		g.closed = true
		g.alive.Unlock()
		if err := g.ml.Shutdown(); err != nil {
			g.closeErr = fmt.Errorf("close gossip: %w", err)
		}
		g.wg.Wait()
	})
	return g.closeErr
}
