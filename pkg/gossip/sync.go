package gossip

import (
	"time"

	"dpud/pkg/record"
)

// sync sends a digest to one random member and forgets pulls that were not answered.
func (g *Gossip) sync() {
	now := time.Now()
	for k, p := range g.spread.pending {
		if now.After(p.until) {
			delete(g.spread.pending, k)
		}
	}
	n, ok := g.roster.random()
	if !ok {
		return
	}
	if err := g.ml.SendBestEffort(&n, g.digestMessage()); err != nil {
		g.counters.sendErrors.Add(1)
		g.log.Debug("gossip: digest not sent", "to", n.Name, "err", err)
	}
}

func (g *Gossip) digests() *digests {
	var d digests
	g.records.Versions(func(k record.Key, v record.Version) bool {
		b := bucketOf(k)
		d[b] = d[b].Add(k, v)
		return true
	})
	return &d
}

func (g *Gossip) digestMessage() []byte {
	m := message{typ: typeDigest, from: g.name, digests: *g.digests()}
	return m.append(nil)
}

// differing is the bit map of the buckets that differ from a peer's.
func (g *Gossip) differing(theirs *digests) uint64 {
	var bits uint64
	for b, d := range g.digests() {
		if d != theirs[b] {
			bits |= 1 << b
		}
	}
	return bits
}

// job queues work that waits for the network, or drops it when the queue is full; digests repair that.
func (g *Gossip) job(f func()) {
	select {
	case g.jobs <- f:
	default:
		g.counters.dropped.Add(1)
	}
}

func (g *Gossip) send() {
	for {
		select {
		case <-g.ctx.Done():
			return
		case f := <-g.jobs:
			f()
		}
	}
}

// sendVersions tells a peer all that is held in some buckets, in messages of whole buckets, and asks for the rest.
func (g *Gossip) sendVersions(to string, buckets uint64) {
	var held [numBuckets][]item
	g.records.Versions(func(k record.Key, v record.Version) bool {
		if b := bucketOf(k); buckets&(1<<b) != 0 {
			held[b] = append(held[b], item{key: k, version: v})
		}
		return true
	})
	m := message{typ: typeVersions, from: g.name}
	size := 0
	for b := range numBuckets {
		if buckets&(1<<b) == 0 {
			continue
		}
		m.buckets |= 1 << b
		m.items = append(m.items, held[b]...)
		for i := range held[b] {
			size += len(held[b][i].append(nil, m.typ))
		}
		if size >= chunk {
			if !g.deliver(to, m.append(nil)) {
				return
			}
			m.buckets, m.items, size = 0, nil, 0
		}
	}
	if m.buckets != 0 {
		g.deliver(to, m.append(nil))
	}
}

// sendLacking tells a peer which versions it lacks in some buckets, given all that it has there.
func (g *Gossip) sendLacking(to string, buckets uint64, has []item) {
	theirs := make(map[record.Key]record.Version, len(has))
	for _, it := range has {
		theirs[it.key] = it.version
	}
	var lacking []item
	g.records.Versions(func(k record.Key, v record.Version) bool {
		if buckets&(1<<bucketOf(k)) == 0 {
			return true
		}
		if t, ok := theirs[k]; !ok || t.Compare(v) < 0 {
			lacking = append(lacking, item{key: k, version: v})
		}
		return true
	})
	g.sendItems(to, typeVersions, lacking)
}

// sendRecords answers a pull, each register once.
func (g *Gossip) sendRecords(to string, asked []item) {
	seen := make(map[record.Key]bool, len(asked))
	l := list{g: g, to: to, m: message{typ: typeRecords}}
	for _, it := range asked {
		if seen[it.key] {
			continue
		}
		seen[it.key] = true
		if v, payload, ok := g.records.Get(it.key); ok && !l.add(item{key: it.key, version: v, payload: payload}) {
			return
		}
	}
	l.flush()
}

// sendItems sends items to a peer.
func (g *Gossip) sendItems(to string, t messageType, items []item) {
	l := list{g: g, to: to, m: message{typ: t, from: g.name}}
	for _, it := range items {
		if !l.add(it) {
			return
		}
	}
	l.flush()
}

// list sends items to a peer in messages like m, each up to a chunk, or one item that is longer.
type list struct {
	g  *Gossip
	to string
	m  message
	b  []byte
}

// add says whether the peer can still be reached.
func (l *list) add(it item) bool {
	e := it.append(nil, l.m.typ)
	if len(l.b)+len(e) > chunk && !l.flush() {
		return false
	}
	if len(l.b) == 0 {
		l.b = l.m.append(nil)
	}
	l.b = append(l.b, e...)
	return true
}

func (l *list) flush() bool {
	b := l.b
	l.b = nil
	return len(b) == 0 || l.g.deliver(l.to, b)
}

// deliver sends one message over a stream and says whether it went out.
func (g *Gossip) deliver(to string, b []byte) bool {
	n, ok := g.roster.node(to)
	if !ok || g.ctx.Err() != nil {
		return false
	}
	if len(b) > maxMessage {
		g.counters.sendErrors.Add(1)
		g.refusals.Do(func() { g.log.Error("gossip: message too long", "bytes", len(b), "limit", maxMessage) })
		return true // the next one may do
	}
	if err := g.ml.SendReliable(&n, b); err != nil {
		g.counters.sendErrors.Add(1)
		g.log.Debug("gossip: message not sent", "to", to, "err", err)
		return false
	}
	return true
}
