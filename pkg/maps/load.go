package maps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// Load loads the data plane into a pin folder, an absolute path on a bpffs; it mounts one on /sys/fs/bpf if the
// folder is below it and there is none. Maps that are pinned there are adopted with all they hold, and ports
// keep running the program they have until [Datapath.Attach] puts the new one in its place.
// Errors: ErrLocked, ErrElsewhere, ErrPrivateMount, ErrLayout, and what [Probe] says.
func Load(pin string, opts Options) (*Datapath, error) {
	d, err := load(filepath.Clean(pin), opts)
	if err != nil {
		if missing := Probe(); missing != nil && !errors.Is(err, ErrLocked) && !errors.Is(err, ErrElsewhere) && !errors.Is(err, ErrPrivateMount) && !errors.Is(err, ErrLayout) {
			err = errors.Join(missing, err)
		}
		return nil, fmt.Errorf("load data plane into %s: %w", pin, err)
	}
	return d, nil
}

func load(pin string, opts Options) (*Datapath, error) {
	lock, err := prepareFolder(pin)
	if err != nil {
		return nil, err
	}
	if err := keepNetwork(pin); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	// What a predecessor deleted last is unknown: the first Put waits for a barrier.
	d := &Datapath{pin: pin, lock: lock, dirty: true, ports: map[int]Attachment{}}
	if err := d.load(opts); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Datapath) load(opts Options) error {
	spec, err := loadSpec(opts.MaxNodes)
	if err != nil {
		return err
	}
	_, err = os.Stat(filepath.Join(d.pin, mapsFolder))
	switch {
	case err == nil:
		err = d.adoptMaps(spec)
	case errors.Is(err, fs.ErrNotExist):
		err = d.makeMaps(spec)
	}
	if err != nil {
		return err
	}
	if err := d.pinPrograms(); err != nil {
		return err
	}
	if d.inner, err = ebpf.NewMap(spec.Maps[datapathMapBarrier].InnerMap); err != nil {
		return fmt.Errorf("make barrier: %w", err)
	}
	return errors.Join(d.dropDefunctLinks(), d.syncServiceMACs())
}

// makeMaps makes the maps and loads the programs. Programs first: a folder has no maps that no program can use.
func (d *Datapath) makeMaps(spec *ebpf.CollectionSpec) error {
	var objects struct {
		datapathPrograms
		datapathMaps
	}
	if err := spec.LoadAndAssign(&objects, nil); err != nil {
		return fmt.Errorf("load programs: %w", err)
	}
	d.programs, d.Tables = objects.datapathPrograms, &Tables{objects.datapathMaps}
	if err := d.writeLayout(spec); err != nil {
		return err
	}
	return d.pinMaps(d.pin)
}

// adoptMaps opens the pinned maps and loads the programs on them.
func (d *Datapath) adoptMaps(spec *ebpf.CollectionSpec) error {
	t, err := openPinned(d.pin, nil)
	if errors.Is(err, ErrNotLoaded) { // the folder is there, but not every map
		return errors.Join(ErrLayout, err)
	}
	if err != nil {
		return err
	}
	d.Tables = t
	if err := errors.Join(t.checkLayout(), t.checkSizes(spec)); err != nil {
		return err
	}
	pinned := map[string]*ebpf.Map{}
	for name, m := range t.maps.byName() {
		pinned[name] = *m
		spec.Maps[name].MaxEntries = (*m).MaxEntries()
	}
	if err := spec.LoadAndAssign(&d.programs, &ebpf.CollectionOptions{MapReplacements: pinned}); err != nil {
		return fmt.Errorf("load programs: %w", err)
	}
	return nil
}

func (d *Datapath) pinPrograms() error {
	d.ids = make(map[*ebpf.Program]ebpf.ProgramID)
	for _, p := range []*ebpf.Program{d.programs.DpudIngress, d.programs.DpudEgress} {
		id, err := programID(p)
		if err != nil {
			return err
		}
		d.ids[p] = id
	}
	folder := filepath.Join(d.pin, programsFolder)
	return errors.Join(
		replacePin(filepath.Join(folder, datapathProgDpudIngress), d.programs.DpudIngress.Pin),
		replacePin(filepath.Join(folder, datapathProgDpudEgress), d.programs.DpudEgress.Pin),
	)
}

// Close closes file descriptors and releases the folder. Enforcement stays as it is.
func (d *Datapath) Close() error {
	errs := []error{d.programs.Close(), d.inner.Close()}
	if d.Tables != nil {
		errs = append(errs, d.Tables.Close())
	}
	return errors.Join(append(errs, d.lock.Close())...)
}
