package gossip

import (
	"math/rand/v2"
	"time"

	"github.com/hashicorp/memberlist"

	"dpud/pkg/record"
)

const (
	// wholeQueue is how long the queue may be for records to be broadcast whole: in a burst, announcements (about 30
	// bytes, 40 to a packet) reach everyone sooner, and the records follow over streams.
	wholeQueue = 64
	// pullDelay gathers what one peer announces into one pull.
	pullDelay = 20 * time.Millisecond
	// pullTimeout is how long a pull may be under way before the register is asked for again.
	pullTimeout = 2 * time.Second
	// maxPending bounds the registers asked for at once, maxAnnounced the memory of what was announced.
	maxPending   = 1 << 16
	maxAnnounced = 1 << 18
)

// spread is what the goroutine run remembers.
type spread struct {
	pending   map[record.Key]pending        // asked for
	wants     map[string][]item             // to be asked for, by whom to ask
	announced map[record.Key]record.Version // broadcast once already
}

type pending struct {
	version record.Version
	until   time.Time
	relay   bool // news from a broadcast: broadcast it in turn
}

func newSpread() spread {
	return spread{
		pending:   make(map[record.Key]pending),
		wants:     make(map[string][]item),
		announced: make(map[record.Key]record.Version),
	}
}

// delegate hands memberlist's callbacks on. None blocks.
type delegate struct{ g *Gossip }

var _ memberlist.Delegate = delegate{}

// NodeMeta implements memberlist.Delegate.
func (d delegate) NodeMeta(int) []byte { return nil }

// NotifyMsg implements memberlist.Delegate.
func (d delegate) NotifyMsg(b []byte) { d.g.receive(b) }

// GetBroadcasts implements memberlist.Delegate.
func (d delegate) GetBroadcasts(overhead, limit int) [][]byte {
	return d.g.queue.GetBroadcasts(overhead, limit)
}

// LocalState implements memberlist.Delegate.
func (d delegate) LocalState(bool) []byte {
	d.g.alive.RLock()
	defer d.g.alive.RUnlock()
	if d.g.closed {
		return nil
	}
	return d.g.digestMessage()
}

// MergeRemoteState implements memberlist.Delegate.
func (d delegate) MergeRemoteState(b []byte, _ bool) { d.g.receive(b) }

// receive queues a message for run, or drops it when the queue is full.
func (g *Gossip) receive(b []byte) {
	if g.inboxBytes.Add(int64(len(b))) <= inboxBytes {
		select {
		case g.inbox <- append([]byte(nil), b...): // memberlist reuses b
			return
		default:
		}
	}
	g.inboxBytes.Add(int64(-len(b)))
	g.counters.dropped.Add(1)
}

// run handles messages one at a time. It does not wait for the network: what does is a job for send.
func (g *Gossip) run() {
	tick := time.NewTimer(rand.N(g.cfg.SyncInterval))
	defer tick.Stop()
	var flush <-chan time.Time
	for {
		select {
		case <-g.ctx.Done():
			return
		case b := <-g.inbox:
			g.inboxBytes.Add(int64(-len(b)))
			g.handle(b)
		case <-g.wake:
			g.announceDirty()
		case <-flush:
			flush = nil
			g.pullWanted()
		case <-tick.C:
			g.sync()
			tick.Reset(g.cfg.SyncInterval/2 + rand.N(g.cfg.SyncInterval)) // so that members do not go in step
		}
		if flush == nil && len(g.spread.wants) > 0 {
			flush = time.After(pullDelay)
		}
	}
}

func (g *Gossip) handle(b []byte) {
	m, err := parse(b)
	if err != nil {
		g.counters.malformed.Add(1)
		g.refusals.Do(func() { g.log.Warn("gossip: dropping a message", "err", err) })
		return
	}
	if m.from == g.name {
		return
	}
	switch m.typ {
	case typeRecord, typeRecords:
		for _, it := range m.items {
			g.merge(it, m.typ == typeRecord)
		}
	case typeAnnounce:
		for _, it := range m.items {
			g.want(m.from, it, true)
		}
	case typeDigest:
		if diff := g.differing(&m.digests); diff != 0 {
			g.counters.syncs.Add(1)
			g.job(func() { g.sendVersions(m.from, diff) })
		}
	case typeVersions:
		for _, it := range m.items {
			g.want(m.from, it, false)
		}
		if m.buckets != 0 {
			g.job(func() { g.sendLacking(m.from, m.buckets, m.items) })
		}
	case typePull:
		g.job(func() { g.sendRecords(m.from, m.items) })
	}
}

