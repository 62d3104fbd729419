package rack

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"dpud/pkg/record"
)

// end is one end of a veth pair.
type end struct {
	ns   *Namespace
	name string
	mac  record.MAC // zero: the kernel's choice
	// up raises the interface; ports of a DPU stay down until dpud raises them.
	up        bool
	addresses []netip.Prefix
	// plain switches every offload off.
	plain bool
}

// connect makes a veth pair between two namespaces.
func connect(a, b end) error {
	err := a.ns.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = a.name
		attrs.HardwareAddr = hardware(a.mac)
		pair := &netlink.Veth{
			LinkAttrs:        attrs,
			PeerName:         b.name,
			PeerHardwareAddr: hardware(b.mac),
			PeerNamespace:    netlink.NsFd(b.ns.handle),
		}
		if err := netlink.LinkAdd(pair); err != nil {
			return fmt.Errorf("add veth %s: %w", a.name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return errors.Join(a.configure(), b.configure())
}

func hardware(m record.MAC) net.HardwareAddr {
	if m == (record.MAC{}) {
		return nil
	}
	return net.HardwareAddr(m[:])
}

func (e end) configure() error {
	return e.ns.Do(func() error {
		if e.plain {
			if err := offloadsOff(e.name); err != nil {
				return err
			}
		}
		if !e.up {
			return nil
		}
		return raise(e.name, e.addresses)
	})
}

// raise gives an interface of the calling thread's namespace its addresses and sets it up.
func raise(name string, addresses []netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	for _, p := range addresses {
		// No detection of duplicates: the address is usable at once.
		const ifaFlagNodad = 0x02
		addr := &netlink.Addr{
			IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
			Flags: ifaFlagNodad,
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("add %s to %s: %w", p, name, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("raise %s: %w", name, err)
	}
	return nil
}

// addBridge makes a bridge that is up and has an address.
func addBridge(ns *Namespace, name string, address netip.Prefix) error {
	return ns.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("add bridge %s: %w", name, err)
		}
		return raise(name, []netip.Prefix{address})
	})
}

// enslave makes port a port of bridge.
func enslave(ns *Namespace, port, bridge string) error {
	return ns.Do(func() error {
		p, err := netlink.LinkByName(port)
		if err != nil {
			return fmt.Errorf("find %s: %w", port, err)
		}
		b, err := netlink.LinkByName(bridge)
		if err != nil {
			return fmt.Errorf("find %s: %w", bridge, err)
		}
		return netlink.LinkSetMaster(p, b)
	})
}

// SetLink raises or lowers an interface.
func (n *Namespace) SetLink(name string, up bool) error {
	return n.Do(func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find %s: %w", name, err)
		}
		if up {
			return netlink.LinkSetUp(link)
		}
		return netlink.LinkSetDown(link)
	})
}

// ForgetNeighbours empties the neighbour tables of the nodes: without enforcement they have learned from frames that
// lied.
func (r *Rack) ForgetNeighbours() error {
	var errs []error
	for _, name := range Nodes {
		errs = append(errs, r.Namespace(name).Do(func() error {
			link, err := netlink.LinkByName(NodeInterface)
			if err != nil {
				return fmt.Errorf("find %s: %w", NodeInterface, err)
			}
			neighbours, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
			if err != nil {
				return fmt.Errorf("list neighbours of %s: %w", name, err)
			}
			for _, n := range neighbours {
				if err := netlink.NeighDel(&n); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return fmt.Errorf("forget neighbour %s of %s: %w", n.IP, name, err)
				}
			}
			return nil
		}))
	}
	return errors.Join(errs...)
}
