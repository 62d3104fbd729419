package rack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"dpud/pkg/maps"
	"dpud/pkg/record"
	"dpud/pkg/table"
	"dpud/test/prober"
)

// Stations are the rack's nodes as the prober sees them, n1 first.
func (r *Rack) Stations() []prober.Station {
	var stations []prober.Station
	for _, n := range Wiring() {
		stations = append(stations, prober.Station{
			Name: n.Name, MAC: n.MAC, V4: n.V4, V6: n.V6, Interface: NodeInterface, Home: n.Home,
			Inside: r.Namespace(n.Name).Do,
		})
	}
	return stations
}

// Probe starts a prober over all nodes at so many frames a second, with the DPUs' own maps as its authority.
// ids are the nodes' ids, n1 first.
func (r *Rack) Probe(rate int, limit time.Duration, ids []record.NodeID) (*prober.Prober, error) {
	c := prober.Config{
		Stations: r.Stations(), Rate: rate, Limit: limit, Period: time.Millisecond,
		Maps: make(map[record.DPU]func() (prober.Assignment, error)),
	}
	for _, dpu := range DPUs {
		c.Maps[dpu] = (&reader{pin: r.PinDir(dpu), ids: ids}).read
	}
	return prober.Start(c)
}

// reader reads one DPU's node_tenant map, and opens it again when another one is pinned in its place.
type reader struct {
	pin    string
	ids    []record.NodeID
	tables *maps.Tables
	inode  uint64
}

// read returns what the pinned map holds. Without a pinned map nothing is assigned: nothing may pass then.
func (r *reader) read() (prober.Assignment, error) {
	state := make(prober.Assignment, len(r.ids))
	info, err := os.Stat(filepath.Join(r.pin, "maps", table.NodeTenant.String()))
	if errors.Is(err, fs.ErrNotExist) {
		return state, nil
	}
	if err != nil {
		return nil, err
	}
	if inode := info.Sys().(*syscall.Stat_t).Ino; r.tables == nil || inode != r.inode {
		if r.tables != nil {
			_ = r.tables.Close() // only read from
			r.tables = nil
		}
		if r.tables, err = maps.OpenTables(r.pin); err != nil {
			return nil, err
		}
		r.inode = inode
	}
	for i, id := range r.ids {
		v, ok, err := r.tables.Get(table.Key{Map: table.NodeTenant, Node: id})
		if err != nil {
			return nil, err
		}
		if ok {
			state[i] = v.Tenant
		}
	}
	return state, nil
}

// Unguard joins each DPU's ports by a plain bridge, as they would be without dpud: everything passes.
func (r *Rack) Unguard() error {
	const bridge = "plain"
	for _, dpu := range DPUs {
		ns := r.Namespace(string(dpu))
		err := ns.Do(func() error {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = bridge
			if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
				return fmt.Errorf("add bridge %s: %w", bridge, err)
			}
			return raise(bridge, nil)
		})
		if err != nil {
			return err
		}
		for _, port := range []string{"p1", "p2", Uplink} {
			if err := enslave(ns, port, bridge); err != nil {
				return err
			}
			if err := ns.SetLink(port, true); err != nil {
				return err
			}
		}
	}
	return nil
}
