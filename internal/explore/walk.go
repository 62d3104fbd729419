package explore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"dpud/pkg/control/management"
	"dpud/pkg/record"
	"dpud/pkg/table"
)

// Walk takes random steps from a seed, faults included, and checks every property after each. Then the faults
// end, and it checks that everything asked for gets done.
type Walk struct {
	*World
	rng *rand.Rand
	// Steps done, by action.
	Done map[string]int
}

// NewWalk starts a walk.
func NewWalk(w *World, seed uint64) *Walk {
	return &Walk{World: w, rng: rand.New(rand.NewPCG(seed, 1)), Done: make(map[string]int)}
}

type action struct {
	name   string
	weight int
	do     func() error
}

// Run takes n random steps. The error names the step and the property that it broke.
func (w *Walk) Run(n int) error {
	actions := w.actions()
	total := 0
	for _, a := range actions {
		total += a.weight
	}
	for i := range n {
		r := w.rng.IntN(total)
		for _, a := range actions {
			if r -= a.weight; r >= 0 {
				continue
			}
			if err := a.do(); err != nil {
				return fmt.Errorf("step %d, %s: %w", i, a.name, err)
			}
			if err := w.Check(); err != nil {
				return fmt.Errorf("step %d, %s: %w", i, a.name, err)
			}
			w.Done[a.name]++
			break
		}
		w.now = w.now.Add(50 * time.Millisecond)
	}
	return nil
}

func pick[T any](w *Walk, s []T) (t T, ok bool) {
	if len(s) == 0 {
		return t, false
	}
	return s[w.rng.IntN(len(s))], true
}

func (w *Walk) dpu() record.DPU { d, _ := pick(w, w.Site.DPUs); return d.Name }

func (w *Walk) tenant() record.TenantID {
	return record.TenantID(1 + w.rng.IntN(len(w.Site.Tenants)))
}

// actions are the steps of the walk with their relative frequency.
func (w *Walk) actions() []action {
	return []action{
		{"assign", 4, func() error {
			n, _ := pick(w, w.Site.Nodes)
			t, _ := pick(w, w.Site.Tenants)
			return allowed(w.Assign(n.Name, t.Name))
		}},
		{"reclaim", 4, func() error { n, _ := pick(w, w.Site.Nodes); return allowed(w.Reclaim(n.Name)) }},
		{"free", 4, func() error { _, err := w.Free(); return err }},
		{"tenant hears", 10, func() error {
			if g, ok := pick(w, w.grants); ok {
				w.TenantHear(w.tenant(), g)
			}
			return nil
		}},
		{"flush", 8, func() error { w.Flush(w.tenant()); return nil }},
		{"hear grant", 12, func() error {
			if g, ok := pick(w, w.grants); ok {
				w.Hear(w.dpu(), g)
			}
			return nil
		}},
		{"hear newest grant", 8, func() error {
			if n := len(w.grants); n > 0 {
				w.Hear(w.dpu(), w.grants[n-1])
			}
			return nil
		}},
		{"hear entry", 12, func() error {
			if e, ok := pick(w, w.entries); ok {
				w.Hear(w.dpu(), e)
			}
			return nil
		}},
		{"hear newest entry", 8, func() error {
			if n := len(w.entries); n > 0 {
				w.Hear(w.dpu(), w.entries[n-1])
			}
			return nil
		}},
		{"gossip", 6, func() error { w.Gossip(w.dpu(), w.dpu()); return nil }},
		{"ask", 6, func() error { w.Ask(w.dpu()); return nil }},
		{"answer", 6, func() error { w.Answer(w.dpu()); return nil }},
		{"accept", 6, func() error {
			if n := len(w.answers); n > 0 {
				w.Accept(w.answers[n-1])
			}
			return nil
		}},
		{"accept old", 2, func() error {
			if l, ok := pick(w, w.answers); ok {
				w.Accept(l)
			}
			return nil
		}},
		{"step", 60, func() error { return w.step(w.dpu()) }},
		{"send", 8, func() error { w.Send(w.dpu()); return nil }},
		{"receive", 8, func() error {
			if f, ok := pick(w, w.confirmations); ok {
				return w.Receive(f, w.rng.IntN(2) == 0)
			}
			return nil
		}},
		{"receive newest", 6, func() error {
			if n := len(w.confirmations); n > 0 {
				return w.Receive(w.confirmations[n-1], true)
			}
			return nil
		}},
		{"restart management", 1, func() error { w.RestartManagement(); return nil }},
		{"restart tenant", 1, func() error { w.RestartTenant(w.tenant()); return nil }},
		{"restart dpud", 2, func() error { d := w.dpu(); w.Kill(d); w.Start(d); return nil }},
		{"crash dpud", 2, func() error {
			d := w.dpu()
			_, err := w.Crash(d)
			w.Kill(d)
			w.Start(d)
			return err
		}},
		{"power loss", 1, func() error { d := w.dpu(); w.PowerLoss(d); w.Start(d); return nil }},
		{"unguard", 1, func() error { d := w.dpus[w.dpu()]; d.unguarded = !d.unguarded; return nil }},
		{"fail", 3, func() error { w.dpus[w.dpu()].fails = failure(1 + w.rng.IntN(2)); return nil }},
		{"retry", 3, func() error {
			if d := w.dpus[w.dpu()]; d.core != nil {
				d.core.Retry()
			}
			return nil
		}},
		{"audit", 1, func() error {
			if d := w.dpus[w.dpu()]; d.core != nil {
				d.core.Audit()
			}
			return nil
		}},
	}
}

