package explore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"dpud/pkg/record"
	"dpud/pkg/table"
)

// TestStories plays the stories in testdata on the real cores. After each line every safety property is
// checked; one that broke is printed as BROKEN. Run with -rewrite after a change that is meant.
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var s story
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.out.Reset()
			for _, line := range strings.Split(strings.TrimSpace(d.Cmd+" "+argString(d)+"\n"+d.Input), "\n") {
				if err := s.play(strings.Fields(line)); err != nil {
					fmt.Fprintf(&s.out, "%v\n", err)
				}
				if err := s.world.Check(); err != nil {
					fmt.Fprintf(&s.out, "BROKEN %v\n", err)
				}
			}
			if s.out.Len() == 0 {
				return "ok\n"
			}
			return s.out.String()
		})
	})
}

func argString(d *datadriven.TestData) string {
	var a []string
	for _, arg := range d.CmdArgs {
		a = append(a, arg.String())
	}
	return strings.Join(a, " ")
}

type story struct {
	world *World
	out   strings.Builder
}

// play carries out one line. Names of DPUs come first, then what is done or told to them.
func (s *story) play(f []string) error {
	if f[0] == "site" {
		return s.site(f)
	}
	w := s.world
	w.now = w.now.Add(10 * time.Second)
	switch f[0] {
	case "assign":
		return w.Assign(f[1], f[2])
	case "reclaim":
		return w.Reclaim(f[1])
	case "free":
		freed, err := w.Free()
		if !freed {
			fmt.Fprintln(&s.out, "the guard frees nothing")
		}
		return err
	case "restart-management":
		w.RestartManagement()
	case "restart-tenant":
		w.RestartTenant(s.tenant(f[1]))
	case "tenant-hear":
		w.TenantHear(s.tenant(f[1]), s.grant(f[2:]))
	case "flush":
		for _, t := range w.mgmt.Tenants() {
			for _, g := range w.grants {
				w.TenantHear(t.ID, g)
			}
		}
		for _, t := range w.mgmt.Tenants() {
			for w.Flush(t.ID) {
				e := w.entries[len(w.entries)-1]
				fmt.Fprintf(&s.out, "%s: entry n%d g%d r%d deleted=%t\n", t.Name, e.Node, e.Generation, e.Revision, e.Deleted)
			}
		}
	case "flush-tenant":
		for w.Flush(s.tenant(f[1])) {
			e := w.entries[len(w.entries)-1]
			fmt.Fprintf(&s.out, "%s: entry n%d g%d r%d deleted=%t\n", f[1], e.Node, e.Generation, e.Revision, e.Deleted)
		}
	default:
		return s.playDPU(record.DPU(f[0]), f[1], f[2:])
	}
	return nil
}

