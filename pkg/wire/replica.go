package wire

import (
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/record"
)

// Replica is a process's copy of the records of its pool, with their envelopes, as gossip spreads them. It
// is safe for concurrent use.
type Replica struct {
	mu        sync.Mutex
	site      record.SiteID
	set       record.Set
	envelopes map[record.Key][]byte
	heard     func(record.Record)
}

// NewReplica returns an empty replica of a site's records. heard is called for every record that was newer
// than what the replica held, after it is stored, without a lock held and in any goroutine; it must not
// block. An empty site takes the site of the first record.
func NewReplica(site record.SiteID, heard func(record.Record)) *Replica {
	return &Replica{site: site, envelopes: make(map[record.Key][]byte), heard: heard}
}

// SetSite fixes the site of a replica that had none.
func (r *Replica) SetSite(site record.SiteID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.site = site
}

// Site returns the site, or "".
func (r *Replica) Site() record.SiteID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.site
}

// Put stores a record of this process, sealed for the site, if it is newer. It does not call heard.
func (r *Replica) Put(epoch record.Epoch, rec record.Record) (changed bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, err := Seal(r.site, epoch, rec)
	if err != nil {
		return false, err
	}
	return r.store(rec, e)
}

// Take opens an envelope and stores its record if it is newer.
func (r *Replica) Take(e *dpudv1.Envelope) (changed bool, err error) {
	r.mu.Lock()
	rec, err := Open(r.site, e)
	if err == nil {
		changed, err = r.store(rec, e)
	}
	r.mu.Unlock()
	if changed && r.heard != nil {
		r.heard(rec)
	}
	return changed, err
}

// store merges; the lock is held.
func (r *Replica) store(rec record.Record, e *dpudv1.Envelope) (bool, error) {
	b, err := proto.Marshal(e)
	if err != nil {
		return false, fmt.Errorf("encode %s: %w", rec.Key(), err)
	}
	if !r.set.Merge(rec) {
		return false, nil
	}
	r.envelopes[rec.Key()] = b
	return true, nil
}

// Merge takes an encoded envelope from gossip.
func (r *Replica) Merge(b []byte) (changed bool, err error) {
	e := new(dpudv1.Envelope)
	if err := proto.Unmarshal(b, e); err != nil {
		return false, fmt.Errorf("merge record: %w", err)
	}
	return r.Take(e)
}

// Version returns which version of a register is held, and whether any is.
func (r *Replica) Version(k record.Key) (record.Version, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.set.Get(k)
	if rec == nil {
		return record.Version{}, false
	}
	return rec.Version(), true
}

// Get returns the version and the encoded envelope of a register.
func (r *Replica) Get(k record.Key) (record.Version, []byte, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.set.Get(k)
	if rec == nil {
		return record.Version{}, nil, false
	}
	return rec.Version(), r.envelopes[k], true
}

// Record returns a register's newest record, or nil.
func (r *Replica) Record(k record.Key) record.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.set.Get(k)
}

// Versions calls yield for every register, in key order, until it returns false. The replica is not locked
// meanwhile.
func (r *Replica) Versions(yield func(record.Key, record.Version) bool) {
	r.mu.Lock()
	keys := r.set.Keys()
	versions := make([]record.Version, len(keys))
	for i, k := range keys {
		versions[i] = r.set.Get(k).Version()
	}
	r.mu.Unlock()
	for i, k := range keys {
		if !yield(k, versions[i]) {
			return
		}
	}
}
