package maps

import (
	"errors"
	"fmt"
	"maps"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"dpud/pkg/record"
	"dpud/pkg/table"
)

// Put inserts one entry; in node_state, which no program reads, it replaces one too. Errors: ErrExists, ErrFull.
//
// If anything was deleted since the last barrier, it first waits for one: the kernel may give a freed entry's
// memory to the next one while a program still reads it, and the program would then take one node for another.
func (d *Datapath) Put(k table.Key, v table.Value) error {
	if err := checkValue(k, v); err != nil {
		return err
	}
	e, err := d.encode(k, v)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch k.Map {
	case table.Service4, table.Service6:
		return d.putService(k, v, e)
	case table.NodeState:
		err = e.update(ebpf.UpdateAny)
	default:
		err = d.insert(e)
	}
	if err != nil {
		return fmt.Errorf("put %s: %w", k, err)
	}
	return nil
}

// Delete deletes one entry; that it is absent is no error. Programs may still use it until [Datapath.Barrier].
func (d *Datapath) Delete(k table.Key) error {
	e, err := d.encode(k, table.Value{})
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	dirty := d.dirty
	if err := d.remove(e); err != nil {
		return fmt.Errorf("delete %s: %w", k, err)
	}
	if k.Map == table.NodeState {
		d.dirty = dirty // no program reads it
	}
	if k.Map == table.Service4 || k.Map == table.Service6 {
		return d.syncServiceMACs()
	}
	return nil
}

// Barrier returns when no program that may have read a map before the call still runs. It takes some
// milliseconds; one barrier serves any number of deletes before it.
//
// The kernel waits for a grace period of RCU, under which programs run, before it returns from an update of a map of
// maps, because user space is promised that programs see the new inner map by then (maybe_wait_bpf_programs in
// kernel/bpf/syscall.c). Packets that a program has passed already may still be queued behind it: the program at
// the egress judges those again.
func (d *Datapath) Barrier() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.barrier()
}

func (d *Datapath) barrier() error {
	if err := d.maps.Barrier.Update(uint32(0), d.inner, ebpf.UpdateAny); err != nil {
		return fmt.Errorf("wait for running programs: %w", err)
	}
	d.dirty = false
	return nil
}

func (d *Datapath) insert(e entry) error {
	if d.dirty {
		if err := d.barrier(); err != nil {
			return err
		}
	}
	return e.update(ebpf.UpdateNoExist)
}

func (e entry) update(flags ebpf.MapUpdateFlags) error {
	err := e.m.Update(e.key, e.value, flags)
	switch {
	case errors.Is(err, ebpf.ErrKeyExist):
		return ErrExists
	case errors.Is(err, unix.E2BIG), errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%w (%d entries)", ErrFull, e.m.MaxEntries())
	}
	return err
}

func (d *Datapath) remove(e entry) error {
	err := e.m.Delete(e.key)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	if err == nil {
		d.dirty = true
	}
	return err
}

// putService looks before it inserts: a trie knows BPF_NOEXIST only since Linux 6.13, and has one writer.
func (d *Datapath) putService(k table.Key, v table.Value, e entry) error {
	_, ok, err := d.get(k)
	if err == nil && ok {
		err = ErrExists
	}
	if err == nil {
		err = d.insert(e)
	}
	if err != nil {
		return fmt.Errorf("put %s: %w", k, err)
	}
	mac := entry{d.maps.ServiceMac, datapathMacKey{Mac: v.MAC}, datapathService{Mac: v.MAC}}
	if err := d.insert(mac); err != nil && !errors.Is(err, ErrExists) {
		return fmt.Errorf("put neighbour %s of %s: %w", v.MAC, k, err)
	}
	return nil
}

// syncServiceMACs makes service_mac hold the neighbours of the services, and no other.
func (d *Datapath) syncServiceMACs() error {
	services, neighbours := table.Tables{}, table.Tables{}
	err := errors.Join(
		readTrie(d.maps.Services4, services, decodeService4),
		readTrie(d.maps.Services6, services, decodeService6),
		readHash(d.maps.ServiceMac, neighbours, func(k datapathMacKey, v datapathService) (table.Key, table.Value) {
			return table.Key{MAC: k.Mac}, table.Value{MAC: v.Mac}
		}),
	)
	wanted := map[record.MAC]bool{}
	for v := range maps.Values(services) {
		wanted[v.MAC] = true
	}
	for v := range maps.Values(neighbours) {
		if !wanted[v.MAC] {
			err = errors.Join(err, d.remove(entry{m: d.maps.ServiceMac, key: datapathMacKey{Mac: v.MAC}}))
		}
		delete(wanted, v.MAC)
	}
	for mac := range wanted {
		err = errors.Join(err, d.insert(entry{d.maps.ServiceMac, datapathMacKey{Mac: mac}, datapathService{Mac: mac}}))
	}
	if err != nil {
		return fmt.Errorf("match neighbours to services: %w", err)
	}
	return nil
}
