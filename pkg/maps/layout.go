package maps

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// loadSpec returns the programs and maps as compiled, sized for a number of nodes.
func loadSpec(nodes uint32) (*ebpf.CollectionSpec, error) {
	spec, err := loadDatapath()
	if err != nil {
		return nil, fmt.Errorf("read compiled programs: %w", err)
	}
	nodes = cmp.Or(nodes, DefaultMaxNodes)
	spec.Maps[datapathMapNodeTenant].MaxEntries = nodes
	spec.Maps[datapathMapNodeState].MaxEntries = nodes
	spec.Maps[datapathMapEndpointMac].MaxEntries = nodes
	spec.Maps[datapathMapEndpoint4].MaxEntries = 2 * nodes
	spec.Maps[datapathMapEndpoint6].MaxEntries = 4 * nodes
	return spec, nil
}

// fingerprint is a 64-bit hash of the names and types of the maps: two versions of dpud read the same meaning
// from the same bytes if it is equal. Sizes that options change are not in it. It is never 0.
func fingerprint(spec *ebpf.CollectionSpec) (uint64, error) {
	h := fnv.New64a()
	for _, name := range slices.Sorted(maps.Keys((&datapathMaps{}).byName())) {
		if name == datapathMapBarrier { // holds nothing
			continue
		}
		m := spec.Maps[name]
		var format btf.GoFormatter
		key, err := format.TypeDeclaration("key", m.Key)
		if err != nil {
			return 0, fmt.Errorf("describe key of map %s: %w", name, err)
		}
		value, err := format.TypeDeclaration("value", m.Value)
		if err != nil {
			return 0, fmt.Errorf("describe value of map %s: %w", name, err)
		}
		fmt.Fprintln(h, name, m.Type, m.Flags, key, value)
	}
	return max(h.Sum64(), 1), nil
}

// checkLayout returns ErrLayout unless the maps' layout is this version's.
func (t *Tables) checkLayout() error {
	spec, err := loadSpec(0)
	if err != nil {
		return err
	}
	want, err := fingerprint(spec)
	if err != nil {
		return err
	}
	for name, m := range t.maps.byName() {
		s := spec.Maps[name]
		s.MaxEntries = (*m).MaxEntries()
		if err := s.Compatible(*m); err != nil {
			return errors.Join(ErrLayout, err)
		}
	}
	have, err := t.settings()
	if err != nil {
		return err
	}
	if have.Layout != want {
		return fmt.Errorf("%w (layout %x, want %x)", ErrLayout, have.Layout, want)
	}
	return nil
}

// checkSizes returns ErrLayout if a map has less room than the spec asks for. More is fine.
func (t *Tables) checkSizes(spec *ebpf.CollectionSpec) error {
	for name, m := range t.maps.byName() {
		if have, want := (*m).MaxEntries(), spec.Maps[name].MaxEntries; have < want {
			return fmt.Errorf("%w, or lower max_nodes: map %s has room for %d entries, not %d", ErrLayout, name, have, want)
		}
	}
	return nil
}

// writeLayout marks new maps with this version's layout.
func (t *Tables) writeLayout(spec *ebpf.CollectionSpec) error {
	layout, err := fingerprint(spec)
	if err != nil {
		return err
	}
	if err := t.storeSetting(unsafe.Offsetof(datapathSettings{}.Layout), layout); err != nil {
		return err
	}
	return t.storeSetting(unsafe.Offsetof(datapathSettings{}.Mode), uint64(Enforce))
}
