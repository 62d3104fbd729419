package dpud

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"dpud/internal/dpud/ports"
	"dpud/pkg/record"
)

// metrics gathers at each scrape what the kernel, the loop and the ports say, and counts the rest itself.
type metrics struct {
	machine machine
	loop    *loop
	records *records

	barriers prometheus.Histogram
	issued   [record.Cleared + 1]atomic.Uint64
	failed   atomic.Uint64 // scrapes that could not read something
}

// scrapeTimeout bounds the wait for the loop.
const scrapeTimeout = 2 * time.Second

var (
	descPackets     = prometheus.NewDesc("dpud_packets_total", "Packets judged, by hook, verdict and reason; one that meets both hooks is counted at both.", []string{"hook", "verdict", "reason"}, nil)
	descBytes       = prometheus.NewDesc("dpud_packet_bytes_total", "Bytes of the packets judged, by hook, verdict and reason.", []string{"hook", "verdict", "reason"}, nil)
	descWanted      = prometheus.NewDesc("dpud_entries_wanted", "Nodes that are to be programmed here.", nil, nil)
	descProgrammed  = prometheus.NewDesc("dpud_entries_programmed", "Nodes that the kernel holds a tenant for.", nil, nil)
	descConfirmed   = prometheus.NewDesc("dpud_confirmations_total", "Confirmations issued, by state.", []string{"state"}, nil)
	descUnanswered  = prometheus.NewDesc("dpud_confirmations_unanswered", "Confirmations that no controller has answered yet.", nil, nil)
	descSteps       = prometheus.NewDesc("dpud_reconcile_steps_total", "Operations on the kernel.", nil, nil)
	descErrors      = prometheus.NewDesc("dpud_reconcile_errors_total", "Operations on the kernel that failed.", nil, nil)
	descRepairs     = prometheus.NewDesc("dpud_reconcile_repairs_total", "Map entries found changed by somebody else.", nil, nil)
	descLeaseHeld   = prometheus.NewDesc("dpud_lease_held", "1 if this run holds a lease.", nil, nil)
	descLeaseAge    = prometheus.NewDesc("dpud_lease_age_seconds", "Time since the newest lease was asked for; absent without one.", nil, nil)
	descGuarded     = prometheus.NewDesc("dpud_ports_guarded", "Ports that run the programs.", nil, nil)
	descUnguarded   = prometheus.NewDesc("dpud_ports_unguarded", "Ports that are there and do not run the programs.", nil, nil)
	descProblems    = prometheus.NewDesc("dpud_ports_with_problem", "Ports that can't be used, for whatever reason; the status says which.", nil, nil)
	descFound       = prometheus.NewDesc("dpud_ports_found_unguarded_total", "Times that a port was found up without the programs and taken down.", nil, nil)
	descRefused     = prometheus.NewDesc("dpud_records_refused_total", "Records refused, by reason.", []string{"reason"}, nil)
	descScrapeError = prometheus.NewDesc("dpud_scrape_errors_total", "Scrapes that lack something because the kernel or the loop did not answer.", nil, nil)
)

func newMetrics(m machine, l *loop, r *records) *metrics {
	return &metrics{machine: m, loop: l, records: r, barriers: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "dpud_barrier_duration_seconds", Help: "Time that the kernel took to wait for running programs.",
		Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1},
	})}
}

// registry returns one with everything in it that dpud serves.
func (m *metrics) registry(version string, more ...prometheus.Collector) *prometheus.Registry {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "dpud_build_info", Help: "1, with the version that runs.", ConstLabels: prometheus.Labels{"version": version},
	})
	info.Set(1)
	r := prometheus.NewRegistry()
	r.MustRegister(m, m.barriers, info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	r.MustRegister(more...)
	return r
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descPackets, descBytes, descWanted, descProgrammed, descConfirmed, descUnanswered, descSteps, descErrors, descRepairs,
		descLeaseHeld, descLeaseAge, descGuarded, descUnguarded, descProblems, descFound, descRefused, descScrapeError,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	if counters, err := m.machine.tables.Counters(); err != nil {
		m.failed.Add(1)
	} else {
		for _, c := range counters {
			count(descPackets, c.Packets, c.Hook, verdict(c.Reason.Dropped()), c.Reason.Label())
			count(descBytes, c.Bytes, c.Hook, verdict(c.Reason.Dropped()), c.Reason.Label())
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	if v, err := m.loop.look(ctx, false); err != nil {
		m.failed.Add(1)
	} else {
		collectView(v, gauge, count)
	}
	for s := record.Programmed; s <= record.Cleared; s++ {
		count(descConfirmed, m.issued[s].Load(), s.String())
	}
	var guarded, unguarded, problems float64
	for _, p := range m.machine.ports() {
		switch {
		case p.Guarded:
			guarded++
		case p.Index != 0:
			unguarded++
		}
		if p.Problem != "" {
			problems++
		}
	}
	gauge(descGuarded, guarded)
	gauge(descUnguarded, unguarded)
	gauge(descProblems, problems)
	count(descFound, m.machine.foundUnguarded())
	count(descRefused, m.records.refusedSite.Load(), "site")
	count(descRefused, m.records.refusedContent.Load(), "malformed")
	count(descScrapeError, m.failed.Load())
}

func collectView(v view, gauge func(*prometheus.Desc, float64), count func(*prometheus.Desc, uint64, ...string)) {
	gauge(descWanted, float64(v.wanted))
	gauge(descProgrammed, float64(v.programmed))
	gauge(descUnanswered, float64(v.unanswered))
	count(descSteps, v.stats.Steps)
	count(descErrors, v.stats.Errors)
	count(descRepairs, v.stats.Repairs)
	held := 0.0
	if v.held {
		held = 1
		gauge(descLeaseAge, time.Since(v.asked).Seconds())
	}
	gauge(descLeaseHeld, held)
}

// problemsOf lists what is wrong with ports, for a person.
func problemsOf(list []ports.Port) string {
	var b []string
	for _, p := range list {
		if p.Problem != "" {
			b = append(b, p.Name+": "+p.Problem)
		}
	}
	return strings.Join(b, "; ")
}
