package maps

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Mode is what the programs do with their verdicts.
type Mode uint64

// The modes. Maps start in Enforce.
const (
	// Enforce drops what has a drop reason.
	Enforce = Mode(datapathModeMODE_ENFORCE)
	// Audit counts what would be dropped under its reason, and lets it pass unchanged.
	Audit = Mode(datapathModeMODE_AUDIT)
	// Off judges nothing and lets everything pass.
	Off = Mode(datapathModeMODE_OFF)
)

func (m Mode) String() string {
	switch m {
	case 0, Enforce:
		return "enforce"
	case Audit:
		return "audit"
	case Off:
		return "off"
	}
	return fmt.Sprintf("mode(%d)", uint64(m))
}

// ParseMode reads the form of [Mode.String].
func ParseMode(s string) (Mode, error) {
	for m := Enforce; m <= Off; m++ {
		if m.String() == s {
			return m, nil
		}
	}
	return 0, fmt.Errorf("parse mode %q: want enforce, audit or off", s)
}

// SetMode changes what the programs do with their verdicts, at once and for every port.
func (d *Datapath) SetMode(m Mode) error {
	if m < Enforce || m > Off {
		return fmt.Errorf("set mode: no such mode %d", m)
	}
	return d.storeSetting(unsafe.Offsetof(datapathSettings{}.Mode), uint64(m))
}

// SetDeadline sets the time of CLOCK_MONOTONIC, in nanoseconds, after which every packet drops, even when dpud is
// dead; 0 is none.
func (d *Datapath) SetDeadline(ns uint64) error {
	return d.storeSetting(unsafe.Offsetof(datapathSettings{}.Deadline), ns)
}

// Mode reads the mode from the kernel.
func (t *Tables) Mode() (Mode, error) {
	s, err := t.settings()
	if err != nil {
		return 0, err
	}
	if s.Mode == 0 {
		return Enforce, nil
	}
	return Mode(s.Mode), nil
}

func (t *Tables) settings() (datapathSettings, error) {
	var s datapathSettings
	if err := t.maps.Settings.Lookup(uint32(0), &s); err != nil {
		return s, fmt.Errorf("read settings: %w", err)
	}
	return s, nil
}

// storeSetting changes one field by a single 64-bit store, which no program sees half of.
func (t *Tables) storeSetting(offset uintptr, value uint64) error {
	page, err := unix.Mmap(t.maps.Settings.FD(), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map settings: %w", err)
	}
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&page[offset])), value)
	if err := unix.Munmap(page); err != nil {
		return fmt.Errorf("unmap settings: %w", err)
	}
	return nil
}
