package controller

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/control/management"
	"dpud/pkg/record"
	"dpud/pkg/wire"
)

// nodeStatus returns the status of one node by name.
func (c *Controller) nodeStatus(name string) (*dpudv1.NodeStatus, error) {
	links := c.linksByName()
	c.plane.mu.Lock()
	defer c.plane.mu.Unlock()
	n, err := c.plane.core.Node(name)
	if err != nil {
		return nil, err
	}
	return statusOf(c.plane.core, n, links), nil
}

// nodeStatuses returns the status of every node that is wanted (nil: all), in order of name.
func (c *Controller) nodeStatuses(wanted func(*dpudv1.NodeStatus) bool) []*dpudv1.NodeStatus {
	links := c.linksByName()
	c.plane.mu.Lock()
	defer c.plane.mu.Unlock()
	var all []*dpudv1.NodeStatus
	for _, n := range c.plane.core.Nodes() {
		if s := statusOf(c.plane.core, n, links); wanted == nil || wanted(s) {
			all = append(all, s)
		}
	}
	return all
}

// waiting says whether a node is on its way from one state to the next.
func waiting(s *dpudv1.NodeStatus) bool {
	return s.GetPhase() == dpudv1.Phase_PHASE_REVOKED || len(s.GetWaitingFor()) > 0
}

func statusOf(core *management.Core, n *management.Node, links map[record.DPU]linkState) *dpudv1.NodeStatus {
	s := &dpudv1.NodeStatus{
		Id: uint32(n.ID), Name: n.Name, Rack: string(n.Rack), Mac: n.MAC.String(),
		Phase: dpudv1.Phase_PHASE_FREE, Ports: wire.PortsToProto(n.DPUs),
		Next: fmt.Sprintf("free; `ctl assign %s TENANT` gives it to a tenant", n.Name),
	}
	for _, a := range n.Addresses {
		s.Addresses = append(s.Addresses, a.String())
	}
	g := core.Grant(n.ID)
	if g == nil {
		return s
	}
	s.Phase, s.Generation, s.Epoch, s.Revision = dpudv1.Phase(g.Phase), uint64(g.Generation), uint64(g.Epoch), uint64(g.Revision)
	s.Since = timestamppb.New(g.At)
	for _, d := range g.Provers {
		p := &dpudv1.DPUProof{Dpu: string(d)}
		if f := core.Confirmation(d, n.ID); f != nil {
			p.State, p.Generation = dpudv1.State(f.State), uint64(f.Generation)
			p.Boot, p.Sequence, p.At = uint64(f.Boot), f.Sequence, timestamppb.New(f.At)
		}
		s.Dpus = append(s.Dpus, p)
	}
	var missing []record.DPU
	switch g.Phase {
	case record.Granted:
		s.Tenant = g.TenantName
		missing = core.Unprogrammed(&g.Grant)
		s.Next = fmt.Sprintf("programmed; `ctl reclaim %s` takes it back", n.Name)
		if len(missing) > 0 {
			s.Next = waitSentence("programmed", missing, links)
		}
	case record.Revoked:
		s.Tenant = g.TenantName
		missing = core.Unproved(&g.Grant)
		s.Next = "every DPU has confirmed cleared; it is being freed"
		if len(missing) > 0 {
			s.Next = waitSentence("cleared", missing, links)
		}
	}
	for _, d := range missing {
		s.WaitingFor = append(s.WaitingFor, string(d))
	}
	return s
}

// waitSentence says for whom a node waits, and what is known of each.
func waitSentence(state string, missing []record.DPU, links map[record.DPU]linkState) string {
	names, facts := make([]string, len(missing)), make([]string, len(missing))
	for i, d := range missing {
		names[i], facts[i] = string(d), describe(d, links[d])
	}
	return fmt.Sprintf("waiting for %s to confirm %s; %s", strings.Join(names, ", "), state, strings.Join(facts, "; "))
}

func describe(d record.DPU, l linkState) string {
	switch {
	case l.trouble != "":
		return fmt.Sprintf("%s: %s", d, l.trouble)
	case l.asked.IsZero() && l.dpu == "":
		return fmt.Sprintf("%s has never registered: start dpud on it", d)
	case l.asked.IsZero():
		return fmt.Sprintf("%s has not asked this controller for a lease since it started: check that dpud runs there", d)
	}
	ago := time.Since(l.asked)
	s := fmt.Sprintf("%s last asked for a lease %s ago", d, ago.Round(time.Second))
	if ago > staleLease {
		s += ": check that dpud runs there; the node stays as it is until it answers"
	} else if l.err != nil {
		s += fmt.Sprintf(", but does not answer at %s: %v", l.address, l.err)
	}
	return s
}