// allowed passes a refusal by a precondition: it is an outcome, not a failure.
func allowed(err error) error {
	if errors.Is(err, management.ErrPrecondition) {
		return nil
	}
	return err
}

// step carries out one kernel operation and checks what it confirms.
func (w *Walk) step(name record.DPU) error {
	d := w.dpus[name]
	before := make(map[record.NodeID]uint64)
	if d.core != nil {
		for _, f := range d.core.Unanswered() {
			before[f.Node] = f.Sequence
		}
	}
	if _, _, err := w.Step(name); err != nil {
		return err
	}
	return w.checkProofs(d, before)
}

// Heal ends all faults, lets everybody do and hear everything, and checks that every lasting assignment is
// programmed and every reclaim has ended. It fails if that takes more than the given number of rounds.
func (w *Walk) Heal(rounds int) error {
	for range rounds {
		w.now = w.now.Add(10 * time.Second)
		w.round()
		for steps := 0; ; steps++ {
			if steps > 10_000 {
				return fmt.Errorf("property Completes: %d kernel operations and no end", steps)
			}
			progress := false
			for _, d := range w.Site.DPUs {
				_, did, err := w.Step(d.Name)
				if err == nil {
					err = w.Check()
				}
				if err != nil {
					return fmt.Errorf("healing: %w", err)
				}
				progress = progress || did
			}
			if !progress {
				break
			}
		}
		for _, d := range w.Site.DPUs {
			w.Send(d.Name)
		}
		for _, f := range w.confirmations {
			if err := w.Receive(f, true); err != nil {
				return err
			}
		}
		for range w.Site.Nodes {
			if freed, err := w.Free(); err != nil {
				return err
			} else if !freed {
				break
			}
		}
		if w.lacking() == "" {
			return nil
		}
	}
	return fmt.Errorf("property Completes: after %d rounds without faults %s", rounds, w.lacking())
}

// round delivers every newest message once.
func (w *Walk) round() {
	for t := range w.tenants {
		for _, g := range w.grants {
			w.TenantHear(t, g)
		}
		for steps := 0; steps < 1000 && w.Flush(t); steps++ {
			continue
		}
	}
	for _, s := range w.Site.DPUs {
		d := w.dpus[s.Name]
		d.unguarded, d.fails = false, works
		if d.core == nil {
			w.Start(s.Name)
		}
		d.core.Retry()
		if w.Ask(s.Name) {
			w.Answer(s.Name)
			w.Accept(w.answers[len(w.answers)-1])
		}
		for _, e := range w.entries {
			w.Hear(s.Name, e)
		}
	}
}

// lacking says what has been asked for and is not done; "" when nothing is.
func (w *Walk) lacking() string {
	for i := range w.Site.Nodes {
		n := record.NodeID(i + 1)
		g := w.register(n)
		if g == nil || g.Phase == record.Free {
			continue
		}
		if g.Phase == record.Revoked {
			return fmt.Sprintf("node %d is still being reclaimed", n)
		}
		for _, d := range w.Site.DPUs {
			if w.dpus[d.Name].kernel[table.Key{Map: table.NodeTenant, Node: n}].Tenant != g.Tenant {
				return fmt.Sprintf("node %d is not programmed on %s", n, d.Name)
			}
		}
		if missing := w.mgmt.Unprogrammed(g); len(missing) > 0 {
			return fmt.Sprintf("node %d is not confirmed by %v", n, missing)
		}
	}
	return ""
}
