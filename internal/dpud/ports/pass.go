package ports

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	dmaps "dpud/pkg/maps"
)

// Pass looks at every link once and brings those that are ours to what they should be. What is wrong with a
// single port stands in its Problem; the error is for the pass as a whole.
func (p *Ports) Pass() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	links, err := p.nl.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list links: %w", err)
	}
	if err != nil {
		return nil // it changed meanwhile; an event that tells it is on its way
	}
	w := &world{links: links, nl: p.nl}
	bridge, bridgeErr := p.makeBridge(w)
	flags, err := bridgePorts()
	if err != nil {
		return fmt.Errorf("list bridge ports: %w", err)
	}
	roles, err := p.guard.Ports()
	if err != nil {
		return err
	}
	p.absent = p.absent[:0]
	seen := make(map[int]bool)
	for _, l := range links {
		a := l.Attrs()
		role, why, ok := p.mine(w, l)
		if left, was := roles[a.Index]; was && !ok && p.taken[a.Index] == nil && p.guard.Runs(a.Index, left) {
			// An earlier run's port that no name matches any more: guarded, and looked after, until unload. A role
			// alone says nothing: its link may be gone, and the index another's.
			p.take(l, left)
			why = "it matches no name of the configuration any more; it stays guarded"
		}
		switch {
		case ok:
			seen[a.Index] = true
			p.take(l, role)
			p.join(l, bridge, bridgeErr, flags)
			p.raise(l)
		case p.taken[a.Index] != nil:
			// Renamed, or taken over by somebody. It stays guarded: only unload takes enforcement away.
			seen[a.Index] = true
			t := p.taken[a.Index]
			t.Name, t.Up, t.Problem = a.Name, a.Flags&net.FlagUp != 0, why
			t.Guarded = p.guard.Check(a.Index) == nil
			if !t.Guarded {
				p.takeDown(l, t)
			}
		case bridgeErr == nil && a.MasterIndex == bridge:
			p.evict(l)
		case why != "":
			p.leave(a, role, why)
		}
	}
	p.forget(seen)
	p.findMissing(links)
	p.publish()
	return nil
}

// take has a link guarded. A link that is up and isn't guarded is taken down before anything else.
func (p *Ports) take(l netlink.Link, role dmaps.Role) {
	a := l.Attrs()
	t := p.taken[a.Index]
	if t == nil {
		t = &port{}
		p.taken[a.Index] = t
	}
	t.Name, t.Index, t.Up, t.Problem = a.Name, a.Index, a.Flags&net.FlagUp != 0, ""
	if t.attached {
		t.Guarded = p.guard.Check(a.Index) == nil
	} else {
		t.Guarded = p.guard.Runs(a.Index, role)
	}
	if t.Guarded && t.attached && t.Role == role {
		return
	}
	if !t.Guarded {
		p.takeDown(l, t)
	}
	t.Role = role
	att, err := p.guard.Attach(dmaps.Iface{Index: a.Index, Name: a.Name}, role)
	if err != nil {
		t.Problem = err.Error()
		if t.fromGuard == nil || t.fromGuard.Error() != err.Error() {
			p.log.Error("port could not be guarded, it stays down", "port", a.Name, "err", err)
		}
		t.fromGuard = err
		return
	}
	t.XDP, t.Egress, t.Notes = att.XDPMode, att.Egress, strings.Join(att.Notes, "; ")
	p.log.Info("port guarded", "port", a.Name, "ifindex", a.Index, "role", role, "xdp", t.XDP, "egress", t.Egress, "notes", t.Notes)
	t.attached, t.Guarded, t.fromGuard = true, true, nil
}

// evict takes a link out of our bridge that is none of our ports: nothing judges what it sends there, and the
// bridge would learn from it and flood to it.
func (p *Ports) evict(l netlink.Link) {
	a := l.Attrs()
	p.unguarded.Add(1)
	p.log.Warn("unguarded: link that is no port is taken out of the bridge", "link", a.Name, "ifindex", a.Index)
	if err := p.nl.LinkSetNoMaster(l); err != nil {
		p.log.Error("link could not be taken out of the bridge", "link", a.Name, "err", err)
	}
}

// takeDown takes a link down that is up without a guard, and reports it.
func (p *Ports) takeDown(l netlink.Link, t *port) {
	if !t.Up {
		return
	}
	p.unguarded.Add(1)
	p.log.Warn("unguarded: port was up without our programs and is taken down", "port", t.Name, "ifindex", t.Index)
	if err := p.nl.LinkSetDown(l); err != nil {
		t.Problem = fmt.Sprintf("take down %s: %v", t.Name, err)
		return
	}
	t.Up, t.raised = false, false
}

