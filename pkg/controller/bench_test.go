package controller

import (
	"slices"
	"testing"
	"time"
)

// BenchmarkMainJob measures the controller's share of the main job: two DPUs whose kernels cost nothing,
// direct messages over loopback, real commits to the embedded store.
func BenchmarkMainJob(b *testing.B) {
	w := newWorld(b).start().apply()
	w.dpu("d1")
	w.dpu("d2")
	w.assign("n2", "t1")
	w.await("n2", programmed)
	var assigns, reclaims []time.Duration
	for b.Loop() {
		began := time.Now()
		w.assign("n1", "t1")
		w.await("n1", programmed)
		assigns = append(assigns, time.Since(began))
		began = time.Now()
		w.reclaim("n1")
		w.await("n1", free)
		reclaims = append(reclaims, time.Since(began))
	}
	for name, d := range map[string][]time.Duration{"assign": assigns, "reclaim": reclaims} {
		slices.Sort(d)
		b.ReportMetric(float64(d[len(d)/2].Microseconds())/1e3, name+"-p50-ms")
		b.ReportMetric(float64(d[len(d)*99/100].Microseconds())/1e3, name+"-p99-ms")
	}
}