func (s *story) playDPU(name record.DPU, verb string, f []string) error {
	w := s.world
	d := w.dpus[name]
	if d == nil {
		return fmt.Errorf("unknown line %s %s", name, verb)
	}
	switch verb {
	case "hear":
		switch f[0] {
		case "grant":
			w.Hear(name, s.grant(f[1:]))
		case "entry":
			w.Hear(name, s.entry(f[1:]))
		case "all":
			for _, g := range w.grants {
				w.Hear(name, g)
			}
			for _, e := range w.entries {
				w.Hear(name, e)
			}
		}
	case "gossip":
		w.Gossip(record.DPU(f[0]), name)
	case "lease":
		if !w.Ask(name) {
			return fmt.Errorf("%s asks for none", name)
		}
		w.Answer(name)
		l := w.answers[len(w.answers)-1]
		w.Accept(l)
		fmt.Fprintf(&s.out, "boot %d, %d grants, unchanged=%t refused=%q\n", l.Boot, len(l.Grants), l.Unchanged, l.Refused)
	case "accept-old":
		w.Ask(name)
		w.Accept(w.answers[0])
	case "step":
		return s.steps(name, 1)
	case "run":
		return s.steps(name, 100)
	case "kill":
		w.Kill(name)
	case "start":
		w.Start(name)
	case "restart":
		w.Kill(name)
		w.Start(name)
	case "reboot":
		w.PowerLoss(name)
		w.Start(name)
	case "unguard":
		d.unguarded = true
	case "guard":
		d.unguarded = false
		d.core.Retry()
	case "ports": // name=ifindex, for all that there are
		ports := make(map[string]uint32)
		for _, p := range f {
			var i uint32
			name, index, _ := strings.Cut(p, "=")
			_, _ = fmt.Sscan(index, &i)
			ports[name] = i
		}
		d.core.SetPorts(ports)
	case "audit":
		d.core.Audit()
	case "edit": // somebody's bpftool: the node's isolation entry is taken out
		delete(d.kernel, table.Key{Map: table.NodeTenant, Node: nodeID(f[0])})
	case "confirm":
		for _, c := range d.core.Unanswered() {
			fmt.Fprintf(&s.out, "%s n%d g%d boot %d\n", c.State, c.Node, c.Generation, c.Boot)
		}
		from := len(w.confirmations)
		w.Send(name)
		for _, c := range w.confirmations[from:] {
			if err := w.Receive(c, true); err != nil {
				return err
			}
		}
	case "again": // every confirmation ever sent arrives once more
		for _, c := range w.confirmations {
			if err := w.Receive(c, false); err != nil {
				return err
			}
		}
	case "maps":
		keys := make([]table.Key, 0, len(d.kernel))
		for k := range d.kernel {
			keys = append(keys, k)
		}
		slices.SortFunc(keys, table.CompareKeys)
		for _, k := range keys {
			v := d.kernel[k]
			fmt.Fprintf(&s.out, "%s tenant=%d generation=%d node=%d ifindex=%d\n", k, v.Tenant, v.Generation, v.Node, v.Ifindex)
		}
	default:
		return fmt.Errorf("unknown line %s %s", name, verb)
	}
	return nil
}

func (s *story) site(f []string) error {
	var d, n, t int
	if _, err := fmt.Sscanf(strings.Join(f, " "), "site dpus=%d nodes=%d tenants=%d", &d, &n, &t); err != nil {
		return err
	}
	w, err := New(d, n, t)
	if err == nil {
		s.world = w
	}
	return err
}

// steps carries out kernel operations until there are no more, at the most n.
func (s *story) steps(name record.DPU, n int) error {
	walk := NewWalk(s.world, 0)
	s.world.trace = func(format string, args ...any) { fmt.Fprintf(&s.out, format+"\n", args...) }
	defer func() { s.world.trace = func(string, ...any) {} }()
	for range n {
		before := s.out.Len()
		if err := walk.step(name); err != nil {
			return fmt.Errorf("BROKEN %w", err)
		}
		if err := s.world.Check(); err != nil {
			return fmt.Errorf("BROKEN %w", err)
		}
		if s.out.Len() == before {
			if n > 1 && before == 0 {
				fmt.Fprintf(&s.out, "%s: nothing to do\n", name)
			}
			return nil
		}
	}
	return nil
}

func nodeID(name string) record.NodeID {
	var n record.NodeID
	_, _ = fmt.Sscanf(name, "n%d", &n)
	return n
}

func (s *story) tenant(name string) record.TenantID {
	for _, t := range s.world.mgmt.Tenants() {
		if t.Name == name {
			return t.ID
		}
	}
	panic("no tenant " + name)
}

// grant finds the version "n1 g2 revoked" among all that were ever committed.
func (s *story) grant(f []string) *record.Grant {
	for _, g := range s.world.grants {
		if g.Name == f[0] && fmt.Sprintf("g%d", g.Generation) == f[1] && g.Phase.String() == f[2] {
			return g
		}
	}
	panic(fmt.Sprintf("no grant %v", f))
}

// entry finds the version "t1 n1 g2" or "t1 n1 g2 deleted".
func (s *story) entry(f []string) *record.Entry {
	for _, e := range s.world.entries {
		if e.Tenant == s.tenant(f[0]) && e.Node == nodeID(f[1]) && fmt.Sprintf("g%d", e.Generation) == f[2] && e.Deleted == (len(f) > 3) {
			return e
		}
	}
	panic(fmt.Sprintf("no entry %v", f))
}
