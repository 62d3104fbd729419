package maps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Unload takes the data plane of a pin folder away: it detaches every port, which is unguarded from then on, and
// removes the folder. It must run in the network namespace of the ports; nothing there is no error.
// Errors: ErrLocked.
func Unload(pin string) error {
	pin = filepath.Clean(pin)
	if _, err := os.Stat(pin); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := unload(pin); err != nil {
		return fmt.Errorf("unload data plane of %s: %w", pin, err)
	}
	return nil
}

func unload(pin string) error {
	if _, on, err := findBPFFS(pin); err != nil || !on {
		return errors.Join(err, fmt.Errorf("%w (it is on no bpffs)", ErrNotLoaded))
	}
	lock, err := lockFolder(pin)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := removeFilters(pin); err != nil {
		return err
	}
	links, err := os.ReadDir(filepath.Join(pin, linksFolder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list pinned links: %w", err)
	}
	for _, l := range links {
		if err := removeLink(filepath.Join(pin, linksFolder, l.Name())); err != nil {
			return err
		}
	}
	for _, folder := range []string{networkFile, linksFolder, programsFolder, stagingFolder, mapsFolder} {
		if err := os.RemoveAll(filepath.Join(pin, folder)); err != nil {
			return fmt.Errorf("remove pins: %w", err)
		}
	}
	if err := os.Remove(pin); err != nil {
		return fmt.Errorf("remove pin folder: %w", err)
	}
	return nil
}

// removeFilters removes the clsact filters of the folder's ports; links need no list, filters do.
func removeFilters(pin string) error {
	t, err := openPinned(pin, nil)
	if errors.Is(err, ErrNotLoaded) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = t.Close() }()
	ports, err := t.Ports()
	if err != nil {
		return err
	}
	for ifindex := range ports {
		if err := removeFilter(ifindex, t); err != nil {
			return err
		}
	}
	return nil
}
