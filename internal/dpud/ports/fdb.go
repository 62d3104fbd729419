package ports

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"dpud/pkg/record"
)

// Forward makes the bridge send frames for a MAC to a port, in place of where it sent them before. A port
// that is not in the bridge needs none.
func (p *Ports) Forward(mac record.MAC, ifindex int) error {
	if !p.bridged(ifindex) {
		return nil
	}
	return p.forward(mac, ifindex)
}

func (p *Ports) forward(mac record.MAC, ifindex int) error {
	if err := p.fdb.NeighSet(fdbEntry(mac, ifindex)); err != nil {
		return fmt.Errorf("forward %s to link %d: %w", mac, ifindex, err)
	}
	return nil
}

// fdbEntry is static: NUD_NOARP. (NUD_PERMANENT would mean the bridge's own address.)
func fdbEntry(mac record.MAC, ifindex int) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex: ifindex, Family: unix.AF_BRIDGE, State: unix.NUD_NOARP, Flags: unix.NTF_MASTER | ntfSticky, HardwareAddr: mac[:],
	}
}

func (p *Ports) bridged(ifindex int) bool {
	for _, q := range p.List() {
		if q.Index == ifindex {
			return q.Bridged
		}
	}
	return false
}

// Forwarding is a set of static forwarding entries: MAC → ifindex.
type Forwarding map[record.MAC]int

// SweepForwarding adds what is wanted and missing, and removes entries that neither this sweep nor the one
// before wants. stale is what the last sweep returned. (An entry outlives its node's, so that a frame which was
// judged before the node was withdrawn reaches the check at its port rather than being flooded.)
func (p *Ports) SweepForwarding(wanted, stale Forwarding) (nextStale Forwarding, err error) {
	have, err := p.forwarding()
	if err != nil {
		return stale, err
	}
	var errs []error
	for mac, ifindex := range wanted {
		if have[mac] != ifindex {
			errs = append(errs, p.Forward(mac, ifindex))
		}
	}
	nextStale = make(Forwarding)
	for mac, ifindex := range have {
		_, want := wanted[mac]
		switch {
		case want:
		case stale[mac] == ifindex:
			if err := p.fdb.NeighDel(fdbEntry(mac, ifindex)); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("forward %s no longer: %w", mac, err))
			}
		default:
			nextStale[mac] = ifindex
		}
	}
	return nextStale, errors.Join(errs...)
}

// forwarding reads the static entries of our ports.
func (p *Ports) forwarding() (Forwarding, error) {
	ours := make(map[int]bool)
	for _, q := range p.List() {
		ours[q.Index] = q.Bridged
	}
	list, err := p.fdb.NeighList(0, unix.AF_BRIDGE)
	if err != nil {
		return nil, fmt.Errorf("list forwarding entries: %w", err)
	}
	have := make(Forwarding)
	for _, n := range list {
		var mac record.MAC
		if ours[n.LinkIndex] && n.MasterIndex != 0 && n.State == unix.NUD_NOARP && copy(mac[:], net.HardwareAddr(n.HardwareAddr)) == len(mac) {
			have[mac] = n.LinkIndex
		}
	}
	return have, nil
}

// ntfSticky is NTF_STICKY of linux/neighbour.h: the bridge never moves the entry to a port that it learned it on.
const ntfSticky = 1 << 6
