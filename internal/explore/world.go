// Package explore drives the real cores (management, tenant, agent) through a small site, one step at a time,
// with every fault that the protocol must survive: messages lost, repeated, reordered and late, daemons that
// restart with or without their maps, controllers that forget, peers that missed the news.
//
// It checks the safety properties of the protocol after each step. It decides nothing itself: what a core
// asks for is carried out on a plain store and plain maps, or lost.
package explore

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"dpud/pkg/control/agent"
	"dpud/pkg/control/management"
	"dpud/pkg/control/tenant"
	"dpud/pkg/record"
	"dpud/pkg/site"
	"dpud/pkg/table"
)

// World is a site: its durable stores, its processes, its DPUs' kernels, and every message ever sent. A
// message stays deliverable for ever, so delay, repetition and reordering need no action of their own; a
// message that is never delivered is lost.
type World struct {
	Site *site.Site

	store    map[management.Key]stored
	revision int64
	mgmt     *management.Core
	tenants  map[record.TenantID]*tenantPlane
	dpus     map[record.DPU]*dpu
	now      time.Time

	grants        []*record.Grant // every version ever committed
	entries       []*record.Entry
	services      *record.Services
	confirmations []*record.Confirmation // every one ever sent
	answers       []*record.Lease
	cleared       map[claim]bool // every cleared(g) ever confirmed

	trace func(format string, args ...any)
}

type claim struct {
	dpu        record.DPU
	node       record.NodeID
	generation record.Generation
}

type stored struct {
	object   management.Object
	revision int64
}

type tenantPlane struct {
	core  *tenant.Core
	store map[record.NodeID]*record.Entry // durable
	revs  map[record.NodeID]int64
}

// failure is what becomes of a DPU's next kernel operation.
type failure uint8

const (
	works       failure = iota
	failsUndone         // an error, and nothing was done
	failsDone           // an error, although it was done
)

type dpu struct {
	name      record.DPU
	core      *agent.Core // nil: dpud is down
	kernel    table.Tables
	unsettled bool // a deletion has seen no barrier
	unguarded bool // a port is not guarded
	fails     failure
	instances int
	pending   *record.LeaseRequest
}

// New returns a site of the given numbers of DPUs, nodes and tenants: d1…, n1…, t1…. Every DPU serves every
// node.
func New(dpus, nodes, tenants int) (*World, error) {
	s := &site.Site{Name: "explored", Racks: []site.Rack{{Name: "r1"}}}
	for i := 1; i <= dpus; i++ {
		s.DPUs = append(s.DPUs, site.DPU{Name: record.DPU(fmt.Sprintf("d%d", i)), Rack: "r1"})
	}
	for i := 1; i <= tenants; i++ {
		s.Tenants = append(s.Tenants, site.Tenant{Name: fmt.Sprintf("t%d", i), VNI: record.VNI(1000 + i)})
	}
	for i := 1; i <= nodes; i++ {
		n := site.Node{
			Name: fmt.Sprintf("n%d", i), Rack: "r1", MAC: record.MAC{2, 0, 0, 0, 0, byte(i)},
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})},
		}
		for _, d := range s.DPUs {
			n.DPUs = append(n.DPUs, record.NodePort{DPU: d.Name, Port: portOf(i)})
		}
		s.Nodes = append(s.Nodes, n)
	}
	w := &World{
		Site: s, store: make(map[management.Key]stored), mgmt: management.New(),
		tenants: make(map[record.TenantID]*tenantPlane), dpus: make(map[record.DPU]*dpu),
		now: time.Unix(1_000_000, 0), cleared: make(map[claim]bool), trace: func(string, ...any) {},
	}
	txn, err := w.mgmt.Init("explored", 1)
	if err == nil {
		err = w.commit(txn)
	}
	if err == nil {
		txn, _, err = w.mgmt.ApplySite(s)
	}
	if err == nil {
		err = w.commit(txn)
	}
	if err != nil {
		return nil, err
	}
	for _, t := range w.mgmt.Tenants() {
		w.tenants[t.ID] = &tenantPlane{core: tenant.New(t.ID), store: make(map[record.NodeID]*record.Entry), revs: make(map[record.NodeID]int64)}
	}
	for _, d := range s.DPUs {
		w.dpus[d.Name] = &dpu{name: d.Name, kernel: make(table.Tables)}
		w.Start(d.Name)
	}
	return w, nil
}

