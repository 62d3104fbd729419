package prober

import (
	"math"
	"slices"
	"sort"
	"sync"

	"dpud/pkg/record"
)

// Assignment is what the node_tenant map of one DPU held: the tenant of each station, 0 for none.
type Assignment []record.TenantID

// sample is one reading of a map, which took from a to b: each value was in the map at some instant between.
// Times are of CLOCK_MONOTONIC in ns.
type sample struct {
	a, b  int64
	state Assignment // nil: could not be read, so nothing is known
}

// history is what one DPU's map held over time. It is safe for concurrent use.
type history struct {
	mu      sync.Mutex
	samples []sample
}

// add appends a reading; equal states in a row share memory.
func (h *history) add(s sample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.samples); n > 0 && s.state != nil && slices.Equal(h.samples[n-1].state, s.state) {
		s.state = h.samples[n-1].state
	}
	h.samples = append(h.samples, s)
}

type shared uint8

const (
	never shared = iota
	unknown
	sometime
)

// common says whether stations i and j had a common tenant in this map at an instant of [from, to].
//
// Between two readings the map is unknown, so the last reading before and the first one after count too: a
// reading counts if the time from the start of the one before it to the end of the one behind it touches
// [from, to]. A frame is thus wrongly called a crossing only if an assignment came and went between two
// readings, and a crossing is missed only within two readings' distance of an assignment that made it lawful.
func (h *history) common(i, j int, from, to int64) shared {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.samples)
	next := func(k int) int64 {
		if k+1 < n {
			return h.samples[k+1].b
		}
		return math.MaxInt64
	}
	result := never
	if n == 0 {
		return unknown
	}
	for k := sort.Search(n, func(k int) bool { return next(k) >= from }); k < n; k++ {
		if k > 0 && h.samples[k-1].a > to {
			break
		}
		s := h.samples[k].state
		switch {
		case s == nil:
			result = unknown
		case s[i] != 0 && s[i] == s[j]:
			return sometime
		}
	}
	return result
}

// longest returns the longest time between the starts of two readings, in ns: how much [history.common] can
// miss.
func (h *history) longest() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	var most int64
	for k := 1; k < len(h.samples); k++ {
		most = max(most, h.samples[k].a-h.samples[k-1].a)
	}
	return most
}

// conflicts counts the readings that prove a station to have had two tenants at once: one map read t before
// and after the other one read something else, which is neither t nor nothing.
func conflicts(x, y *history) int {
	return oneSided(x, y) + oneSided(y, x)
}

func oneSided(x, y *history) int {
	count, k := 0, 0
	for _, s := range y.samples {
		for k+1 < len(x.samples) && x.samples[k+1].b <= s.a {
			k++
		}
		if k+1 >= len(x.samples) || x.samples[k].b > s.a || x.samples[k+1].a < s.b {
			continue
		}
		before, after := x.samples[k].state, x.samples[k+1].state
		if before == nil || after == nil || s.state == nil {
			continue
		}
		for i, t := range s.state {
			if t != 0 && before[i] != 0 && before[i] == after[i] && before[i] != t {
				count++
				break
			}
		}
	}
	return count
}
