package ports

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	dmaps "dpud/pkg/maps"
)

// BridgeAlias marks a bridge that dpud made and unload may remove.
const BridgeAlias = "made by dpud"

// makeBridge finds the bridge, or makes it, and has it up. It returns its index.
func (p *Ports) makeBridge(w *world) (int, error) {
	for _, l := range w.links {
		if l.Attrs().Name != p.cfg.Bridge {
			continue
		}
		b, ok := l.(*netlink.Bridge)
		if !ok {
			return 0, fmt.Errorf("link %s is a %s, not a bridge; give another name as ports.bridge", p.cfg.Bridge, l.Type())
		}
		return b.Index, p.setBridge(b)
	}
	if !p.cfg.CreateBridge {
		return 0, fmt.Errorf("there is no bridge %s, and ports.create_bridge is false", p.cfg.Bridge)
	}
	no := false
	b := &netlink.Bridge{
		LinkAttrs:         netlink.LinkAttrs{Name: p.cfg.Bridge, HardwareAddr: p.cfg.BridgeMAC, TxQLen: -1},
		MulticastSnooping: &no,
	}
	if err := p.nl.LinkAdd(b); err != nil {
		return 0, fmt.Errorf("make bridge %s: %w", p.cfg.Bridge, err)
	}
	p.log.Info("bridge made", "bridge", b.Name, "ifindex", b.Index)
	return b.Index, errors.Join(p.nl.LinkSetAlias(b, BridgeAlias), p.setBridge(b))
}

// setBridge turns off what would multiply or filter frames behind our back, and raises the bridge. A bridge
// made by others is not told to stop its spanning tree: that would make a loop of theirs.
func (p *Ports) setBridge(b *netlink.Bridge) error {
	if b.VlanFiltering != nil && *b.VlanFiltering {
		if err := p.nl.BridgeSetVlanFiltering(b, false); err != nil {
			return fmt.Errorf("turn off VLAN filtering of bridge %s: %w", b.Name, err)
		}
	}
	if b.MulticastSnooping != nil && *b.MulticastSnooping {
		if err := p.nl.BridgeSetMcastSnoop(b, false); err != nil {
			return fmt.Errorf("turn off multicast snooping of bridge %s: %w", b.Name, err)
		}
	}
	if b.RawFlags&unix.IFF_UP == 0 {
		if err := p.nl.LinkSetUp(b); err != nil {
			return fmt.Errorf("raise bridge %s: %w", b.Name, err)
		}
	}
	return nil
}

// brport is what we set of a bridge port. The kernel's defaults are flooding and learning on.
type brport struct {
	flood, multicastFlood, broadcastFlood, learning, isolated bool
}

// wantedFlags: nodes' frames are never flooded, as their destinations all have forwarding entries, and nothing
// is flooded to a node. What the DPU itself sends, and what nodes send to services, has none and finds its way
// through the uplinks; those are isolated from each other, so that two never make a loop.
func wantedFlags(role dmaps.Role) brport {
	uplink := role == dmaps.RoleUplink
	return brport{flood: uplink, multicastFlood: uplink, broadcastFlood: uplink, isolated: uplink}
}

// attributes of a bridge port, as in linux/if_link.h.
func (f *brport) attributes() map[uint16]*bool {
	return map[uint16]*bool{
		nl.IFLA_BRPORT_UNICAST_FLOOD: &f.flood,
		nl.IFLA_BRPORT_MCAST_FLOOD:   &f.multicastFlood,
		nl.IFLA_BRPORT_BCAST_FLOOD:   &f.broadcastFlood,
		nl.IFLA_BRPORT_LEARNING:      &f.learning,
		nl.IFLA_BRPORT_ISOLATED:      &f.isolated,
	}
}

// setBridgePort sets all flags in one message.
func setBridgePort(index int, f brport) error {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_BRIDGE)
	msg.Index = int32(index)
	req.AddData(msg)
	info := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
	for attr, on := range f.attributes() {
		value := []byte{0}
		if *on {
			value[0] = 1
		}
		info.AddRtAttr(int(attr), value)
	}
	req.AddData(info)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("turn off flooding and learning of link %d: %w", index, err)
	}
	return nil
}

// bridgePorts reads the flags of every bridge port, by interface index.
func bridgePorts() (map[int]brport, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_BRIDGE))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, err
	}
	ports := make(map[int]brport)
	for _, m := range msgs {
		index := int(nl.DeserializeIfInfomsg(m).Index)
		attrs, err := nl.ParseRouteAttr(m[unix.SizeofIfInfomsg:])
		if err != nil {
			return nil, err
		}
		for _, a := range attrs {
			if a.Attr.Type&^uint16(unix.NLA_F_NESTED) != unix.IFLA_PROTINFO {
				continue
			}
			f, err := parseBridgePort(a)
			if err != nil {
				return nil, err
			}
			ports[index] = f
		}
	}
	return ports, nil
}

func parseBridgePort(a syscall.NetlinkRouteAttr) (brport, error) {
	var f brport
	infos, err := nl.ParseRouteAttr(a.Value)
	if err != nil {
		return f, err
	}
	fields := f.attributes()
	for _, i := range infos {
		if field := fields[i.Attr.Type&^uint16(unix.NLA_F_NESTED)]; field != nil && len(i.Value) > 0 {
			*field = i.Value[0] != 0
		}
	}
	return f, nil
}
