package dpud

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
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
// belongs to no site yet takes the site of the first record.
type records struct {
	*wire.Replica
	log *slog.Logger

	siteMu         sync.Mutex
	otherSite      record.SiteID // last one that was refused, and said so
	refusedSite    atomic.Uint64
	refusedContent atomic.Uint64
}

// Take opens an envelope and stores its record if it is newer.
func (r *records) Take(e *dpudv1.Envelope) (changed bool, err error) {
	r.siteMu.Lock()
	if r.Site() == "" && e.GetSiteId() != "" {
		r.SetSite(record.SiteID(e.GetSiteId()))
	}
	r.siteMu.Unlock()
	changed, err = r.Replica.Take(e)
	return changed, r.refuse(e, err)
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
