package ports

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	dmaps "dpud/pkg/maps"
)

// ErrNoPort: nothing enforces what the maps say, so that their being empty proves nothing.
var ErrNoPort = errors.New("no port is guarded")

// Guarded asks the kernel now, and returns why what is enforced in this network namespace may differ from what
// the maps say, or nil: every port that is up runs our programs, and one at least; no port of the bridge that is
// up lacks them; no link, up or down, ours or not, runs those of another data plane.
func (p *Ports) Guarded() error {
	guarded, unguarded := make(map[int]bool), make(map[int]error)
	for _, q := range p.List() {
		if q.Index == 0 {
			continue
		}
		if err := p.guard.Check(q.Index); err != nil {
			unguarded[q.Index] = fmt.Errorf("port %s: %w", q.Name, err)
		} else {
			guarded[q.Index] = true
		}
	}
	links, err := Links(p.fdb.LinkList)
	if err != nil {
		return err
	}
	roles, err := p.guard.Ports()
	if err != nil {
		return err
	}
	w := world{links: links}
	for _, l := range links {
		a := l.Attrs()
		if err := p.guard.Other(l); err != nil {
			return err
		}
		if a.Flags&net.FlagUp == 0 || guarded[a.Index] {
			continue
		}
		if err := unguarded[a.Index]; err != nil {
			return err
		}
		// One that has left the configuration runs our programs still.
		if a.MasterIndex != 0 && w.name(a.MasterIndex) == p.cfg.Bridge && (roles[a.Index] == 0 || !p.guard.Runs(a.Index, roles[a.Index])) {
			return fmt.Errorf("link %s is in the bridge without our programs: %w; name it in the configuration or take it out", a.Name, dmaps.ErrUnguarded)
		}
	}
	if len(guarded) == 0 {
		return ErrNoPort
	}
	return nil
}

// Links lists the links as of one instant: a dump that a change cuts short is repeated.
func Links(list func() ([]netlink.Link, error)) (links []netlink.Link, err error) {
	for range 10 {
		if links, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return links, nil
}
