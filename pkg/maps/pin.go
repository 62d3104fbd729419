package maps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// What a pin folder holds. Names in a bpffs have no dots.
const (
	mapsFolder     = "maps"     // every map under its name; there as a whole or not at all
	programsFolder = "programs" // the newest dpud_ingress and dpud_egress, for bpftool
	linksFolder    = "links"    // ingress_<ifindex>, and egress_<ifindex> where tcx is there
	networkFile    = "netns"    // symbolic link whose target names the network namespace of the ports
	stagingFolder  = "staging"  // maps that are being made
)

const bpffs = "/sys/fs/bpf"

// prepareFolder makes the pin folder, on a bpffs that it mounts if there is none, and locks it.
func prepareFolder(pin string) (*os.File, error) {
	if err := ensureBPFFS(pin); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(pin, linksFolder), 0o700); err != nil {
		return nil, fmt.Errorf("make pin folder: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(pin, programsFolder), 0o700); err != nil {
		return nil, fmt.Errorf("make pin folder: %w", err)
	}
	return lockFolder(pin)
}

// lockFolder takes the lock that the folder's dpud holds for life; the kernel drops it when the process ends.
func lockFolder(pin string) (*os.File, error) {
	f, err := os.Open(pin)
	if err != nil {
		return nil, fmt.Errorf("open pin folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrLocked
		}
		return nil, fmt.Errorf("lock pin folder: %w", err)
	}
	return f, nil
}

// ensureBPFFS mounts a bpffs on /sys/fs/bpf if pin is below it and there is none. It refuses one that would not
// outlive the process: ErrPrivateMount.
func ensureBPFFS(pin string) error {
	if !filepath.IsAbs(pin) || strings.Contains(pin, ".") {
		return fmt.Errorf("use pin folder %q: want an absolute path without dots, below %s", pin, bpffs)
	}
	at, on, err := findBPFFS(pin)
	if err != nil {
		return err
	}
	if on {
		return checkLasting(at)
	}
	if pin != bpffs && !strings.HasPrefix(pin, bpffs+"/") {
		return fmt.Errorf("use pin folder %s: it is on no bpffs: use a folder below %s, or mount one there", pin, bpffs)
	}
	if err := checkLasting(""); err != nil {
		return err
	}
	if err := unix.Mount("bpf", bpffs, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RELATIME, "mode=0700"); err != nil {
		return fmt.Errorf("mount bpffs on %s (needs CAP_SYS_ADMIN and /sys): %w", bpffs, err)
	}
	return nil
}

// findBPFFS returns a path, or its nearest ancestor that exists, and says whether that is on a bpffs.
func findBPFFS(path string) (at string, on bool, err error) {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(path, &st)
		if errors.Is(err, unix.ENOENT) && path != "/" {
			path = filepath.Dir(path)
			continue
		}
		if err != nil {
			return "", false, fmt.Errorf("look at file system of %s: %w", path, err)
		}
		return path, st.Type == unix.BPF_FS_MAGIC, nil
	}
}

// pinMaps pins new maps: beside, and then at once under their folder's name.
func (t *Tables) pinMaps(pin string) error {
	staging := filepath.Join(pin, stagingFolder)
	if err := os.RemoveAll(staging); err != nil { // of a dpud that died here
		return fmt.Errorf("clear staging folder: %w", err)
	}
	if err := os.Mkdir(staging, 0o700); err != nil {
		return fmt.Errorf("make staging folder: %w", err)
	}
	for name, m := range t.maps.byName() {
		if err := (*m).Pin(filepath.Join(staging, name)); err != nil {
			return fmt.Errorf("pin map %s: %w", name, err)
		}
	}
	// The commit point: before it the folder has no maps, after it all of them.
	if err := os.Rename(staging, filepath.Join(pin, mapsFolder)); err != nil {
		return fmt.Errorf("commit maps: %w", err)
	}
	return nil
}

// replacePin pins an object beside a path and renames it over what is there.
func replacePin(path string, pin func(path string) error) error {
	beside := path + "_new"
	if err := os.Remove(beside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("clear pin: %w", err)
	}
	if err := pin(beside); err != nil {
		return fmt.Errorf("pin %s: %w", filepath.Base(path), err)
	}
	if err := os.Rename(beside, path); err != nil {
		return fmt.Errorf("commit pin: %w", err)
	}
	return nil
}
