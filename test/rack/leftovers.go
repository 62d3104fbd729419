package rack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"dpud/pkg/record"
)

// Each rack holds a lock on a file of its name, which ends with its process. A file that nobody holds a lock on was
// left behind by a process that was killed, and with it namespaces and pins.
const lockPrefix, lockSuffix = "/run/dpud-rack-", ".lock"

func lockPath(name string) string { return lockPrefix + name + lockSuffix }

func takeLock(path string) (*os.File, error) {
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: another process has it: %w", path, err), lock.Close())
	}
	// Its last owner may have removed it meanwhile, and somebody else made another one.
	mine, err := lock.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), lock.Close())
	}
	if now, err := os.Stat(path); err != nil || !os.SameFile(mine, now) {
		return nil, errors.Join(fmt.Errorf("lock %s: another process is taking it", path), lock.Close())
	}
	return lock, nil
}

// members are the names of what has a namespace.
func members() []string { return append([]string{"ctrl", "d1", "d2"}, Nodes...) }

// sweep removes what racks have left behind whose process is gone.
func sweep() error {
	locks, err := filepath.Glob(lockPrefix + "*" + lockSuffix)
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range locks {
		lock, err := takeLock(path)
		if err != nil {
			continue // it lives
		}
		name := strings.TrimSuffix(strings.TrimPrefix(path, lockPrefix), lockSuffix)
		for _, m := range members() {
			_ = netns.DeleteNamed(name + "-" + m) // most often there is none
		}
		errs = append(errs, removePins(name), os.Remove(path), lock.Close())
	}
	return errors.Join(errs...)
}

func pinDir(name string, dpu record.DPU) string {
	return filepath.Join("/sys/fs/bpf/dpud", name+"-"+string(dpu))
}

// removePins takes away what the dpuds have pinned; the ports that it was attached to vanish with their namespaces.
func removePins(name string) error {
	var errs []error
	for _, dpu := range DPUs {
		pin := pinDir(name, dpu)
		errs = append(errs, os.RemoveAll(pin), os.RemoveAll(pin+"_site"))
	}
	return errors.Join(errs...)
}
