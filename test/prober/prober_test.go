package prober_test

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"dpud/pkg/record"
	"dpud/test/prober"
	"dpud/test/rack"
)

// start runs a prober over a rack whose DPUs are plain bridges, with maps that say what the test wants.
func start(t *testing.T, state *atomic.Pointer[prober.Assignment], err error) *prober.Prober {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for network namespaces")
	}
	r, e := rack.New(rack.Options{Name: fmt.Sprintf("prober%d", os.Getpid())})
	if e != nil {
		t.Fatal(e)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := r.Unguard(); err != nil {
		t.Fatal(err)
	}
	read := func() (prober.Assignment, error) { return *state.Load(), err }
	p, e := prober.Start(prober.Config{
		Stations: r.Stations(), Rate: 2000, Limit: time.Minute, Period: time.Millisecond,
		Maps: map[record.DPU]func() (prober.Assignment, error){"d1": read, "d2": read},
	})
	if e != nil {
		t.Fatal(e)
	}
	return p
}

// arrive waits until frames of a kind from one station have reached another.
func arrive(t *testing.T, p *prober.Prober, from, to int, k prober.Kind) {
	t.Helper()
	before := p.Received(from, to, k)
	err := rack.Until(20*time.Second, fmt.Sprintf("%s from %d to %d", k, from, to), func() (bool, error) {
		return p.Received(from, to, k) > before+2, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// round waits until every station has sent all its kinds to all others, with each third one.
func round(t *testing.T, p *prober.Prober) {
	t.Helper()
	last := prober.Kinds()[len(prober.Kinds())-1]
	before := p.Sent(0, 1, last)
	err := rack.Until(30*time.Second, "a round of all frames", func() (bool, error) {
		for from := range rack.Nodes {
			for to := range rack.Nodes {
				if from != to && p.Sent(from, to, last) < before+4 {
					return false, nil
				}
			}
		}
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func stop(t *testing.T, p *prober.Prober) *prober.Report {
	t.Helper()
	r, err := p.Stop()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", r)
	return r
}

func TestAllOfOneTenant(t *testing.T) {
	var state atomic.Pointer[prober.Assignment]
	state.Store(&prober.Assignment{1, 1, 1, 1})
	p := start(t, &state, nil)
	arrive(t, p, 0, 2, prober.V4) // the bridges forward
	round(t, p)
	r := stop(t, p)
	for _, k := range prober.Kinds() {
		if r.Kinds[k].Passed == 0 {
			t.Errorf("%s: none arrived", k)
		}
	}
	if r.Total.Crossed != 0 || r.Total.Unknown != 0 || r.TwoTenants != 0 {
		t.Error("crossings where all nodes are of one tenant")
	}
}

func TestCrossingsAreCountedWhereNothingEnforces(t *testing.T) {
	var state atomic.Pointer[prober.Assignment]
	state.Store(&prober.Assignment{1, 2, 1, 0})
	p := start(t, &state, nil)
	arrive(t, p, 0, 2, prober.V4) // the bridges forward
	round(t, p)
	r := stop(t, p)
	for _, k := range prober.Kinds() {
		if r.Kinds[k].Crossed == 0 {
			t.Errorf("%s: no crossing counted", k)
		}
	}
	if len(r.Crossings) == 0 {
		t.Error("no crossing is shown")
	}
	// Nodes 0 and 2 share a tenant; flooded frames that were meant for 0 reach others too.
	if c := r.Pairs["n1>n2"]; c.Crossed == 0 {
		t.Errorf("n1>n2: %+v", c)
	}
}

// The same node changes tenants while frames flow: what it exchanges with its old tenant's nodes afterwards crosses.
func TestCrossingsFollowTheMaps(t *testing.T) {
	var state atomic.Pointer[prober.Assignment]
	state.Store(&prober.Assignment{1, 1, 1, 1})
	p := start(t, &state, nil)
	arrive(t, p, 0, 2, prober.V4)
	state.Store(&prober.Assignment{2, 1, 1, 1})
	arrive(t, p, 0, 2, prober.V4)
	arrive(t, p, 1, 2, prober.V4)
	r := stop(t, p)
	if r.Pairs["n1>n3"].Crossed == 0 {
		t.Error("no crossing after the change")
	}
	if c := r.Kinds[prober.V4]; c.Crossed >= c.Passed {
		t.Error("what passed before the change was called a crossing")
	}
	if c := r.Pairs["n2>n3"]; c.Passed == 0 {
		t.Errorf("n2>n3: %+v", c)
	}
}

func TestUnreadableMapsAreSaid(t *testing.T) {
	var state atomic.Pointer[prober.Assignment]
	state.Store(&prober.Assignment{1, 1, 1, 1})
	p := start(t, &state, errors.New("gone"))
	arrive(t, p, 0, 1, prober.V4)
	if r := stop(t, p); r.Total.Unknown == 0 || r.Total.Crossed != 0 {
		t.Errorf("%d unknown, %d crossed; want some and none", r.Total.Unknown, r.Total.Crossed)
	}
}
