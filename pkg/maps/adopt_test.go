package maps

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"dpud/internal/netnstest"
)

// A later run adopts what it finds: entries, mode, counters and links, which never stop working.
func TestAdoption(t *testing.T) {
	for name, noTCX := range map[string]bool{"newest": false, "clsact": true} {
		t.Run(name, func(t *testing.T) {
			netnstest.NeedBPF(t)
			pin := testPin(t)
			netnstest.Do(t, func() { testAdoption(t, pin, noTCX) })
		})
	}
}

func testAdoption(t *testing.T, pin string, noTCX bool) {
	first := loadPin(t, pin)
	first.noTCX = noTCX
	if _, err := Load(pin, Options{}); !errors.Is(err, ErrLocked) {
		t.Errorf("second load: %v, want ErrLocked", err)
	}
	if err := Unload(pin); !errors.Is(err, ErrLocked) {
		t.Errorf("unload while loaded: %v, want ErrLocked", err)
	}
	port, uplink := addVeth(t, "port"), addVeth(t, "uplink")
	attach(t, first, port, RoleNode)
	attach(t, first, uplink, RoleUplink)
	want := entries()
	for k, v := range want {
		put(t, first, k, v)
	}
	if err := first.SetMode(Audit); err != nil {
		t.Fatal(err)
	}
	run(t, first, "ingress", udp4(n1, n2))
	counted := snapshot(t, first)
	xdp := linkID(t, first.linkPath(datapathProgDpudIngress, port.Index))
	oldFilters, err := egressFilters(port.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}

	tables, err := OpenTables(pin) // with dpud dead
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, readBack(t, tables), compareTables); diff != "" {
		t.Errorf("tables with dpud dead (-want +got):\n%s", diff)
	}
	if err := tables.Close(); err != nil {
		t.Fatal(err)
	}

	second := loadPin(t, pin)
	second.noTCX = noTCX
	if diff := cmp.Diff(want, readBack(t, second.Tables), compareTables); diff != "" {
		t.Errorf("adopted tables (-want +got):\n%s", diff)
	}
	// No other packet comes in on a port without a role; the kernel's own chatter counts elsewhere.
	const counter = "ingress unknown_port"
	if got, want := snapshot(t, second)[counter], counted[counter]; got != want || want.Packets != 1 {
		t.Errorf("adopted counter %+v, want %+v", got, want)
	}
	if mode, err := second.Mode(); mode != Audit || err != nil {
		t.Errorf("adopted mode: %s, %v", mode, err)
	}
	wantUnguarded(t, second, port, "loading, before attaching")
	a := attach(t, second, port, RoleNode)
	attach(t, second, uplink, RoleUplink)
	if got := linkID(t, second.linkPath(datapathProgDpudIngress, port.Index)); got != xdp {
		t.Errorf("XDP link %d was replaced by %d, with a gap between them", xdp, got)
	}
	if id, err := programID(second.programs.DpudIngress); a.ProgID != id || err != nil {
		t.Errorf("port runs program %d, not the new one (%d, %v)", a.ProgID, id, err)
	}
	if filters, err := egressFilters(port.Index); err != nil || len(filters) != len(oldFilters) {
		t.Errorf("filters %v, %v; want %d", filters, err, len(oldFilters))
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}

	for range 2 { // the second time there is nothing left to do
		if err := Unload(pin); err != nil {
			t.Fatal(err)
		}
	}
	wantBare(t, port)
	wantBare(t, uplink)
	if _, err := os.Stat(pin); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pin folder after unload: %v", err)
	}
	if _, err := OpenTables(pin); !errors.Is(err, ErrNotLoaded) {
		t.Errorf("open tables after unload: %v", err)
	}
}

func TestLayout(t *testing.T) {
	netnstest.NeedBPF(t)
	pin := testPin(t)
	d := loadPin(t, pin)
	layout, err := d.settings()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.storeSetting(unsafe.Offsetof(layout.Layout), layout.Layout+1); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(pin, Options{MaxNodes: 64}); !errors.Is(err, ErrLayout) {
		t.Errorf("load of another layout: %v, want ErrLayout", err)
	}
	if _, err := OpenTables(pin); !errors.Is(err, ErrLayout) {
		t.Errorf("open of another layout: %v, want ErrLayout", err)
	}
	if err := Unload(pin); err != nil {
		t.Fatal(err)
	}

	// Of a dpud that died while it pinned.
	if err := os.MkdirAll(filepath.Join(pin, stagingFolder, "node_tenant"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := loadPin(t, pin).Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(pin, Options{MaxNodes: 65}); !errors.Is(err, ErrLayout) {
		t.Errorf("load of smaller maps: %v, want ErrLayout", err)
	}
	d, err = Load(pin, Options{MaxNodes: 63})
	if err != nil {
		t.Fatalf("load of bigger maps: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(pin, mapsFolder, "node_state")); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(pin, Options{MaxNodes: 64}); !errors.Is(err, ErrLayout) {
		t.Errorf("load with a map missing: %v, want ErrLayout", err)
	}
}

func TestBadFolder(t *testing.T) {
	netnstest.NeedBPF(t)
	for _, pin := range []string{"relative", "/sys/fs/bpf/with.dot", t.TempDir()} {
		if _, err := Load(pin, Options{}); err == nil {
			t.Errorf("loaded into %s", pin)
		}
	}
	if err := Unload(t.TempDir()); !errors.Is(err, ErrNotLoaded) {
		t.Errorf("unload of a folder that is no bpffs: %v", err)
	}
}

func TestProbe(t *testing.T) {
	netnstest.NeedBPF(t)
	if err := Probe(); err != nil {
		t.Error(err)
	}
}
