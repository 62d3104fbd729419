package maps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// attachEgress attaches the egress check before every other program of the port: by a tcx link, or, below Linux
// 6.6, as clsact's first filter.
func (d *Datapath) attachEgress(iface Iface) (string, error) {
	if !d.noTCX {
		err := d.attachTCX(iface)
		if !errors.Is(err, ebpf.ErrNotSupported) {
			return "tcx", err
		}
	}
	return "clsact", d.attachClsact(iface)
}

// attachTCX adopts the pinned link only if it comes first; if another program got before it, the link is made anew
// at the head. The egress check has a gap then, while XDP on every port keeps judging.
func (d *Datapath) attachTCX(iface Iface) error {
	path := d.linkPath(datapathProgDpudEgress, iface.Index)
	program := d.programs.DpudEgress
	adopted, err := adoptLink(path, iface.Index, program, func() error { return d.checkTCX(iface.Index) })
	if err != nil || adopted {
		return err
	}
	l, err := link.AttachTCX(link.TCXOptions{
		Interface: iface.Index, Program: program, Attach: ebpf.AttachTCXEgress, Anchor: link.Head(),
	})
	if err != nil {
		return fmt.Errorf("attach egress check: %w", err)
	}
	return errors.Join(replacePin(path, l.Pin), l.Close())
}

func (d *Datapath) checkTCX(ifindex int) error {
	want := d.ids[d.programs.DpudEgress]
	have, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: ebpf.AttachTCXEgress})
	if err != nil {
		return fmt.Errorf("ask for egress programs: %w", err)
	}
	if len(have.Programs) == 0 || have.Programs[0].ID != want {
		return fmt.Errorf("%w: the egress check (program %d) isn't the first tcx program of the port", ErrUnguarded, want)
	}
	return nil
}

// The filter's place: first chain, first priority, every protocol.
const (
	clsactPriority = 1
	clsactHandle   = 1
)

func clsactFilter(ifindex int) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: ifindex, Parent: netlink.HANDLE_MIN_EGRESS,
			Handle: clsactHandle, Priority: clsactPriority, Protocol: unix.ETH_P_ALL,
		},
		Name: datapathProgDpudEgress, DirectAction: true,
	}
}

func clsact(ifindex int) netlink.Qdisc {
	return &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
		},
		QdiscType: "clsact",
	}
}

// attachClsact puts the filter in the place of an earlier one, if there is one; the kernel swaps them at once.
func (d *Datapath) attachClsact(iface Iface) error {
	if err := netlink.QdiscAdd(clsact(iface.Index)); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("add clsact: %w", err)
	}
	filter := clsactFilter(iface.Index)
	filter.Fd = d.programs.DpudEgress.FD()
	if err := netlink.FilterReplace(filter); err != nil {
		return fmt.Errorf("attach egress check as clsact filter: %w", err)
	}
	return nil
}

func (d *Datapath) checkClsact(ifindex int) error {
	want := d.ids[d.programs.DpudEgress]
	filters, err := egressFilters(ifindex)
	if err != nil {
		return err
	}
	if len(filters) > 0 {
		if f, ok := filters[0].(*netlink.BpfFilter); ok && f.Id == int(want) && f.DirectAction {
			return nil
		}
	}
	return fmt.Errorf("%w: the egress check (program %d) isn't the first clsact filter of the port", ErrUnguarded, want)
}

// egressFilters returns the port's egress filters in the order in which packets meet them.
func egressFilters(ifindex int) ([]netlink.Filter, error) {
	port := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: ifindex}}
	filters, err := netlink.FilterList(port, netlink.HANDLE_MIN_EGRESS)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) { // no clsact, no interface
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list egress filters: %w", err)
	}
	return filters, nil
}

// removeFilter removes the port's clsact filter if its program uses these maps, and clsact if nothing else is in it.
func removeFilter(ifindex int, t *Tables) error {
	filters, err := egressFilters(ifindex)
	if err != nil {
		return err
	}
	for _, f := range filters {
		bpf, ok := f.(*netlink.BpfFilter)
		if !ok || bpf.Name != datapathProgDpudEgress {
			continue
		}
		ours, err := t.usedBy(ebpf.ProgramID(bpf.Id))
		if err != nil {
			return err
		}
		if !ours {
			continue
		}
		bpf.LinkIndex = ifindex
		if err := netlink.FilterDel(bpf); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("remove egress filter: %w", err)
		}
		if err := removeEmptyClsact(ifindex); err != nil {
			return err
		}
	}
	return nil
}

func removeEmptyClsact(ifindex int) error {
	port := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: ifindex}}
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		if filters, err := netlink.FilterList(port, parent); err != nil || len(filters) != 0 {
			return nil // in use, or gone with the interface
		}
	}
	if err := netlink.QdiscDel(clsact(ifindex)); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove clsact: %w", err)
	}
	return nil
}

// usedBy says whether a program uses these maps; one that is gone doesn't.
func (t *Tables) usedBy(id ebpf.ProgramID) (bool, error) {
	program, err := ebpf.NewProgramFromID(id)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open program %d: %w", id, err)
	}
	defer func() { _ = program.Close() }()
	info, err := program.Info()
	if err != nil {
		return false, fmt.Errorf("look at program %d: %w", id, err)
	}
	isolation, err := t.maps.NodeTenant.Info()
	if err != nil {
		return false, fmt.Errorf("look at map: %w", err)
	}
	want, _ := isolation.ID()
	used, _ := info.MapIDs()
	return slices.Contains(used, want), nil
}

func programID(p *ebpf.Program) (ebpf.ProgramID, error) {
	info, err := p.Info()
	if err != nil {
		return 0, fmt.Errorf("look at program: %w", err)
	}
	id, _ := info.ID()
	return id, nil
}
