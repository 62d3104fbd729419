package maps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Iface is an interface of the caller's network namespace.
type Iface struct {
	Index int
	Name  string
}

// Attachment says how a port is guarded.
type Attachment struct {
	Ifindex int
	Name    string
	Role    Role
	XDPMode string // "native", or "generic" if the driver has no XDP
	Egress  string // "tcx" or "clsact"
	ProgID  ebpf.ProgramID
	// Notes say, one sentence each, what an operator should know: why not native, what was changed on the port.
	Notes []string
}

// Attach guards a port: it tells the programs its role, attaches XDP (native if the driver can) and
// the egress check. What an earlier run has attached is replaced in place, without a gap; a port
// that was attached before is brought to the given role. On an error the port may be guarded in part: call
// again.
func (d *Datapath) Attach(iface Iface, role Role) (Attachment, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := Attachment{Ifindex: iface.Index, Name: iface.Name, Role: role}
	if role != RoleNode && role != RoleUplink {
		return a, fmt.Errorf("attach to %s: %s is no role of a port", iface.Name, role)
	}
	a.Notes = keepVLANTags(iface.Name)
	err := d.setPort(iface.Index, role)
	if err == nil {
		err = d.attachIngress(iface, &a) // first: it fails where another XDP program is, and leaves nothing behind
	}
	if err == nil {
		a.Egress, err = d.attachEgress(iface)
	}
	if err == nil {
		err = d.check(a)
	}
	if err != nil {
		return a, fmt.Errorf("attach to %s: %w", iface.Name, err)
	}
	d.ports[iface.Index] = a
	return a, nil
}

// Forget lets go of a port whose interface is gone, its role and its pins; one that was never attached is no
// error. An interface that still exists, in another network namespace perhaps, keeps its guard: ErrElsewhere.
func (d *Datapath) Forget(ifindex int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	paths := []string{d.linkPath(datapathProgDpudIngress, ifindex), d.linkPath(datapathProgDpudEgress, ifindex)}
	for _, path := range paths {
		if lives, err := linkLives(path); err != nil || lives {
			if lives {
				err = ErrElsewhere
			}
			return fmt.Errorf("forget port %d: %w", ifindex, err)
		}
	}
	delete(d.ports, ifindex)
	err := d.remove(entry{m: d.maps.Ports, key: datapathPortKey{Ifindex: uint32(ifindex)}})
	for _, path := range paths {
		err = errors.Join(err, removeLink(path))
	}
	if err != nil {
		return fmt.Errorf("forget port %d: %w", ifindex, err)
	}
	return nil
}

// linkLives says whether a pinned link is there and still has an interface.
func linkLives(path string) (bool, error) {
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open pinned link: %w", err)
	}
	on, _, err := locate(l)
	return on != 0, errors.Join(err, l.Close())
}

func (d *Datapath) linkPath(program string, ifindex int) string {
	return filepath.Join(d.pin, linksFolder, program+"_"+strconv.Itoa(ifindex))
}

func (d *Datapath) attachIngress(iface Iface, a *Attachment) error {
	path := d.linkPath(datapathProgDpudIngress, iface.Index)
	program := d.programs.DpudIngress
	adopted, err := adoptLink(path, iface.Index, program, func() error { return d.checkIngress(iface.Index) })
	if err != nil {
		return err
	}
	if !adopted {
		l, note, err := attachXDP(iface, program)
		if err != nil {
			return err
		}
		a.Notes = append(a.Notes, note...)
		if err := errors.Join(replacePin(path, l.Pin), l.Close()); err != nil {
			return err
		}
	}
	xdp, err := readXDP(iface.Index)
	if err != nil {
		return err
	}
	a.ProgID = ebpf.ProgramID(xdp.ProgId)
	a.XDPMode = "native"
	if xdp.AttachMode == xdpAttachedSKB {
		a.XDPMode = "generic"
	}
	return nil
}

func attachXDP(iface Iface, program *ebpf.Program) (link.Link, []string, error) {
	native, errNative := link.AttachXDP(link.XDPOptions{Program: program, Interface: iface.Index, Flags: link.XDPDriverMode})
	if errNative == nil {
		return native, nil, nil
	}
	generic, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: iface.Index, Flags: link.XDPGenericMode})
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
		return nil, nil, fmt.Errorf("attach XDP: another program is there (see `bpftool net show dev %s`): detach it: %w", iface.Name, err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("attach XDP: native: %w; generic: %w", errNative, err)
	}
	return generic, []string{fmt.Sprintf("XDP is generic, not native: the driver refused it: %v", errNative)}, nil
}

// adoptLink puts program in the place of the one that an earlier run pinned, and says whether that worked: the
// interface may have vanished. A link that guards an interface of another network namespace, which happens to
// have the same index, is left alone: ErrElsewhere.
func adoptLink(path string, ifindex int, program *ebpf.Program, check func() error) (bool, error) {
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open pinned link: %w", err)
	}
	defer func() { _ = l.Close() }()
	on, here, err := locate(l)
	switch {
	case err != nil:
		return false, err
	case on != 0 && !here:
		return false, fmt.Errorf("adopt %s: %w", filepath.Base(path), ErrElsewhere)
	case on == ifindex && l.Update(program) == nil && check() == nil:
		return true, nil
	case on != 0:
		if err := l.Detach(); err != nil {
			return false, fmt.Errorf("detach stale link: %w", err)
		}
	}
	if err := os.Remove(path); err != nil {
		return false, fmt.Errorf("remove stale link: %w", err)
	}
	return false, nil
}

// removeLink detaches and unpins a link, if it is there.
func removeLink(path string) error {
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open pinned link: %w", err)
	}
	on, _, err := locate(l)
	if err == nil && on != 0 {
		err = l.Detach()
	}
	return errors.Join(err, l.Close(), os.Remove(path))
}

// dropDefunctLinks unpins the links of interfaces that vanished.
func (d *Datapath) dropDefunctLinks() error {
	folder := filepath.Join(d.pin, linksFolder)
	pins, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("list pinned links: %w", err)
	}
	for _, pin := range pins {
		path := filepath.Join(folder, pin.Name())
		l, err := link.LoadPinnedLink(path, nil)
		if err != nil {
			return fmt.Errorf("open pinned link: %w", err)
		}
		on, _, err := locate(l)
		if err == nil && on == 0 {
			err = os.Remove(path)
		}
		if err := errors.Join(err, l.Close()); err != nil {
			return err
		}
	}
	return nil
}

// How a program is attached (IFLA_XDP_ATTACHED, enum in linux/if_link.h).
const (
	xdpAttachedSKB   = 2
	xdpAttachedMulti = 4
)

// readXDP asks the kernel for the XDP program of an interface; ProgId is 0 if there is none, or more than one.
func readXDP(ifindex int) (netlink.LinkXdp, error) {
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return netlink.LinkXdp{}, fmt.Errorf("find interface %d: %w", ifindex, err)
	}
	xdp := l.Attrs().Xdp
	if xdp == nil || xdp.AttachMode == xdpAttachedMulti {
		return netlink.LinkXdp{}, nil
	}
	return *xdp, nil
}
