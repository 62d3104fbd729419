package agent

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"dpud/pkg/record"
	"dpud/pkg/table"
)

// fake is a kernel in memory, in which some operations fail.
type fake struct {
	tables table.Tables
	refuse func(Op) bool
}

func (f *fake) do(op Op) Result {
	if f.refuse != nil && f.refuse(op) {
		return Result{Err: errors.New("refused")}
	}
	switch op.Verb {
	case Delete:
		delete(f.tables, op.Key)
	case Put:
		f.tables[op.Key] = op.Value
	}
	return Result{Tables: maps.Clone(f.tables)}
}

func grantOf(n NodeID, phase record.Phase) *record.Grant {
	return &record.Grant{
		Node: n, Epoch: 1, Generation: 1, Phase: phase, Revision: 1, Tenant: 1, Rack: "r1", MAC: record.MAC{2, 5: byte(n)},
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(n)})},
		Ports:     []record.NodePort{{DPU: "d1", Port: "p1"}}, Provers: []record.DPU{"d1"},
	}
}

var start = time.Unix(1000, 0)

// newCore returns a core with a lease and nodes 1 to n granted.
func newCore(t *testing.T, n NodeID) *Core {
	t.Helper()
	c := New(Config{DPU: "d1", Instance: "i", HardwareID: "hw"})
	c.SetPorts(map[string]uint32{"p1": 7})
	req, ok := c.LeaseRequest(start)
	if !ok {
		t.Fatal("asks for no lease")
	}
	if err := c.HearLease(&record.Lease{DPU: "d1", Instance: "i", Boot: 1, Nonce: req.Nonce, Rack: "r1"}); err != nil {
		t.Fatal(err)
	}
	for i := NodeID(1); i <= n; i++ {
		c.Hear(grantOf(i, record.Granted))
		c.Hear(&record.Entry{Tenant: 1, Node: i, Epoch: 1, Generation: 1, Revision: 1})
	}
	return c
}

// settle carries operations out until the core has none, with as many retries.
func settle(t *testing.T, c *Core, f *fake, retries int) {
	t.Helper()
	for range retries {
		for steps := 0; ; steps++ {
			op, ok := c.Next()
			if !ok {
				break
			}
			if steps > 1000 {
				t.Fatalf("no end of operations: %+v", op)
			}
			c.Done(op, f.do(op))
		}
		c.Retry()
	}
}

func states(c *Core) map[NodeID]record.State {
	m := make(map[NodeID]record.State)
	for _, f := range c.Unanswered() {
		m[f.Node] = f.State
	}
	return m
}

// A node whose entries the kernel refuses holds nobody else up: neither others' programming nor their clearing.
func TestFailingNodeHoldsUpNobody(t *testing.T) {
	c, f := newCore(t, 3), &fake{tables: make(table.Tables)}
	f.refuse = func(op Op) bool { return op.Verb == Put && op.Key.Map == table.EndpointMAC && op.Value.Node == 1 }
	settle(t, c, f, 3)
	if got, want := states(c), (map[NodeID]record.State{2: record.Programmed, 3: record.Programmed}); !maps.Equal(got, want) {
		t.Errorf("confirmed %v, want %v", got, want)
	}
	if c.Stats().Errors != 3 {
		t.Errorf("%d errors in 3 tries, want one for each", c.Stats().Errors)
	}
	c.Hear(grantOf(2, record.Revoked))
	settle(t, c, f, 2)
	if got := states(c)[2]; got != record.Cleared {
		t.Errorf("node 2 is %s, want cleared", got)
	}
	f.refuse = nil
	settle(t, c, f, 2)
	if got := states(c)[1]; got != record.Programmed {
		t.Errorf("node 1 is %s once the kernel takes it, want programmed", got)
	}
}

// News that comes between a read-back and its report is not forgotten.
func TestNewsDuringVerify(t *testing.T) {
	c, f := newCore(t, 1), &fake{tables: make(table.Tables)}
	for {
		op, ok := c.Next()
		if !ok {
			t.Fatal("nothing to verify")
		}
		res := f.do(op)
		if op.Verb == Verify {
			c.Hear(grantOf(1, record.Revoked))
			c.Done(op, res)
			break
		}
		c.Done(op, res)
	}
	settle(t, c, f, 1)
	if got := states(c)[1]; got != record.Cleared || len(f.tables) > 0 {
		t.Errorf("node 1 is %s with %d entries, want it cleared", got, len(f.tables))
	}
}

