package dpud

import (
	"fmt"

	"dpud/internal/dpud/ports"
	"dpud/pkg/maps"
	"dpud/pkg/table"
)

// Kernel is what the loop does to the kernel. Its methods block until done and are called by one goroutine.
type Kernel interface {
	// Put inserts an entry; one that exists is an error, but for node_state, which no program reads.
	Put(table.Key, table.Value) error
	// Delete removes an entry; an absent one is no error.
	Delete(table.Key) error
	// Barrier waits until no program runs that began before it.
	Barrier() error
	// Read reads every entry back.
	Read() (table.Tables, error)
	// Get reads one entry back.
	Get(table.Key) (table.Value, bool, error)
	// Guarded asks whether every port enforces, and returns why not.
	Guarded() error
	// Forward brings what the bridge forwards in line with the entries.
	Forward(table.Tables) error
}

// datapath is the real kernel: maps, and the bridge behind them.
type datapath struct {
	*maps.Datapath
	ports *ports.Ports
	stale ports.Forwarding
}

var _ Kernel = (*datapath)(nil)

func (d *datapath) Put(k table.Key, v table.Value) error {
	if k.Map == table.EndpointMAC {
		// First the way, then the permission: a frame that passes is never flooded.
		if err := d.ports.Forward(k.MAC, int(v.Ifindex)); err != nil {
			return err
		}
	}
	return d.Datapath.Put(k, v)
}

func (d *datapath) Guarded() error {
	mode, err := d.Mode()
	if err != nil {
		return err
	}
	if mode != maps.Enforce {
		return fmt.Errorf("mode is %s, not enforce", mode)
	}
	return d.ports.Guarded()
}

func (d *datapath) Forward(entries table.Tables) error {
	wanted := make(ports.Forwarding)
	for k, v := range entries {
		if k.Map == table.EndpointMAC {
			wanted[k.MAC] = int(v.Ifindex)
		}
	}
	stale, err := d.ports.SweepForwarding(wanted, d.stale)
	d.stale = stale
	return err
}
