package maps

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/cilium/ebpf"

	"dpud/pkg/table"
)

// Tables reads the maps of a data plane. It never holds anything but what the kernel holds, and works whether or
// not dpud runs. Its methods are safe for concurrent use.
type Tables struct {
	maps datapathMaps
}

// OpenTables opens the maps pinned in a folder for reading, without a lock. Errors: ErrNotLoaded, ErrLayout.
func OpenTables(pin string) (*Tables, error) {
	t, err := openPinned(pin, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return nil, fmt.Errorf("open maps in %s: %w", pin, err)
	}
	if err := t.checkLayout(); err != nil {
		_ = t.Close()
		return nil, fmt.Errorf("open maps in %s: %w", pin, err)
	}
	return t, nil
}

// Close closes the maps; what they hold stays.
func (t *Tables) Close() error { return t.maps.Close() }

// byName returns where each map of the object goes.
func (m *datapathMaps) byName() map[string]**ebpf.Map {
	return map[string]**ebpf.Map{
		datapathMapBarrier:     &m.Barrier,
		datapathMapEndpoint4:   &m.Endpoint4,
		datapathMapEndpoint6:   &m.Endpoint6,
		datapathMapEndpointMac: &m.EndpointMac,
		datapathMapLocal4:      &m.Local4,
		datapathMapLocal6:      &m.Local6,
		datapathMapNodeState:   &m.NodeState,
		datapathMapNodeTenant:  &m.NodeTenant,
		datapathMapPorts:       &m.Ports,
		datapathMapReasons:     &m.Reasons,
		datapathMapServiceMac:  &m.ServiceMac,
		datapathMapServices4:   &m.Services4,
		datapathMapServices6:   &m.Services6,
		datapathMapSettings:    &m.Settings,
	}
}

func openPinned(pin string, opts *ebpf.LoadPinOptions) (*Tables, error) {
	t := &Tables{}
	for name, m := range t.maps.byName() {
		pinned, err := ebpf.LoadPinnedMap(filepath.Join(pin, mapsFolder, name), opts)
		if errors.Is(err, fs.ErrNotExist) {
			_ = t.Close()
			return nil, fmt.Errorf("open map %s: %w", name, ErrNotLoaded)
		}
		if err != nil {
			_ = t.Close()
			return nil, fmt.Errorf("open map %s: %w", name, err)
		}
		*m = pinned
	}
	return t, nil
}

func (t *Tables) mapOf(m table.Map) *ebpf.Map {
	switch m {
	case table.NodeState:
		return t.maps.NodeState
	case table.Endpoint4:
		return t.maps.Endpoint4
	case table.Endpoint6:
		return t.maps.Endpoint6
	case table.EndpointMAC:
		return t.maps.EndpointMac
	case table.NodeTenant:
		return t.maps.NodeTenant
	case table.Service4:
		return t.maps.Services4
	case table.Service6:
		return t.maps.Services6
	}
	return nil
}

// Read reads every entry of every map back from the kernel. While another process writes, it is no snapshot: an
// entry that changes meanwhile may or may not be in it.
func (t *Tables) Read() (table.Tables, error) {
	out := table.Tables{}
	err := errors.Join(
		readHash(t.maps.NodeState, out, decodeNodeState),
		readHash(t.maps.Endpoint4, out, decodeEndpoint4),
		readHash(t.maps.Endpoint6, out, decodeEndpoint6),
		readHash(t.maps.EndpointMac, out, decodeEndpointMAC),
		readHash(t.maps.NodeTenant, out, decodeNodeTenant),
		readTrie(t.maps.Services4, out, decodeService4),
		readTrie(t.maps.Services6, out, decodeService6),
	)
	if err != nil {
		return nil, fmt.Errorf("read maps: %w", err)
	}
	return out, nil
}

// Get reads one entry back from the kernel, and says whether it is there.
func (t *Tables) Get(k table.Key) (table.Value, bool, error) {
	v, ok, err := t.get(k)
	if err != nil {
		return table.Value{}, false, fmt.Errorf("get %s: %w", k, err)
	}
	return v, ok, nil
}

func (t *Tables) get(k table.Key) (table.Value, bool, error) {
	e, err := t.encode(k, table.Value{})
	if err != nil {
		return table.Value{}, false, err
	}
	switch k.Map {
	case table.NodeState:
		return lookup(e, decodeNodeState)
	case table.NodeTenant:
		return lookup(e, decodeNodeTenant)
	case table.Endpoint4:
		return lookup(e, decodeEndpoint4)
	case table.Endpoint6:
		return lookup(e, decodeEndpoint6)
	case table.EndpointMAC:
		return lookup(e, decodeEndpointMAC)
	}
	// A trie's lookup finds the longest prefix, not this one: read them all.
	services := table.Tables{}
	if k.Map == table.Service4 {
		err = readTrie(e.m, services, decodeService4)
	} else {
		err = readTrie(e.m, services, decodeService6)
	}
	v, ok := services[k]
	return v, ok, err
}

func lookup[K, V any](e entry, decode func(K, V) (table.Key, table.Value)) (table.Value, bool, error) {
	var raw V
	err := e.m.Lookup(e.key, &raw)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return table.Value{}, false, nil
	}
	if err != nil {
		return table.Value{}, false, err
	}
	_, v := decode(e.key.(K), raw)
	return v, true, nil
}

// readHash reads a hash in batches, bucket by bucket: entries deleted meanwhile can't make it start over.
func readHash[K, V any](m *ebpf.Map, out table.Tables, decode func(K, V) (table.Key, table.Value)) error {
	const batch = 1024 // a bucket must fit
	keys, values := make([]K, batch), make([]V, batch)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("read %s: %w", m, err)
		}
		for i := range n {
			k, v := decode(keys[i], values[i])
			out[k] = v
		}
		if err != nil {
			return nil
		}
	}
}

// readTrie walks a trie key by key, again from the start if what it stood on was deleted too often.
func readTrie[K, V any](m *ebpf.Map, out table.Tables, decode func(K, V) (table.Key, table.Value)) error {
	for {
		var (
			key   K
			value V
		)
		found := table.Tables{}
		it := m.Iterate()
		for it.Next(&key, &value) {
			k, v := decode(key, value)
			found[k] = v
		}
		if errors.Is(it.Err(), ebpf.ErrIterationAborted) {
			continue
		}
		if it.Err() != nil {
			return fmt.Errorf("read %s: %w", m, it.Err())
		}
		for k, v := range found {
			out[k] = v
		}
		return nil
	}
}