// staleLease is the age of a lease request, renewed every 5 s, that calls for a look at the DPU.
const staleLease = 15 * time.Second

// dpuLinks returns what is known of the way to each DPU that has registered.
func (c *Controller) dpuLinks() []linkState {
	c.fanout.mu.Lock()
	states := make([]linkState, 0, len(c.fanout.links))
	for _, l := range c.fanout.links {
		states = append(states, l.state())
	}
	c.fanout.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range states {
		states[i].asked = c.leases[states[i].dpu]
	}
	return states
}

// dpuNames returns the site's DPUs, and others that were refused a lease because they are not in it.
func (c *Controller) dpuNames() []record.DPU {
	known := make(map[record.DPU]bool)
	var names []record.DPU
	c.plane.read(func(core *management.Core) {
		for _, d := range core.DPUs() {
			names, known[d.Name] = append(names, d.Name), true
		}
	})
	return append(names, c.troubles.strangers(func(d record.DPU) bool { return known[d] }, time.Now())...)
}

func (c *Controller) linksByName() map[record.DPU]linkState {
	m := make(map[record.DPU]linkState)
	for _, l := range c.dpuLinks() {
		m[l.dpu] = l
	}
	for d, text := range c.troubles.texts(time.Now()) {
		l := m[d]
		l.trouble = text
		m[d] = l
	}
	return m
}

func (c *Controller) dpuStatuses() []*dpudv1.DPUStatus {
	links, names := c.linksByName(), c.dpuNames()
	c.plane.mu.Lock()
	defer c.plane.mu.Unlock()
	var all []*dpudv1.DPUStatus
	for _, d := range names {
		s := &dpudv1.DPUStatus{Name: string(d), Rack: string(c.plane.core.RackOf(d))}
		if r := c.plane.core.Registration(d); r != nil {
			s.Boot, s.HardwareId, s.KernelBoot, s.Address = uint64(r.Boot), r.HardwareID, r.KernelBoot, r.Address
		}
		l := links[d]
		s.Reachable, s.Pending, s.Error = l.reachable, uint32(l.pending), l.trouble
		if l.err != nil {
			s.Error = strings.TrimPrefix(s.Error+"; "+l.err.Error(), "; ")
		}
		if !l.asked.IsZero() {
			s.LeaseAsked = timestamppb.New(l.asked)
		}
		all = append(all, s)
	}
	return all
}

func (c *Controller) tenantStatuses() []*dpudv1.TenantStatus {
	c.plane.mu.Lock()
	defer c.plane.mu.Unlock()
	nodes := make(map[record.TenantID][]string)
	for _, n := range c.plane.core.Nodes() {
		if g := c.plane.grants[n.ID]; g != nil && g.Phase != record.Free {
			nodes[g.Tenant] = append(nodes[g.Tenant], n.Name)
		}
	}
	var all []*dpudv1.TenantStatus
	for _, t := range c.plane.core.Tenants() {
		all = append(all, &dpudv1.TenantStatus{Id: uint32(t.ID), Name: t.Name, Vni: uint32(t.VNI), Nodes: nodes[t.ID]})
	}
	return all
}

// watchers wakes those who follow a node.
type watchers struct {
	mu    sync.Mutex
	nodes map[record.NodeID]map[chan struct{}]struct{}
}

func newWatchers() *watchers {
	return &watchers{nodes: make(map[record.NodeID]map[chan struct{}]struct{})}
}

// watch returns a channel that is signalled after every change of a node, until stop.
func (w *watchers) watch(n record.NodeID) (wake chan struct{}, stop func()) {
	wake = make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nodes[n] == nil {
		w.nodes[n] = make(map[chan struct{}]struct{})
	}
	w.nodes[n][wake] = struct{}{}
	return wake, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.nodes[n], wake)
		if len(w.nodes[n]) == 0 {
			delete(w.nodes, n)
		}
	}
}

// heard wakes the followers of nodes whose grant, confirmations or inventory changed.
func (w *watchers) heard(news []management.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range news {
		var n record.NodeID
		switch o := o.(type) {
		case *management.Grant:
			n = o.Node
		case *management.Confirmation:
			n = o.Node
		case *management.Node:
			n = o.ID
		}
		for wake := range w.nodes[n] {
			signal(wake)
		}
	}
}
