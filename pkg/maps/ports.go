package maps

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
)

// Role says which kind of neighbour a port leads to.
type Role uint32

// The roles of a port.
const (
	RoleNode   = Role(datapathPortRolePORT_NODE)
	RoleUplink = Role(datapathPortRolePORT_UPLINK)
)

func (r Role) String() string {
	switch r {
	case RoleNode:
		return "node"
	case RoleUplink:
		return "uplink"
	}
	return fmt.Sprintf("role(%d)", uint32(r))
}

// SetPort tells the programs the role of a port; [Datapath.Attach] does it too. A packet on a port without a role
// is dropped.
func (d *Datapath) SetPort(ifindex int, role Role) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.setPort(ifindex, role)
}

func (d *Datapath) setPort(ifindex int, role Role) error {
	key := datapathPortKey{Ifindex: uint32(ifindex)}
	var old datapathPort
	err := d.maps.Ports.Lookup(key, &old)
	if err == nil && Role(old.Role) == role {
		return nil
	}
	if err == nil {
		err = d.remove(entry{m: d.maps.Ports, key: key})
	} else if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = nil
	}
	if err == nil {
		err = d.insert(entry{d.maps.Ports, key, datapathPort{Role: datapathPortRole(role)}})
	}
	if err != nil {
		return fmt.Errorf("set port %d: %w", ifindex, err)
	}
	return nil
}

// DeletePort takes a port's role away; that it has none is no error.
func (d *Datapath) DeletePort(ifindex int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.remove(entry{m: d.maps.Ports, key: datapathPortKey{Ifindex: uint32(ifindex)}}); err != nil {
		return fmt.Errorf("delete port %d: %w", ifindex, err)
	}
	return nil
}

// Ports returns the roles of the ports, by interface index.
func (t *Tables) Ports() (map[int]Role, error) {
	ports := map[int]Role{}
	var (
		key   datapathPortKey
		value datapathPort
	)
	it := t.maps.Ports.Iterate()
	for it.Next(&key, &value) {
		ports[int(key.Ifindex)] = Role(value.Role)
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("read ports: %w", err)
	}
	return ports, nil
}

// SetLocal lists the DPU's own addresses (64 of each family at most), which uplinks let through to it.
func (d *Datapath) SetLocal(addrs []netip.Addr) error {
	want4, want6 := map[datapathAddress4]bool{}, map[datapathAddress6]bool{}
	for _, a := range addrs {
		a = a.Unmap().WithZone("")
		if a.Is4() {
			want4[datapathAddress4{Addr: a.As4()}] = true
		} else {
			want6[datapathAddress6{Addr: a.As16()}] = true
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := errors.Join(setListed(d, d.maps.Local4, want4), setListed(d, d.maps.Local6, want6)); err != nil {
		return fmt.Errorf("set local addresses: %w", err)
	}
	return nil
}

// Local returns the DPU's own addresses, in no order.
func (t *Tables) Local() ([]netip.Addr, error) {
	have4, err4 := listed[datapathAddress4](t.maps.Local4)
	have6, err6 := listed[datapathAddress6](t.maps.Local6)
	if err := errors.Join(err4, err6); err != nil {
		return nil, fmt.Errorf("read local addresses: %w", err)
	}
	var addrs []netip.Addr
	for _, a := range have4 {
		addrs = append(addrs, netip.AddrFrom4(a.Addr))
	}
	for _, a := range have6 {
		addrs = append(addrs, netip.AddrFrom16(a.Addr))
	}
	return addrs, nil
}

func listed[K any](m *ebpf.Map) ([]K, error) {
	var (
		key  K
		keys []K
		one  datapathListed
	)
	it := m.Iterate()
	for it.Next(&key, &one) {
		keys = append(keys, key)
	}
	return keys, it.Err()
}

func setListed[K comparable](d *Datapath, m *ebpf.Map, want map[K]bool) error {
	have, err := listed[K](m)
	if err != nil {
		return err
	}
	missing := map[K]bool{}
	for k := range want {
		missing[k] = true
	}
	for _, k := range have {
		delete(missing, k)
		if !want[k] {
			if err := d.remove(entry{m: m, key: k}); err != nil {
				return err
			}
		}
	}
	for k := range missing {
		if err := d.insert(entry{m, k, datapathListed{Listed: 1}}); err != nil {
			return err
		}
	}
	return nil
}
