package ports

import (
	"fmt"
	"path"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	dmaps "dpud/pkg/maps"
)

// world is what one pass knows of the machine beside its own ports.
type world struct {
	links    []netlink.Link
	nl       *netlink.Handle
	defaults map[int]bool // links that lead to a default route; nil until asked
	err      error
}

// mine says whether a link is to be taken, and in which role; or, if it matches and is not, why.
func (p *Ports) mine(w *world, l netlink.Link) (role dmaps.Role, why string, ok bool) {
	a := l.Attrs()
	role, glob, ok := p.cfg.match(a.Name)
	known := p.taken[a.Index]
	if !ok {
		if known != nil {
			why = "it matches no name of the configuration any more; it stays guarded"
		}
		return role, why, false
	}
	switch {
	case a.Name == p.cfg.Bridge || a.Name == "lo" || isMaster(l):
		return role, fmt.Sprintf("a %s link is never a port", kindOf(l)), false
	case a.MasterIndex != 0 && w.name(a.MasterIndex) != p.cfg.Bridge:
		return role, fmt.Sprintf("it belongs to %s", w.name(a.MasterIndex)), false
	case !glob || known != nil || p.guard.Runs(a.Index, role):
		return role, "", true // named, or ours already: a route does not take enforcement away
	}
	defaults, err := w.defaultPorts()
	switch {
	case err != nil:
		return role, fmt.Sprintf("whether it has the default route is unknown: %v", err), false
	case defaults[a.Index]:
		return role, "the default route leads through it, and a glob never takes that; name it to take it", false
	}
	return role, "", true
}

// match finds the pattern of a name; an exact one comes before a glob, a node's before an uplink's.
func (c Config) match(name string) (role dmaps.Role, glob, ok bool) {
	for _, exact := range []bool{true, false} {
		for _, n := range c.Nodes {
			if isGlob(n) != exact && matches(n, name) {
				return dmaps.RoleNode, !exact, true
			}
		}
		for _, n := range c.Uplinks {
			if isGlob(n) != exact && matches(n, name) {
				return dmaps.RoleUplink, !exact, true
			}
		}
	}
	return 0, false, false
}

// Names says whether a name of the configuration, or a glob, matches.
func (c Config) Names(link string) bool {
	_, _, ok := c.match(link)
	return ok
}

func (p *Ports) named(name string) bool {
	_, glob, ok := p.cfg.match(name)
	return ok && !glob
}

func isGlob(pattern string) bool { return strings.ContainsAny(pattern, `*?[\`) }

func matches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}

// isMaster says whether a link gathers others.
func isMaster(l netlink.Link) bool {
	switch l.Type() {
	case "bridge", "bond", "team", "vrf", "openvswitch", "hsr":
		return true
	}
	return false
}

func kindOf(l netlink.Link) string {
	if l.Attrs().Name == "lo" {
		return "loopback"
	}
	return l.Type()
}

func (w *world) link(index int) netlink.Link {
	for _, l := range w.links {
		if l.Attrs().Index == index {
			return l
		}
	}
	return nil
}

func (w *world) name(index int) string {
	if l := w.link(index); l != nil {
		return l.Attrs().Name
	}
	return fmt.Sprintf("link %d", index)
}

// defaultPorts returns the links that default routes of any table lead through, and those below them.
func (w *world) defaultPorts() (map[int]bool, error) {
	if w.defaults != nil || w.err != nil {
		return w.defaults, w.err
	}
	w.defaults = make(map[int]bool)
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := w.nl.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC, Type: unix.RTN_UNICAST}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
		if err != nil {
			w.err = fmt.Errorf("list routes: %w", err)
			return nil, w.err
		}
		for _, r := range routes {
			if r.Dst != nil {
				if ones, _ := r.Dst.Mask.Size(); ones != 0 {
					continue
				}
			}
			w.addDefault(r.LinkIndex)
			for _, hop := range r.MultiPath {
				w.addDefault(hop.LinkIndex)
			}
		}
	}
	return w.defaults, nil
}

// addDefault adds a link, and the one that a VLAN or MAC-VLAN of it rides on. (The parent of a veth is its
// peer, which may even be in another namespace.)
func (w *world) addDefault(index int) {
	for range 8 { // stacked no deeper than the kernel allows
		w.defaults[index] = true
		l := w.link(index)
		if l == nil {
			return
		}
		switch l.Type() {
		case "vlan", "macvlan", "macvtap", "ipvlan", "ipvtap":
			index = l.Attrs().ParentIndex
		default:
			return
		}
	}
}
