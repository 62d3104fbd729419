package dpud

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"dpud/internal/dpud/config"
	"dpud/internal/dpud/ports"
	"dpud/pkg/maps"
)

// owner recognises the programs of one data plane in the kernel, whoever loaded them, by the isolation map that
// they use.
type owner struct{ isolation ebpf.MapID }

func newOwner(pin string) (owner, error) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(pin, "maps", "node_tenant"), &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return owner{}, fmt.Errorf("open isolation map: %w", err)
	}
	defer func() { _ = m.Close() }()
	info, err := m.Info()
	if err != nil {
		return owner{}, fmt.Errorf("look at isolation map: %w", err)
	}
	id, ok := info.ID()
	if !ok {
		return owner{}, errors.New("look at isolation map: the kernel tells no id")
	}
	return owner{isolation: id}, nil
}

// judge is what a program is to a data plane.
type judge struct{ ours, other bool } // other: a dpud's, which judges by another isolation map

// judge looks at a program; one that is gone is nobody's.
func (o owner) judge(id ebpf.ProgramID) (judge, error) {
	p, err := ebpf.NewProgramFromID(id)
	if errors.Is(err, fs.ErrNotExist) {
		return judge{}, nil
	}
	if err != nil {
		return judge{}, fmt.Errorf("open program %d: %w", id, err)
	}
	defer func() { _ = p.Close() }()
	info, err := p.Info()
	if err != nil {
		return judge{}, fmt.Errorf("look at program %d: %w", id, err)
	}
	used, _ := info.MapIDs()
	ours := slices.Contains(used, o.isolation)
	return judge{ours: ours, other: !ours && (info.Name == "dpud_ingress" || info.Name == "dpud_egress")}, nil
}

// owns says whether a program judges by this data plane's map.
func (o owner) owns(id ebpf.ProgramID) bool {
	j, err := o.judge(id)
	return err == nil && j.ours
}

// ingress says whether a link's XDP program is this data plane's.
func (o owner) ingress(l netlink.Link) bool {
	xdp := l.Attrs().Xdp
	return xdp != nil && xdp.ProgId != 0 && o.owns(ebpf.ProgramID(xdp.ProgId))
}

// egress says whether the first program or filter of a link's egress is this data plane's.
func (o owner) egress(l netlink.Link) bool {
	ids := egressPrograms(l)
	return len(ids) > 0 && o.owns(ids[0])
}

// egressPrograms returns the programs that a link's packets meet on their way out; a filter that is none is 0.
func egressPrograms(l netlink.Link) (ids []ebpf.ProgramID) {
	tcx, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: ebpf.AttachTCXEgress})
	if err == nil {
		for _, p := range tcx.Programs {
			ids = append(ids, p.ID)
		}
	}
	filters, err := netlink.FilterList(l, netlink.HANDLE_MIN_EGRESS)
	if err != nil {
		return ids // no clsact
	}
	for _, f := range filters {
		bpf, ok := f.(*netlink.BpfFilter)
		if !ok {
			bpf = new(netlink.BpfFilter)
		}
		ids = append(ids, ebpf.ProgramID(bpf.Id))
	}
	return ids
}

// Other returns an error if a program on a link judges by the isolation map of another data plane, whose
// assignments nobody here would know of.
func (o owner) Other(l netlink.Link) error {
	ids := egressPrograms(l)
	if xdp := l.Attrs().Xdp; xdp != nil {
		ids = append(ids, ebpf.ProgramID(xdp.ProgId))
	}
	for _, id := range ids {
		if id == 0 {
			continue
		}
		j, err := o.judge(id)
		if err != nil {
			return fmt.Errorf("link %s: %w", l.Attrs().Name, err)
		}
		if j.other {
			return fmt.Errorf("link %s: %w (program %d)", l.Attrs().Name, errOther, id)
		}
	}
	return nil
}

var errOther = errors.New("it is guarded by another data plane, pinned in another folder: reclaim its nodes and run `dpud unload --pin` with that folder first")

// refuseOther returns an error if a link that the configuration names is guarded by another data plane, as after
// a change of the pin folder: two would enforce side by side, and each prove for itself alone.
func refuseOther(cfg *config.Config) error {
	own, err := newOwner(cfg.Pin)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	links, err := ports.Links(netlink.LinkList)
	if err != nil {
		return err
	}
	for _, l := range links {
		if portsConfig(cfg, "").Names(l.Attrs().Name) {
			if err := own.Other(l); err != nil {
				return err
			}
		}
	}
	return nil
}

// guard is the data plane as package ports sees it.
type guard struct {
	*maps.Datapath
	owner
}

// Runs says whether a link is guarded already, by a run before this one perhaps.
func (g guard) Runs(ifindex int, role maps.Role) bool {
	l, err := netlink.LinkByIndex(ifindex)
	return err == nil && g.ingress(l) && g.egress(l)
}