// join makes a guarded link a port of the bridge that neither floods nor learns.
func (p *Ports) join(l netlink.Link, bridge int, bridgeErr error, flags map[int]brport) {
	t := p.taken[l.Attrs().Index]
	if !t.Guarded || t.Problem != "" {
		return
	}
	if !t.settled {
		p.settle(l)
		t.settled = true
	}
	if t.Role == dmaps.RoleUplink && !p.cfg.BridgeUplinks {
		t.Bridged = false
		return
	}
	err := bridgeErr
	want := wantedFlags(t.Role)
	have, known := flags[t.Index]
	if err == nil && l.Attrs().MasterIndex != bridge {
		known = false
		t.joins++
		if err = p.nl.LinkSetMasterByIndex(l, bridge); err != nil {
			err = fmt.Errorf("put %s into bridge %s: %w", t.Name, p.cfg.Bridge, err)
		}
	}
	if err == nil && (!known || have != want) {
		err = setBridgePort(t.Index, want)
	}
	t.Bridged = err == nil
	if err != nil {
		t.Problem = err.Error()
	}
}

// settle keeps the kernel from speaking on a link that only forwards, and warns of addresses that a bridge
// port does not answer for.
func (p *Ports) settle(l netlink.Link) {
	name := l.Attrs().Name
	if err := p.nl.LinkSetIP6AddrGenMode(l, nl.IN6_ADDR_GEN_MODE_NONE); err != nil {
		p.log.Debug("port keeps its IPv6 link-local address", "port", name, "err", err) // no IPv6 here
	}
	addrs, err := p.nl.AddrList(l, unix.AF_UNSPEC)
	if err != nil {
		return
	}
	for _, a := range addrs {
		if a.IP.IsGlobalUnicast() {
			p.log.Warn("port has an address, for which a bridge port does not answer; move it to the bridge", "port", name, "address", a.IPNet)
		}
	}
}

// raise brings a guarded link up, once. One that somebody else takes down later stays down.
func (p *Ports) raise(l netlink.Link) {
	t := p.taken[l.Attrs().Index]
	switch {
	case !t.Guarded || t.Problem != "" && !t.Up:
	case t.Up:
		t.raised = true
	case t.raised:
		t.Problem = fmt.Sprintf("somebody took it down; raise it with `ip link set %s up`", t.Name)
	default:
		if err := p.nl.LinkSetUp(l); err != nil {
			t.Problem = fmt.Sprintf("raise: %v", err)
			return
		}
		t.Up, t.raised = true, true
	}
}

// leave reports a link that matches but is not taken.
func (p *Ports) leave(a *netlink.LinkAttrs, role dmaps.Role, why string) {
	if p.named(a.Name) {
		p.absent = append(p.absent, Port{Name: a.Name, Index: a.Index, Role: role, Up: a.Flags&net.FlagUp != 0, Problem: why})
	}
	if p.reported[a.Name] != why {
		p.log.Warn("port is not taken", "port", a.Name, "why", why)
		p.reported[a.Name] = why
	}
}

// forget drops links that are gone, those of an earlier run included.
func (p *Ports) forget(seen map[int]bool) {
	gone := make(map[int]bool)
	for index := range p.taken {
		gone[index] = !seen[index]
	}
	roles, err := p.guard.Ports()
	if err != nil {
		p.log.Error("ports of the data plane could not be read", "err", err)
	}
	for index := range roles {
		gone[index] = gone[index] || !seen[index]
	}
	for _, index := range slices.Sorted(maps.Keys(gone)) {
		if !gone[index] {
			continue
		}
		if _, err := p.nl.LinkByIndex(index); err == nil {
			continue // there, though not ours by the configuration any more: it stays guarded
		}
		if t := p.taken[index]; t != nil {
			p.log.Info("port is gone", "port", t.Name, "ifindex", index)
			delete(p.taken, index)
		}
		if err := p.guard.Forget(index); err != nil && p.kept[index] == "" {
			p.kept[index] = err.Error()
			p.log.Error("a port that is gone keeps its programs", "ifindex", index, "err", err)
		} else if err == nil {
			delete(p.kept, index)
		}
	}
}

// findMissing lists names of the configuration that no link has.
func (p *Ports) findMissing(links []netlink.Link) {
	have := make(map[string]bool, len(links))
	for _, l := range links {
		have[l.Attrs().Name] = true
	}
	missing := func(patterns []string, role dmaps.Role) {
		for _, n := range patterns {
			if !isGlob(n) && !have[n] {
				p.absent = append(p.absent, Port{Name: n, Role: role, Problem: "there is no such link"})
			}
		}
	}
	missing(p.cfg.Nodes, dmaps.RoleNode)
	missing(p.cfg.Uplinks, dmaps.RoleUplink)
}