// merge hands a record to its owner unless it is held already, and broadcasts it in turn if it was news to a
// broadcast's receiver.
func (g *Gossip) merge(it item, relay bool) {
	p, asked := g.spread.pending[it.key]
	if asked && p.version.Compare(it.version) <= 0 {
		delete(g.spread.pending, it.key)
		relay = relay || p.relay
	}
	if g.holds(it) {
		g.counters.stale.Add(1)
		return
	}
	changed, err := g.records.Merge(it.payload)
	switch {
	case err != nil:
		g.counters.refused.Add(1)
		g.refusals.Do(func() { g.log.Warn("gossip: record refused", "record", it.key.String(), "err", err) })
	case !changed:
		g.counters.stale.Add(1)
	default:
		g.counters.merged.Add(1)
		if relay {
			g.announce(it.key)
		}
	}
}

func (g *Gossip) holds(it item) bool {
	v, ok := g.records.Version(it.key)
	return ok && v.Compare(it.version) >= 0
}

// want notes that from has a version, to be pulled if it is news and not under way.
func (g *Gossip) want(from string, it item, relay bool) {
	if g.holds(it) {
		return
	}
	now := time.Now()
	p, asked := g.spread.pending[it.key]
	if asked && now.Before(p.until) && p.version.Compare(it.version) >= 0 {
		if relay && !p.relay {
			p.relay = true
			g.spread.pending[it.key] = p
		}
		return
	}
	if !asked && len(g.spread.pending) >= maxPending {
		g.counters.dropped.Add(1)
		return
	}
	g.spread.pending[it.key] = pending{version: it.version, until: now.Add(pullTimeout), relay: relay}
	g.spread.wants[from] = append(g.spread.wants[from], it)
}

func (g *Gossip) pullWanted() {
	for from, items := range g.spread.wants {
		g.counters.pulls.Add(uint64(len(items)))
		g.job(func() { g.sendItems(from, typePull, items) })
	}
	clear(g.spread.wants)
}

func (g *Gossip) announceDirty() {
	g.dirtyMu.Lock()
	keys := g.dirty
	g.dirty = make(map[record.Key]struct{})
	g.dirtyMu.Unlock()
	for k := range keys {
		g.announce(k)
	}
}

// announce queues a broadcast of what is held of a register, unless that version was broadcast before.
func (g *Gossip) announce(k record.Key) {
	v, payload, ok := g.records.Get(k)
	if !ok {
		return
	}
	if old, ok := g.spread.announced[k]; ok && old.Compare(v) >= 0 {
		return
	}
	if len(g.spread.announced) >= maxAnnounced {
		clear(g.spread.announced) // costs at most a repeated broadcast
	}
	g.spread.announced[k] = v
	m := message{typ: typeRecord, items: []item{{key: k, version: v, payload: payload}}}
	b := m.append(nil)
	if len(b) > g.broadcastMax || g.queue.NumQueued() >= wholeQueue {
		m.typ, m.from = typeAnnounce, g.name
		b = m.append(nil)
	}
	g.counters.announced.Add(1)
	g.queue.QueueBroadcast(&broadcast{name: string(m.items[0].append(nil, typePull)), msg: b})
}

// broadcast replaces an earlier one of the same register in the queue.
type broadcast struct {
	name string // the encoded key
	msg  []byte
}

var _ memberlist.NamedBroadcast = (*broadcast)(nil)

// Name implements memberlist.NamedBroadcast.
func (b *broadcast) Name() string { return b.name }

// Message implements memberlist.Broadcast.
func (b *broadcast) Message() []byte { return b.msg }

// Finished implements memberlist.Broadcast.
func (b *broadcast) Finished() {}

// Invalidates implements memberlist.Broadcast.
func (b *broadcast) Invalidates(other memberlist.Broadcast) bool {
	o, ok := other.(memberlist.NamedBroadcast)
	return ok && o.Name() == b.name
}
