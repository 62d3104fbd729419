package management

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"dpud/pkg/record"
	"dpud/pkg/site"
)

// TestStories plays the stories in testdata against a store that is a map. Run with -rewrite after a change that
// is meant.
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := newStory(t)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.out.Reset()
			if d.Cmd == "apply" {
				s.apply(t, d.Input)
			} else {
				var args []string
				for _, a := range d.CmdArgs {
					args = append(args, a.String())
				}
				for _, line := range strings.Split(strings.TrimSpace(d.Cmd+" "+strings.Join(args, " ")+"\n"+d.Input), "\n") {
					s.play(t, strings.Fields(line))
				}
			}
			return s.out.String()
		})
	})
}

type story struct {
	core     *Core
	store    map[Key]held
	revision int64
	out      strings.Builder
	late     Txn // a transaction decided, and held back by "decide"
}

func newStory(t *testing.T) *story {
	t.Helper()
	s := &story{core: New(), store: make(map[Key]held)}
	txn, err := s.core.Init("site", 1)
	if err != nil {
		t.Fatal(err)
	}
	s.commit(txn, nil)
	s.out.Reset()
	return s
}

// commit carries a transaction out as the store would, and prints what it changed.
func (s *story) commit(txn Txn, err error) {
	switch {
	case err != nil:
		fmt.Fprintf(&s.out, "error: %v\n", err)
		return
	case txn.Empty():
		fmt.Fprintln(&s.out, "nothing to change")
		return
	}
	for _, k := range sortedKeys(txn.If) {
		if s.store[k].revision != txn.If[k] {
			fmt.Fprintf(&s.out, "conflict on %s\n", k)
			return
		}
	}
	s.revision++
	for _, o := range txn.Put {
		s.store[o.Key()] = held{o, s.revision}
		s.core.Learn(o.Key(), o, s.revision)
		fmt.Fprintf(&s.out, "put %s%s\n", o.Key(), about(o))
	}
	for _, k := range txn.Delete {
		delete(s.store, k)
		s.core.Learn(k, nil, s.revision)
		fmt.Fprintf(&s.out, "delete %s\n", k)
	}
}

func about(o Object) string {
	switch o := o.(type) {
	case *Grant:
		return fmt.Sprintf(": %s to %s, generation %d revision %d, provers %v", o.Phase, o.TenantName, o.Generation, o.Revision, o.Provers)
	case *Node:
		return fmt.Sprintf(": id %d", o.ID)
	case *Tenant:
		return fmt.Sprintf(": id %d", o.ID)
	case *Registration:
		return fmt.Sprintf(": boot %d of %s on %s", o.Boot, o.Instance, o.HardwareID)
	case *Confirmation:
		return fmt.Sprintf(": %s generation %d boot %d sequence %d", o.State, o.Generation, o.Boot, o.Sequence)
	case *Services:
		return fmt.Sprintf(": revision %d of %d", o.Revision, len(o.Services.Services))
	}
	return ""
}

func (s *story) apply(t *testing.T, yaml string) {
	t.Helper()
	want, err := site.Parse([]byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	txn, changes, err := s.core.ApplySite(want)
	for _, c := range changes {
		fmt.Fprintln(&s.out, c)
	}
	s.commit(txn, err)
}

func (s *story) play(t *testing.T, f []string) {
	t.Helper()
	now := time.Unix(1000, 0)
	switch f[0] {
	case "assign":
		s.commit(s.core.Assign(f[1], f[2], now))
	case "reclaim":
		s.commit(s.core.Reclaim(f[1], now))
	case "decide-assign": // decided now, committed later, by "late"
		txn, err := s.core.Assign(f[1], f[2], now)
		if err != nil {
			t.Fatal(err)
		}
		s.late = txn
	case "late":
		s.commit(s.late, nil)
	case "free":
		var n record.NodeID
		_, _ = fmt.Sscan(f[1], &n)
		s.commit(s.core.Free(n, now))
	case "freeable":
		fmt.Fprintln(&s.out, s.core.Freeable())
	case "register": // DPU instance hardware boot
		req := s.request(f[1:])
		txn, err := s.core.Register(req)
		s.commit(txn, err)
		if err == nil {
			l := s.core.Lease(req, s.revision)
			fmt.Fprintf(&s.out, "lease boot %d, %d grants, unchanged=%t refused=%q\n", l.Boot, len(l.Grants), l.Unchanged, l.Refused)
		}
	case "confirm": // DPU node state generation boot sequence
		c := &record.Confirmation{DPU: record.DPU(f[1]), Epoch: 1}
		var state string
		_, err := fmt.Sscan(strings.Join(f[2:], " "), &c.Node, &state, &c.Generation, &c.Boot, &c.Sequence)
		if err != nil {
			t.Fatal(err)
		}
		c.State = record.State(slices.Index([]string{"none", "programmed", "withdrawn", "cleared"}, state))
		txn, err := s.core.Confirm([]*record.Confirmation{c, {DPU: "d8", Node: 1, Boot: 1}}, now)
		if !strings.Contains(err.Error(), `"d8"`) {
			t.Fatalf("a DPU that is not there was not refused: %v", err)
		}
		if refused := strings.Split(err.Error(), "\n"); len(refused) > 1 {
			fmt.Fprintf(&s.out, "error: %s\n", refused[0])
		} else {
			s.commit(txn, nil)
		}
	case "restart":
		s.core = New()
		for k, h := range s.store {
			s.core.Learn(k, h.object, h.revision)
		}
	default:
		t.Fatalf("unknown line %v", f)
	}
}

func (s *story) request(f []string) *record.LeaseRequest {
	req := &record.LeaseRequest{DPU: record.DPU(f[0]), Instance: f[1], HardwareID: f[2], Digest: record.GrantsDigest(nil)}
	_, _ = fmt.Sscan(f[3], &req.Boot)
	return req
}
