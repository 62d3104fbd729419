package controller

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"dpud/pkg/record"
)

// metrics of one controller, in a registry of its own.
type metrics struct {
	registry   *prometheus.Registry
	assign     prometheus.Histogram
	reclaim    prometheus.Histogram
	txn        prometheus.Histogram
	conflicts  prometheus.Counter
	pushErrors *prometheus.CounterVec
	refused    *prometheus.CounterVec
	// unconfirmed counts confirmations that can't be true.
	unconfirmed *prometheus.CounterVec
}

// durations are bucket bounds in seconds: dense where the aims are (10 ms, 25 ms), up to an hour for a DPU
// that is being repaired.
var durations = []float64{.001, .0025, .005, .0075, .01, .015, .02, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 600, 3600}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		assign: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "dpud_controller_assign_duration_seconds", Buckets: durations,
			Help: "Time from the commit of an assignment until every designated DPU confirmed it.",
		}),
		reclaim: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "dpud_controller_reclaim_duration_seconds", Buckets: durations,
			Help: "Time from the commit of a reclaim until the node was free.",
		}),
		txn: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "dpud_controller_store_transaction_duration_seconds", Buckets: durations,
			Help: "Time that the store took for a transaction.",
		}),
		conflicts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "dpud_controller_store_conflicts_total",
			Help: "Transactions that lost against another change and were decided again.",
		}),
		pushErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dpud_controller_push_errors_total",
			Help: "Direct messages to a DPU that were not answered, or not accepted.",
		}, []string{"dpu"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dpud_controller_leases_refused_total",
			Help: "Lease requests of a DPU that were refused.",
		}, []string{"dpu"}),
		unconfirmed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dpud_controller_confirmations_refused_total",
			Help: "Confirmations of a DPU that were refused because they can't be true.",
		}, []string{"dpu"}),
	}
	m.registry.MustRegister(m.assign, m.reclaim, m.txn, m.conflicts, m.pushErrors, m.refused, m.unconfirmed,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

var (
	descInfo    = prometheus.NewDesc("dpud_controller_info", "Always 1; the site and the version.", []string{"site_id", "version"}, nil)
	descNodes   = prometheus.NewDesc("dpud_controller_nodes", "Nodes of the site by the phase of their grant.", []string{"phase"}, nil)
	descProofs  = prometheus.NewDesc("dpud_controller_confirmations", "What DPUs last confirmed of nodes, by state.", []string{"state"}, nil)
	descPending = prometheus.NewDesc("dpud_controller_push_pending_records", "Records that a DPU has not yet answered.", []string{"dpu"}, nil)
	descReached = prometheus.NewDesc("dpud_controller_dpu_reachable", "Whether the last direct message to a DPU was answered.", []string{"dpu"}, nil)
	descLease   = prometheus.NewDesc("dpud_controller_lease_age_seconds", "Time since a DPU last asked this controller for a lease.", []string{"dpu"}, nil)
)

// Describe implements prometheus.Collector.
func (c *Controller) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descInfo, descNodes, descProofs, descPending, descReached, descLease} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Controller) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(descInfo, 1, string(c.site), c.cfg.Version)
	phases, states := c.plane.counts()
	for p := record.Granted; p <= record.Free; p++ {
		gauge(descNodes, float64(phases[p]), p.String())
	}
	for s := record.Programmed; s <= record.Cleared; s++ {
		gauge(descProofs, float64(states[s]), s.String())
	}
	for _, l := range c.dpuLinks() {
		gauge(descPending, float64(l.pending), string(l.dpu))
		reached := 0.0
		if l.reachable {
			reached = 1
		}
		gauge(descReached, reached, string(l.dpu))
		if !l.asked.IsZero() {
			gauge(descLease, time.Since(l.asked).Seconds(), string(l.dpu))
		}
	}
}

// counts returns the nodes by phase and the confirmations by state.
func (p *plane) counts() (phases map[record.Phase]int, states map[record.State]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	phases, states = make(map[record.Phase]int), make(map[record.State]int)
	for _, n := range p.core.Nodes() {
		phase := record.Free
		if g := p.grants[n.ID]; g != nil {
			phase = g.Phase
		}
		phases[phase]++
	}
	for _, f := range p.proofs {
		states[f.State]++
	}
	return phases, states
}
