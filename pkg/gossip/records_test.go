package gossip

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"

	"dpud/pkg/record"
)

// registers is an owner's set for tests. An encoded record is a site's name, a newline and a message with one item.
type registers struct {
	site string

	mu     sync.Mutex
	held   map[record.Key]item
	closed bool // calls are errors from now on
	late   int
}

func newRegisters() *registers {
	return &registers{site: "site", held: make(map[record.Key]item)}
}

var _ Records = (*registers)(nil)

func (r *registers) lock() func() {
	r.mu.Lock()
	if r.closed {
		r.late++
	}
	return r.mu.Unlock
}

func (r *registers) Versions(yield func(record.Key, record.Version) bool) {
	defer r.lock()()
	for k, it := range r.held {
		if !yield(k, it.version) {
			return
		}
	}
}

func (r *registers) Version(k record.Key) (record.Version, bool) {
	defer r.lock()()
	it, ok := r.held[k]
	return it.version, ok
}

func (r *registers) Get(k record.Key) (record.Version, []byte, bool) {
	defer r.lock()()
	it, ok := r.held[k]
	if !ok {
		return record.Version{}, nil, false
	}
	m := message{typ: typeRecords, items: []item{it}}
	return it.version, m.append([]byte(r.site + "\n")), true
}

func (r *registers) Merge(payload []byte) (bool, error) {
	site, b, _ := bytes.Cut(payload, []byte("\n"))
	if string(site) != r.site {
		return false, fmt.Errorf("site %q", site)
	}
	m, err := parse(b)
	if err != nil {
		return false, err
	}
	if len(m.items) != 1 {
		return false, errors.New("want one item")
	}
	it := m.items[0]
	it.payload = bytes.Clone(it.payload)
	return r.put(it), nil
}

func (r *registers) put(it item) bool {
	defer r.lock()()
	if old, ok := r.held[it.key]; ok && old.version.Compare(it.version) >= 0 {
		return false
	}
	r.held[it.key] = it
	return true
}

// versions is a copy of what is held.
func (r *registers) versions() map[record.Key]record.Version {
	defer r.lock()()
	out := make(map[record.Key]record.Version, len(r.held))
	for k, it := range r.held {
		out[k] = it.version
	}
	return out
}

func (r *registers) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// grant is a register of a size.
func grant(node, generation, size int) item {
	return item{
		key:     record.Key{Kind: record.KindGrant, Node: record.NodeID(node)},
		version: record.Version{1, uint64(generation), 1, 0},
		payload: []byte(strings.Repeat("x", size)),
	}
}

func sameVersions(a, b *registers) bool { return maps.Equal(a.versions(), b.versions()) }
