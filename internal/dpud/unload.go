package dpud

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"dpud/internal/dpud/ports"
	"dpud/pkg/maps"
)

// Unload removes everything of a dpud that does not run: it takes down its ports (nothing judges them any more)
// and takes them out of their bridge, which drops their forwarding entries; removes links, programs and maps;
// removes the bridge if dpud made it; forgets the site. It must run in the network namespace of
// the ports. Errors: maps.ErrNotLoaded, maps.ErrLocked, maps.ErrElsewhere.
func Unload(pin string, log *slog.Logger) error {
	if _, err := os.Stat(pin); errors.Is(err, fs.ErrNotExist) {
		if os.Remove(siteFile(pin)) == nil { // of an unload that was interrupted
			return nil
		}
		return fmt.Errorf("unload %s: %w", pin, maps.ErrNotLoaded)
	}
	if err := refuseWhileRunning(pin); err != nil {
		return err
	}
	if err := maps.CheckNetwork(pin); err != nil {
		return fmt.Errorf("unload %s: %w", pin, err)
	}
	own, err := newOwner(pin)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil {
		if err := releaseLinks(own, log); err != nil {
			return err
		}
	}
	if err := maps.Unload(pin); err != nil {
		return err
	}
	if err := os.Remove(siteFile(pin)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget site: %w", err)
	}
	log.Info("unloaded", "pin", pin)
	return nil
}

// refuseWhileRunning tries the lock that a running dpud holds, so that its ports are not taken down. It does not
// keep it: package maps takes it again.
func refuseWhileRunning(pin string) error {
	f, err := os.Open(pin)
	if err != nil {
		return fmt.Errorf("open pin folder: %w", err)
	}
	defer func() { _ = f.Close() }()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("unload %s: %w", pin, maps.ErrLocked)
	}
	return nil
}

// releaseLinks takes down every link that runs the data plane's program, and removes the bridge that dpud made.
func releaseLinks(own owner, log *slog.Logger) error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	members, ours := make(map[int]int), make(map[int]bool) // bridge → its ports; bridges that ours are in
	for _, l := range links {
		a := l.Attrs()
		if !own.ingress(l) {
			members[a.MasterIndex]++
			continue
		}
		if a.Flags&net.FlagUp != 0 {
			log.Info("port taken down", "port", a.Name)
			if err := netlink.LinkSetDown(l); err != nil {
				return fmt.Errorf("take down %s: %w", a.Name, err)
			}
		}
		if a.MasterIndex != 0 {
			ours[a.MasterIndex] = true
			if err := netlink.LinkSetNoMaster(l); err != nil {
				return fmt.Errorf("take %s out of its bridge: %w", a.Name, err)
			}
		}
	}
	for _, l := range links {
		a := l.Attrs()
		if !ours[a.Index] || a.Alias != ports.BridgeAlias || members[a.Index] > 0 {
			continue
		}
		log.Info("bridge removed", "bridge", a.Name)
		if err := netlink.LinkDel(l); err != nil {
			return fmt.Errorf("remove bridge %s: %w", a.Name, err)
		}
	}
	return nil
}