func portOf(node int) string { return fmt.Sprintf("p%d", node) }

// commit carries a transaction out on the store and tells the management plane. It fails on a conflict.
func (w *World) commit(txn management.Txn) error {
	if txn.Empty() {
		return nil
	}
	for k, r := range txn.If {
		if have := w.store[k]; have.revision != r {
			return fmt.Errorf("conflict on %s", k)
		}
	}
	w.revision++
	for _, o := range txn.Put {
		w.store[o.Key()] = stored{o, w.revision}
		w.mgmt.Learn(o.Key(), o, w.revision)
		switch o := o.(type) {
		case *management.Grant:
			w.grants = append(w.grants, &o.Grant)
		case *management.Services:
			w.services = &o.Services
		}
	}
	for _, k := range txn.Delete {
		delete(w.store, k)
		w.mgmt.Learn(k, nil, w.revision)
	}
	return nil
}

// Assign and Reclaim are the operator's requests. A refusal by a precondition is returned.
func (w *World) Assign(node, tenant string) error {
	txn, err := w.mgmt.Assign(node, tenant, w.now)
	if err != nil {
		return err
	}
	return w.commit(txn)
}

// Reclaim revokes a node's grant.
func (w *World) Reclaim(node string) error {
	txn, err := w.mgmt.Reclaim(node, w.now)
	if err != nil {
		return err
	}
	return w.commit(txn)
}

// Free lets the guard return a node to the pool, and says whether one was.
func (w *World) Free() (bool, error) {
	nodes := w.mgmt.Freeable()
	if len(nodes) == 0 {
		return false, nil
	}
	txn, err := w.mgmt.Free(nodes[0], w.now)
	if err != nil {
		return false, err
	}
	return true, w.commit(txn)
}

// RestartManagement starts a management plane that knows only the store.
func (w *World) RestartManagement() {
	w.mgmt = management.New()
	for k, s := range w.store {
		w.mgmt.Learn(k, s.object, s.revision)
	}
}

// RestartTenant loses a tenant control plane's buffer: a new one lists its entries and hears grants again.
func (w *World) RestartTenant(t record.TenantID) {
	p := w.tenants[t]
	p.core = tenant.New(t)
	for n, e := range p.store {
		p.core.Learn(e, p.revs[n])
	}
}

// TenantHear hands a tenant control plane a grant.
func (w *World) TenantHear(t record.TenantID, g *record.Grant) { w.tenants[t].core.HearGrant(g) }

// Flush carries out one request of a tenant control plane, and says whether there was one.
func (w *World) Flush(t record.TenantID) bool {
	p := w.tenants[t]
	put, ok := p.core.Next()
	if !ok {
		return false
	}
	if p.revs[put.Entry.Node] != put.If {
		panic(fmt.Sprintf("tenant %d: conflict on its own store", t))
	}
	w.revision++
	p.store[put.Entry.Node], p.revs[put.Entry.Node] = put.Entry, w.revision
	p.core.Learn(put.Entry, w.revision)
	w.entries = append(w.entries, put.Entry)
	return true
}

// Start runs a new dpud on a DPU, which knows nothing but what the kernel holds.
func (w *World) Start(name record.DPU) {
	d := w.dpus[name]
	d.instances++
	d.core = agent.New(agent.Config{
		DPU: name, Instance: fmt.Sprintf("%s-%d", name, d.instances), HardwareID: "hw-" + string(name), KernelBoot: "k",
	})
	d.pending = nil
	ports := make(map[string]uint32)
	for i := range w.Site.Nodes {
		ports[portOf(i+1)] = uint32(i + 1)
	}
	d.core.SetPorts(ports)
}

// Kill ends dpud; the kernel goes on.
func (w *World) Kill(name record.DPU) { w.dpus[name].core = nil }

// PowerLoss ends dpud and loses the kernel's maps.
func (w *World) PowerLoss(name record.DPU) {
	d := w.dpus[name]
	d.core, d.kernel, d.unsettled = nil, make(table.Tables), false
}

