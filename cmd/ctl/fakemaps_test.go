package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"dpud/internal/cli"
	"dpud/pkg/maps"
	"dpud/pkg/record"
	"dpud/pkg/table"
)

// fakeMaps stands for a DPU's pinned maps: a folder with a file "mode". What they hold is always the same.
type fakeMaps struct{ pin string }

func openFakeMaps(pin string) (cli.Maps, error) {
	if _, err := os.Stat(filepath.Join(pin, "mode")); err != nil {
		return nil, fmt.Errorf("open maps in %s: %w", pin, maps.ErrNotLoaded)
	}
	return fakeMaps{pin}, nil
}

func setFakeMode(pin string, m maps.Mode) error {
	return os.WriteFile(filepath.Join(pin, "mode"), []byte(m.String()), 0o600)
}

func (f fakeMaps) Mode() (maps.Mode, error) {
	b, err := os.ReadFile(filepath.Join(f.pin, "mode"))
	if err != nil {
		return 0, err
	}
	return maps.ParseMode(strings.TrimSpace(string(b)))
}

func (f fakeMaps) Read() (table.Tables, error) {
	mac := record.MAC{2, 0, 0, 0, 0, 2}
	at := table.Value{Node: 2, Ifindex: 7, MAC: mac}
	tagged := at
	tagged.VLAN = 3
	return table.Tables{
		{Map: table.NodeTenant, Node: 2}:                               {Node: 2, Tenant: 2},
		{Map: table.NodeTenant, Node: 10}:                              {Node: 10, Tenant: 1},
		{Map: table.NodeState, Node: 2}:                                {Epoch: 1, Generation: 2, Revision: 3},
		table.EndpointKey(netip.MustParseAddr("10.0.0.2")):             at,
		table.EndpointKey(netip.MustParseAddr("2001:db8::2")):          tagged,
		{Map: table.EndpointMAC, MAC: mac}:                             at,
		table.ServiceKey(netip.MustParsePrefix("10.255.0.53/32")):      {MAC: record.MAC{2, 0, 0, 0, 0xff, 1}},
		table.ServiceKey(netip.MustParsePrefix("2001:db8:ff::53/128")): {MAC: record.MAC{2, 0, 0, 0, 0xff, 1}},
	}, nil
}

func (f fakeMaps) Counters() ([]maps.Counter, error) {
	counters := []maps.Counter{{Hook: "ingress", Reason: maps.Passed, Packets: 1200, Bytes: 96000}}
	for r := range maps.Reasons() {
		if r.Dropped() {
			counters = append(counters, maps.Counter{Hook: "ingress", Reason: r, Packets: 10, Bytes: 800})
			break
		}
	}
	return append(counters, maps.Counter{Hook: "egress", Reason: maps.PassedOff}), nil
}

func (f fakeMaps) Close() error { return nil }
