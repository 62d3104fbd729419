package dpud

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

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

// owns says whether a program judges by this data plane's map.
func (o owner) owns(id ebpf.ProgramID) bool {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return false
	}
	defer func() { _ = p.Close() }()
	info, err := p.Info()
	if err != nil {
		return false
	}
	used, ok := info.MapIDs()
	return ok && slices.Contains(used, o.isolation)
}

// ingress says whether a link's XDP program is this data plane's.
func (o owner) ingress(l netlink.Link) bool {
	xdp := l.Attrs().Xdp
	return xdp != nil && xdp.ProgId != 0 && o.owns(ebpf.ProgramID(xdp.ProgId))
}

// egress says whether the first program or filter of a link's egress is this data plane's.
func (o owner) egress(l netlink.Link) bool {
	tcx, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: ebpf.AttachTCXEgress})
	if err == nil && len(tcx.Programs) > 0 {
		return o.owns(tcx.Programs[0].ID)
	}
	filters, err := netlink.FilterList(l, netlink.HANDLE_MIN_EGRESS)
	if err != nil || len(filters) == 0 {
		return false
	}
	f, ok := filters[0].(*netlink.BpfFilter)
	return ok && o.owns(ebpf.ProgramID(f.Id))
}

// guard is the data plane as package ports sees it.
type guard struct {
	*maps.Datapath
	owner owner
}

// Runs says whether a link is guarded already, by a run before this one perhaps.
func (g guard) Runs(ifindex int, role maps.Role) bool {
	l, err := netlink.LinkByIndex(ifindex)
	return err == nil && g.owner.ingress(l) && (role != maps.RoleNode || g.owner.egress(l))
}
