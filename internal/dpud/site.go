package dpud

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/record"
	"dpud/pkg/wire"
)

// siteFile remembers to which site the maps in a pin folder belong: a symbolic link beside the folder, whose
// target is the site's id. A bpffs holds no other files, and it lasts exactly as long as the maps do.
func siteFile(pin string) string { return pin + "_site" }

// loadSite returns the site of a pin folder's maps, or "" for maps that never had a lease.
func loadSite(pin string) (record.SiteID, error) {
	id, err := os.Readlink(siteFile(pin))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read site of %s: %w", pin, err)
	}
	return record.SiteID(id), nil
}

// saveSite is the point at which a DPU joins a site; from then on only unload lets it go.
func saveSite(pin string, id record.SiteID) error {
	if err := os.Symlink(string(id), siteFile(pin)); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("remember site: %w", err)
	}
	return nil
}

// records is the replica of dpud: it takes records of one site and counts those that it refuses. A dpud that
// belongs to no site yet refuses all, and looks at leases alone: only an answer to its own request makes it join.
type records struct {
	*wire.Replica
	log *slog.Logger
	// early is told of leases and lease requests that come in before a site is joined.
	early func(record.SiteID, record.Record)

	siteMu         sync.Mutex
	joined         bool            // the replica's site is this dpud's, for good
	offered        []record.SiteID // sites heard of before that, the newest last
	turn           int             // of offered
	otherSite      record.SiteID   // last one that was refused, and said so
	refusedSite    atomic.Uint64
	refusedContent atomic.Uint64
}

// maxOffered bounds the sites that are remembered until one is joined; a pool has one, or two by mistake.
const maxOffered = 8

var errNoSite = errors.New("this DPU belongs to no site yet: it takes records once a controller has answered its lease request; send them again")

// Site returns the site that this dpud belongs to, or "".
func (r *records) Site() record.SiteID {
	r.siteMu.Lock()
	defer r.siteMu.Unlock()
	if !r.joined {
		return ""
	}
	return r.Replica.Site()
}

// join fixes the site.
func (r *records) join(site record.SiteID) {
	r.siteMu.Lock()
	defer r.siteMu.Unlock()
	r.SetSite(site)
	r.joined = true
}

// putRequest keeps a lease request for gossip. Before a site is joined it is sealed for one that was heard of,
// each in turn, as others refuse a record of no site; while none was, it is not kept.
func (r *records) putRequest(epoch record.Epoch, q *record.LeaseRequest) (changed bool, err error) {
	r.siteMu.Lock()
	defer r.siteMu.Unlock()
	if !r.joined {
		if len(r.offered) == 0 {
			return false, nil
		}
		r.SetSite(r.offered[r.turn%len(r.offered)])
		r.turn++
	}
	return r.Put(epoch, q)
}

// Take opens an envelope and stores its record if it is newer.
func (r *records) Take(e *dpudv1.Envelope) (changed bool, err error) {
	if r.Site() == "" {
		return false, r.consider(e)
	}
	changed, err = r.Replica.Take(e)
	return changed, r.refuse(e, err)
}

// consider looks at a record that comes in before a site is joined, and refuses it: it will be sent again.
func (r *records) consider(e *dpudv1.Envelope) error {
	rec, err := wire.Open("", e)
	site := record.SiteID(e.GetSiteId())
	if err == nil && site == "" {
		err = errors.New("open record: it is of no site")
	}
	if err != nil {
		return r.refuse(e, err)
	}
	r.siteMu.Lock()
	if !slices.Contains(r.offered, site) {
		r.offered = append(r.offered, site)
		r.offered = r.offered[max(0, len(r.offered)-maxOffered):]
	}
	r.siteMu.Unlock()
	switch rec.(type) {
	case *record.Lease, *record.LeaseRequest:
		r.early(site, rec)
	}
	return errNoSite
}

// Merge takes an encoded envelope from gossip.
func (r *records) Merge(b []byte) (changed bool, err error) {
	e := new(dpudv1.Envelope)
	if err := proto.Unmarshal(b, e); err != nil {
		r.refusedContent.Add(1)
		return false, fmt.Errorf("decode record: %w", err)
	}
	return r.Take(e)
}

// open opens an envelope that is not kept: a lease that was answered directly.
func (r *records) open(e *dpudv1.Envelope) (record.Record, error) {
	rec, err := wire.Open(r.Site(), e)
	return rec, r.refuse(e, err)
}

// refuse counts a refusal, and says what to do about another site's records once for each such site.
func (r *records) refuse(e *dpudv1.Envelope, err error) error {
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, wire.ErrSite):
		r.refusedContent.Add(1)
		return err
	}
	r.refusedSite.Add(1)
	other := record.SiteID(e.GetSiteId())
	r.siteMu.Lock()
	said := r.otherSite == other
	r.otherSite = other
	r.siteMu.Unlock()
	if !said {
		r.log.Error("records are refused", "err", otherSite(r.Site(), other))
	}
	return fmt.Errorf("%w: %w", otherSite(r.Site(), other), err)
}

// other is the site whose records were refused last, or "".
func (r *records) other() record.SiteID {
	r.siteMu.Lock()
	defer r.siteMu.Unlock()
	return r.otherSite
}

func otherSite(own, other record.SiteID) error {
	return fmt.Errorf("this DPU's maps belong to site %s, not to %s; to move it there, reclaim its nodes, run `dpud unload` and start it again", own, other)
}