// An answer that takes longer than the first request waits still becomes a lease.
func TestSlowAnswers(t *testing.T) {
	c := New(Config{DPU: "d1", Instance: "i", HardwareID: "hw"})
	type answer struct {
		at    time.Time
		nonce record.Nonce
	}
	var under []answer
	for now := start; now.Before(start.Add(time.Minute)); now = now.Add(100 * time.Millisecond) {
		if req, ok := c.LeaseRequest(now); ok {
			under = append(under, answer{now.Add(5 * time.Second), req.Nonce})
		}
		for len(under) > 0 && !under[0].at.After(now) {
			if err := c.HearLease(&record.Lease{DPU: "d1", Instance: "i", Boot: 1, Nonce: under[0].nonce, Rack: "r1"}); err != nil {
				t.Fatal(err)
			}
			under = under[1:]
		}
		if _, _, held := c.Lease(); held {
			return
		}
	}
	t.Error("no lease in a minute, although every request is answered after 5 s")
}

// The digest covers what a lease would bring, whatever else gossip has brought.
func TestDigestIsOfTheRack(t *testing.T) {
	c := newCore(t, 2)
	foreign := grantOf(9, record.Granted)
	foreign.Rack, foreign.Ports, foreign.Provers = "r2", nil, nil
	c.Hear(foreign)
	req, ok := c.LeaseRequest(start.Add(RenewEvery))
	if !ok {
		t.Fatal("asks for no renewal")
	}
	want := record.GrantsDigest(slices.DeleteFunc(c.Grants(), func(g *record.Grant) bool { return g.Rack != "r1" }))
	if req.Digest != want {
		t.Error("the digest covers another rack's grant")
	}
}

// What an operation did that reported an error is read back before the node is gone on with.
func TestFailedButDone(t *testing.T) {
	c, f := newCore(t, 1), &fake{tables: make(table.Tables)}
	for {
		op, ok := c.Next()
		if !ok {
			t.Fatal("nothing to put")
		}
		res := f.do(op)
		if op.Verb == Put && op.Key.Map == table.NodeTenant {
			c.Done(op, Result{Err: errors.New("answer lost")})
			break
		}
		c.Done(op, res)
	}
	f.refuse = func(op Op) bool { _, ok := f.tables[op.Key]; return op.Verb == Put && ok }
	settle(t, c, f, 2)
	if got := states(c)[1]; got != record.Programmed {
		t.Errorf("node 1 is %s, want programmed", got)
	}
}

// A deletion that failed may have taken place: nothing is added before a barrier.
func TestFailedDeletionAsksForABarrier(t *testing.T) {
	c, f := newCore(t, 1), &fake{tables: make(table.Tables)}
	settle(t, c, f, 1)
	c.Hear(grantOf(1, record.Revoked))
	c.Hear(grantOf(2, record.Granted))
	c.Hear(&record.Entry{Tenant: 1, Node: 2, Epoch: 1, Generation: 1, Revision: 1})
	op, _ := c.Next()
	if op.Verb != Delete {
		t.Fatalf("begins with %s, want a deletion", op.Verb)
	}
	c.Done(op, Result{Err: errors.New("answer lost")})
	for {
		op, ok := c.Next()
		if !ok {
			t.Fatal("node 2 is not put")
		}
		if op.Verb == Barrier {
			return
		}
		if op.Verb == Put {
			t.Fatalf("puts %s before a barrier", op.Key)
		}
		c.Done(op, f.do(op))
	}
}

// A boot that changes within one run, because a late request of an earlier run took it over, is confirmed anew:
// only the present boot's confirmations count as programmed.
func TestNewBootConfirmsAnew(t *testing.T) {
	c, f := newCore(t, 1), &fake{tables: make(table.Tables)}
	settle(t, c, f, 1)
	c.Answered(c.Unanswered())
	now := start.Add(RenewEvery)
	req, _ := c.LeaseRequest(now)
	if err := c.HearLease(&record.Lease{DPU: "d1", Instance: "i", Nonce: req.Nonce, Refused: "boot 1 is over"}); err == nil {
		t.Error("a refusal is no error")
	}
	req, _ = c.LeaseRequest(now.Add(AskAtMost))
	if req.Boot != 0 {
		t.Errorf("asks for boot %d after a refusal, want a new one", req.Boot)
	}
	if err := c.HearLease(&record.Lease{DPU: "d1", Instance: "i", Boot: 3, Nonce: req.Nonce, Rack: "r1"}); err != nil {
		t.Fatal(err)
	}
	settle(t, c, f, 1)
	if got := c.Unanswered(); len(got) != 1 || got[0].Boot != 3 || got[0].State != record.Programmed {
		t.Errorf("unanswered %+v, want node 1 programmed in boot 3", got)
	}
}
