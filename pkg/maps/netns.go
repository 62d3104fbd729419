package maps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// CheckNetwork returns ErrElsewhere if the folder's programs guard interfaces of another network namespace than
// the calling thread's: what is done here would leave them without a guard, and unseen. The namespace is the one
// that the folder remembers, or any if no interface of the folder lives elsewhere: one that died took its
// interfaces along, or gave them back to the first namespace, and another may have got its number since.
func CheckNetwork(pin string) error {
	own, err := network()
	if err != nil {
		return err
	}
	if known, err := os.Readlink(filepath.Join(pin, networkFile)); err == nil && known == own {
		return nil
	}
	folder := filepath.Join(pin, linksFolder)
	pins, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list pinned links: %w", err)
	}
	for _, p := range pins {
		l, err := link.LoadPinnedLink(filepath.Join(folder, p.Name()), nil)
		if err != nil {
			return fmt.Errorf("open pinned link: %w", err)
		}
		on, here, err := locate(l)
		if err := errors.Join(err, l.Close()); err != nil {
			return err
		}
		if on != 0 && !here {
			return ErrElsewhere
		}
	}
	return nil
}

// keepNetwork remembers the calling thread's network namespace in the folder, whose lock is held.
func keepNetwork(pin string) error {
	if err := CheckNetwork(pin); err != nil {
		return err
	}
	own, err := network()
	if err != nil {
		return err
	}
	return replacePin(filepath.Join(pin, networkFile), func(path string) error { return os.Symlink(own, path) })
}

// network names the calling thread's network namespace.
func network() (string, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return "", fmt.Errorf("look at network namespace: %w", err)
	}
	return fmt.Sprintf("dev_%d_inode_%d", st.Dev, st.Ino), nil
}

// locate returns the index of the interface that a link is attached to, 0 if that vanished, and whether it is
// an interface of the calling thread's network namespace.
func locate(l link.Link) (ifindex int, here bool, err error) {
	info, err := l.Info()
	if err != nil {
		return 0, false, fmt.Errorf("look at pinned link: %w", err)
	}
	if xdp := info.XDP(); xdp != nil && xdp.Ifindex != 0 {
		have, err := readXDP(int(xdp.Ifindex))
		return int(xdp.Ifindex), err == nil && ebpf.ProgramID(have.ProgId) == info.Program, nil
	}
	if tcx := info.TCX(); tcx != nil && tcx.Ifindex != 0 {
		have, err := link.QueryPrograms(link.QueryOptions{Target: int(tcx.Ifindex), Attach: ebpf.AttachTCXEgress})
		return int(tcx.Ifindex), err == nil && slices.ContainsFunc(have.Programs, func(p link.AttachedProgram) bool {
			id, ok := p.LinkID()
			return ok && id == info.ID
		}), nil
	}
	return 0, false, nil
}