// Hear delivers a record to a DPU.
func (w *World) Hear(name record.DPU, r record.Record) {
	if d := w.dpus[name]; d.core != nil {
		d.core.Hear(r)
	}
}

// Gossip delivers everything that one DPU holds to another.
func (w *World) Gossip(from, to record.DPU) {
	a, b := w.dpus[from], w.dpus[to]
	if a.core == nil || b.core == nil {
		return
	}
	for _, g := range a.core.Grants() {
		b.core.Hear(g)
	}
}

// Ask makes a DPU ask for a lease, and says whether it wanted to.
func (w *World) Ask(name record.DPU) bool {
	d := w.dpus[name]
	if d.core == nil {
		return false
	}
	req, ok := d.core.LeaseRequest(w.now)
	if ok {
		d.pending = req
	}
	return ok
}

// Answer lets the management plane answer a DPU's last request: mint, read, answer.
func (w *World) Answer(name record.DPU) bool {
	req := w.dpus[name].pending
	if req == nil {
		return false
	}
	txn, err := w.mgmt.Register(req)
	if err == nil {
		err = w.commit(txn)
	}
	if err != nil {
		w.answers = append(w.answers, management.Refuse(req, err.Error()))
		return true
	}
	w.answers = append(w.answers, w.mgmt.Lease(req, w.revision))
	return true
}

// Accept delivers a lease answer, however old.
func (w *World) Accept(l *record.Lease) {
	if d := w.dpus[l.DPU]; d.core != nil {
		_ = d.core.HearLease(l) // a refusal is an outcome here, not a failure
	}
}

// Send puts a DPU's unanswered confirmations on the wire.
func (w *World) Send(name record.DPU) bool {
	d := w.dpus[name]
	if d.core == nil {
		return false
	}
	sent := false
	for _, f := range d.core.Unanswered() {
		if !slices.Contains(w.confirmations, f) {
			w.confirmations = append(w.confirmations, f)
			sent = true
		}
		if f.State == record.Cleared {
			w.cleared[claim{f.DPU, f.Node, f.Generation}] = true
		}
	}
	return sent
}

// Receive hands a confirmation, however old, to the management plane and, if answered, the answer to the DPU.
func (w *World) Receive(f *record.Confirmation, answered bool) error {
	txn, err := w.mgmt.Confirm([]*record.Confirmation{f}, w.now)
	if err != nil {
		return err
	}
	if err := w.commit(txn); err != nil {
		return err
	}
	if d := w.dpus[f.DPU]; answered && d.core != nil {
		d.core.Answered([]*record.Confirmation{f})
	}
	return nil
}

// Step carries out one kernel operation of a DPU, and says whether it wanted one.
func (w *World) Step(name record.DPU) (agent.Op, bool, error) {
	d := w.dpus[name]
	if d.core == nil {
		return agent.Op{}, false, nil
	}
	op, ok := d.core.Next()
	if !ok {
		return op, false, nil
	}
	var res agent.Result
	var err error
	if d.fails != failsUndone {
		res, err = w.execute(d, op)
	}
	if err != nil {
		return op, true, err
	}
	if d.fails != works {
		res = agent.Result{Err: errors.New("operation failed")}
		d.fails = works
	}
	d.core.Done(op, res)
	w.trace("%s: %s", name, describe(op))
	return op, true, nil
}

// Crash carries out one kernel operation of a DPU whose dpud dies before it learns of the outcome.
func (w *World) Crash(name record.DPU) (bool, error) {
	d := w.dpus[name]
	if d.core == nil {
		return false, nil
	}
	op, ok := d.core.Next()
	if !ok {
		return false, nil
	}
	_, err := w.execute(d, op)
	d.core = nil
	return true, err
}

func describe(op agent.Op) string {
	switch op.Verb {
	case agent.Delete, agent.Put:
		return fmt.Sprintf("%s %s", op.Verb, op.Key)
	case agent.Verify:
		return fmt.Sprintf("verify %v", op.Nodes)
	default:
		return op.Verb.String()
	}
}
