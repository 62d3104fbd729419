package gossip

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

type counters struct {
	announced, merged, stale, refused    atomic.Uint64
	malformed, dropped                   atomic.Uint64
	syncs, pulls, sendErrors             atomic.Uint64
	joins, joinsFailed                   atomic.Uint64
	strangers, conflicts, logsSuppressed atomic.Uint64
}

// Stats are counts since Join, except Members and Queue, which are as of now.
type Stats struct {
	Members int // live, this one included
	Queue   int // broadcasts waiting

	Announced uint64 // broadcasts queued, own and relayed
	Merged    uint64 // records received that were news
	Stale     uint64 // records received that were held already
	Refused   uint64 // records that the owner refused
	Malformed uint64 // messages that could not be parsed
	Dropped   uint64 // messages and jobs dropped because a queue was full

	Syncs      uint64 // digests received that differed
	Pulls      uint64 // keys asked for
	SendErrors uint64 // messages that did not reach a member

	Joins       uint64 // seeds and gone members reached
	JoinsFailed uint64 // attempts that failed

	Strangers      uint64 // messages refused for their label or key
	Conflicts      uint64 // sightings of another member under a name that is taken
	LogsSuppressed uint64 // log lines of memberlist beyond the limit
}

// Stats returns the present counts.
func (g *Gossip) Stats() Stats {
	c := &g.counters
	return Stats{
		Members:        g.roster.size(),
		Queue:          g.QueueLen(),
		Announced:      c.announced.Load(),
		Merged:         c.merged.Load(),
		Stale:          c.stale.Load(),
		Refused:        c.refused.Load(),
		Malformed:      c.malformed.Load(),
		Dropped:        c.dropped.Load(),
		Syncs:          c.syncs.Load(),
		Pulls:          c.pulls.Load(),
		SendErrors:     c.sendErrors.Load(),
		Joins:          c.joins.Load(),
		JoinsFailed:    c.joinsFailed.Load(),
		Strangers:      c.strangers.Load(),
		Conflicts:      c.conflicts.Load(),
		LogsSuppressed: c.logsSuppressed.Load(),
	}
}

var (
	descMembers   = prometheus.NewDesc("dpud_gossip_members", "Live members of the pool, this one included.", nil, nil)
	descQueue     = prometheus.NewDesc("dpud_gossip_queue_length", "Broadcasts that wait or are not yet repeated often enough.", nil, nil)
	descAnnounced = prometheus.NewDesc("dpud_gossip_broadcasts_total", "Broadcasts queued, own and relayed.", nil, nil)
	descReceived  = prometheus.NewDesc("dpud_gossip_records_received_total", "Records received, by what became of them.", []string{"result"}, nil)
	descMalformed = prometheus.NewDesc("dpud_gossip_malformed_messages_total", "Messages that could not be parsed.", nil, nil)
	descDropped   = prometheus.NewDesc("dpud_gossip_dropped_total", "Messages and transfers dropped because a queue was full.", nil, nil)
	descSyncs     = prometheus.NewDesc("dpud_gossip_digest_differences_total", "Digests received that differed.", nil, nil)
	descPulls     = prometheus.NewDesc("dpud_gossip_pulled_records_total", "Records asked for.", nil, nil)
	descErrors    = prometheus.NewDesc("dpud_gossip_send_errors_total", "Messages that did not reach a member.", nil, nil)
	descJoins     = prometheus.NewDesc("dpud_gossip_join_attempts_total", "Attempts to reach seeds and gone members.", []string{"result"}, nil)
	descStrangers = prometheus.NewDesc("dpud_gossip_strangers_total", "Messages refused for their label or key.", nil, nil)
	descConflicts = prometheus.NewDesc("dpud_gossip_name_conflicts_total", "Sightings of another member under a name that is taken.", nil, nil)
)

var _ prometheus.Collector = (*Gossip)(nil)

// Describe implements prometheus.Collector.
func (g *Gossip) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descMembers, descQueue, descAnnounced, descReceived, descMalformed, descDropped,
		descSyncs, descPulls, descErrors, descJoins, descStrangers, descConflicts,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (g *Gossip) Collect(ch chan<- prometheus.Metric) {
	s := g.Stats()
	gauge := func(d *prometheus.Desc, v int) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v))
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(descMembers, s.Members)
	gauge(descQueue, s.Queue)
	count(descAnnounced, s.Announced)
	count(descReceived, s.Merged, "news")
	count(descReceived, s.Stale, "held")
	count(descReceived, s.Refused, "refused")
	count(descMalformed, s.Malformed)
	count(descDropped, s.Dropped)
	count(descSyncs, s.Syncs)
	count(descPulls, s.Pulls)
	count(descErrors, s.SendErrors)
	count(descJoins, s.Joins, "joined")
	count(descJoins, s.JoinsFailed, "failed")
	count(descStrangers, s.Strangers)
	count(descConflicts, s.Conflicts)
}
