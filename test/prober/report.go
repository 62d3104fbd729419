package prober

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// Count is what became of frames.
type Count struct {
	// Sent is how many were sent.
	Sent uint64
	// Passed is how many of them arrived anywhere.
	Passed uint64
	// Crossed is how often one arrived at a node that had no tenant in common with its sender.
	Crossed uint64
	// Unknown is how often it can't be said whether one crossed, because a map could not be read.
	Unknown uint64
}

// Dropped is how many arrived nowhere.
func (c Count) Dropped() uint64 { return c.Sent - c.Passed }

func (c *Count) add(d Count) {
	c.Sent += d.Sent
	c.Passed += d.Passed
	c.Crossed += d.Crossed
	c.Unknown += d.Unknown
}

// Crossing is one frame that crossed tenants.
type Crossing struct {
	From, Meant, At string
	Kind            Kind
	Seq             uint32
	Sent, Received  time.Duration // CLOCK_MONOTONIC
}

func (c Crossing) String() string {
	return fmt.Sprintf("%s %d from %s, meant for %s, received by %s after %s", c.Kind, c.Seq, c.From, c.Meant, c.At, c.Received-c.Sent)
}

// Report is what a prober has seen.
type Report struct {
	Total Count
	Kinds map[Kind]Count
	// Pairs counts by sender and the station that was meant, each as "n1>n2".
	Pairs map[string]Count
	// Crossings are the first few.
	Crossings []Crossing
	// TwoTenants is how many readings prove that a node had a tenant by one DPU's map and another by another's.
	TwoTenants int
	// Lost is how many received frames the machine could not keep; they are missing in everything else.
	Lost uint64
	// Readings of the maps, and the longest time from one to the next.
	Readings int
	Longest  time.Duration
}

const maxCrossings = 20

func (p *Prober) report() (*Report, error) {
	r := &Report{Kinds: make(map[Kind]Count), Pairs: make(map[string]Count)}
	var errs []error
	for i, e := range p.endpoints {
		errs = append(errs, e.err)
		lost, err := e.lost()
		errs = append(errs, err)
		r.Lost += lost
		for to := range p.Stations {
			for k := range kinds {
				r.add(p, i, to, k, Count{Sent: p.Sent(i, to, k)})
			}
		}
	}
	type frame struct {
		sender uint8
		seq    uint32
	}
	seen := make(map[frame]bool)
	for at, e := range p.endpoints {
		for _, a := range e.arrivals {
			var c Count
			if f := (frame{a.sender, a.seq}); !seen[f] {
				seen[f] = true
				c.Passed = 1
			}
			switch p.judge(at, a) {
			case never:
				c.Crossed = 1
				r.cross(p, at, a)
			case unknown:
				c.Unknown = 1
			}
			r.add(p, int(a.sender), int(a.meant), a.kind, c)
		}
	}
	var all []*history
	for _, h := range p.histories {
		for _, other := range all {
			r.TwoTenants += conflicts(h, other)
		}
		all = append(all, h)
		r.Readings += len(h.samples)
		r.Longest = max(r.Longest, time.Duration(h.longest()))
	}
	return r, errors.Join(errs...)
}

// judge says whether the frame could have passed lawfully: each DPU on its way must have had the two under one
// tenant at an instant between sending and receiving.
func (p *Prober) judge(at int, a arrival) shared {
	from := int(a.sender)
	result := sometime
	for dpu, h := range p.histories {
		if dpu == p.Stations[from].Home || dpu == p.Stations[at].Home {
			result = min(result, h.common(from, at, a.sent, a.received))
		}
	}
	return result
}

func (r *Report) cross(p *Prober, at int, a arrival) {
	if len(r.Crossings) >= maxCrossings {
		return
	}
	r.Crossings = append(r.Crossings, Crossing{
		From: p.Stations[a.sender].Name, Meant: p.Stations[a.meant].Name, At: p.Stations[at].Name,
		Kind: a.kind, Seq: a.seq, Sent: time.Duration(a.sent), Received: time.Duration(a.received),
	})
}

func (r *Report) add(p *Prober, from, to int, k Kind, c Count) {
	if c == (Count{}) {
		return
	}
	kind, name := r.Kinds[k], p.Stations[from].Name+">"+p.Stations[to].Name
	pair := r.Pairs[name]
	kind.add(c)
	pair.add(c)
	r.Kinds[k], r.Pairs[name] = kind, pair
	r.Total.add(c)
}

// String is a table by kind, and one by sender and receiver.
func (r *Report) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', tabwriter.AlignRight)
	row := func(name string, c Count) {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t\n", name, c.Sent, c.Passed, c.Dropped(), c.Crossed)
	}
	fmt.Fprint(w, "frames\tsent\tpassed\tdropped\tcrossed tenants\t\n")
	for _, k := range Kinds() {
		if c, ok := r.Kinds[k]; ok {
			row(k.String(), c)
		}
	}
	row("total", r.Total)
	_ = w.Flush() // into memory
	fmt.Fprintf(&b, "%d readings of the maps, at most %s apart; %d times a node had two tenants", r.Readings, r.Longest.Round(10*time.Microsecond), r.TwoTenants)
	if r.Lost > 0 {
		fmt.Fprintf(&b, "; %d received frames lost by the machine", r.Lost)
	}
	if r.Total.Unknown > 0 {
		fmt.Fprintf(&b, "; %d frames that nothing can be said of", r.Total.Unknown)
	}
	b.WriteString("\n")
	for _, c := range r.Crossings {
		fmt.Fprintf(&b, "crossed: %s\n", c)
	}
	return b.String()
}
