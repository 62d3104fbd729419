package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"dpud/pkg/record"
)

// troubles keeps what operators must hear of DPUs and no record tells: what was refused, and that two runs answer to
// one name. It is for looking only; nothing is decided on it. Its methods are safe for concurrent use.
type troubles struct {
	mu   sync.Mutex
	dpus map[record.DPU]*trouble
}

type trouble struct {
	lease, confirmation refused
	// runs are the registered run and the one before it; returns, when the one before last took over again.
	runs    [2]string
	returns [2]time.Time
}

// refused is the last refusal of a kind.
type refused struct {
	why    string // "" : none
	at     time.Time
	logged time.Time
	run    string // that was refused, as far as it is known
}

const (
	// quiet: a refused dpud asks again within 8 s, so a refusal of this age is over if a lease was granted since.
	quiet = 30 * time.Second
	// logEvery is how often the same refusal is logged.
	logEvery = time.Minute
	// confirmationShown: a refused confirmation may never be repeated, so it is shown for long.
	confirmationShown = 10 * time.Minute
	// twinsWithin is how fast two runs take turns that live at the same time; either asks every 5 to 8 s.
	twinsWithin = time.Minute
	// maxTroubles and maxStrangers bound what callers with made-up names can fill.
	maxTroubles  = 20_000
	maxStrangers = 20
)

func newTroubles() *troubles { return &troubles{dpus: make(map[record.DPU]*trouble)} }

// of returns the trouble with a DPU; the lock is held.
func (t *troubles) of(d record.DPU) *trouble {
	x := t.dpus[d]
	if x == nil {
		x = new(trouble)
		if len(t.dpus) < maxTroubles {
			t.dpus[d] = x
		}
	}
	return x
}

// refuseLease notes why a DPU got no lease; it says whether that is worth a line in the log.
func (t *troubles) refuseLease(d record.DPU, run, why string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.of(d).lease.note(run, why, now)
}

// refuseConfirmation does the same for confirmations.
func (t *troubles) refuseConfirmation(d record.DPU, why string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.of(d).confirmation.note("", why, now)
}

func (r *refused) note(run, why string, now time.Time) (log bool) {
	log = r.why != why || now.Sub(r.logged) >= logEvery
	r.run, r.why, r.at = run, why, now
	if log {
		r.logged = now
	}
	return log
}

// granted ends the refusal of the run that now has a lease, and one that nobody repeats any more.
func (t *troubles) granted(d record.DPU, run string, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x := t.dpus[d]; x != nil && (x.lease.run == run || now.Sub(x.lease.at) >= quiet) {
		x.lease = refused{}
	}
}

// registered notes which run has the newest boot, and says whether that shows for the first time that two live
// runs take it from each other. One return alone may be a late message of a run that has ended.
func (t *troubles) registered(d record.DPU, run string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.of(d)
	if run == x.runs[0] {
		return false
	}
	back := run == x.runs[1]
	x.runs = [2]string{run, x.runs[0]}
	if !back {
		x.returns = [2]time.Time{}
		return false
	}
	known := x.twins(now)
	x.returns = [2]time.Time{now, x.returns[0]}
	return x.twins(now) && !known
}

// twins says whether two runs took turns lately.
func (x *trouble) twins(now time.Time) bool {
	return !x.returns[1].IsZero() && x.returns[0].Sub(x.returns[1]) <= twinsWithin && now.Sub(x.returns[0]) <= twinsWithin
}

func twinsSentence(d record.DPU) string {
	return fmt.Sprintf("two runs of dpud answer to %s and take its boot from each other; stop one, or give each its own name and hardware_id", d)
}

// texts says what is wrong with which DPU.
func (t *troubles) texts(now time.Time) map[record.DPU]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[record.DPU]string)
	for d, x := range t.dpus {
		if text := x.text(d, now); text != "" {
			all[d] = text
		}
	}
	return all
}

func (x *trouble) text(d record.DPU, now time.Time) string {
	var all []string
	if x.twins(now) {
		all = append(all, twinsSentence(d))
	}
	if r := x.lease; r.why != "" {
		all = append(all, fmt.Sprintf("lease refused %s ago: %s", now.Sub(r.at).Round(time.Second), r.why))
	}
	if r := x.confirmation; r.why != "" && now.Sub(r.at) < confirmationShown {
		all = append(all, fmt.Sprintf("confirmation refused %s ago: %s", now.Sub(r.at).Round(time.Second), r.why))
	}
	return strings.Join(all, "; ")
}

// strangers returns those who asked for a lease lately and are not known, in order of name.
func (t *troubles) strangers(known func(record.DPU) bool, now time.Time) []record.DPU {
	t.mu.Lock()
	defer t.mu.Unlock()
	var names []record.DPU
	for d, x := range t.dpus {
		if d != "" && x.lease.why != "" && now.Sub(x.lease.at) < confirmationShown && !known(d) {
			names = append(names, d)
		}
	}
	slices.SortFunc(names, cmp.Compare)
	return names[:min(len(names), maxStrangers)]
}
