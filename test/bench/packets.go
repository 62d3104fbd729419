package main

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"dpud/internal/packet"
	"dpud/pkg/maps"
	"dpud/pkg/record"
	"dpud/pkg/table"
)

// sizes are the numbers of nodes for which packets are measured.
var sizes = []int{10, 1000, 10_000}

// repeat is how often the kernel runs a program for one figure.
const repeat = 300_000

// here is the port on which BPF_PROG_TEST_RUN lets packets in: loopback's index.
const here = 1

// packets measures the programs and the writes to their maps.
func packets(b *strings.Builder, rounds int) error {
	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	if err != nil {
		return fmt.Errorf("load XDP_PASS: %w", err)
	}
	defer pass.Close()

	fmt.Fprintf(b, `
## Packets

Nanoseconds for a packet by BPF_PROG_TEST_RUN, %d repetitions of one flow, median of %d; in turns with a program that
only passes (XDP_PASS), and as the ratio to it.

| nodes | XDP_PASS | IPv4 passed | IPv6 passed | IPv4 to another tenant dropped | IPv4 ratio |
|---|---|---|---|---|---|
`, repeat, rounds)
	var writes strings.Builder
	for _, nodes := range sizes {
		if err := measure(b, &writes, pass, nodes, rounds); err != nil {
			return fmt.Errorf("measure %d nodes: %w", nodes, err)
		}
	}
	fmt.Fprintf(b, `
## Map writes

One entry at a time from Go, five entries for a node with an IPv4 and an IPv6 address.

| nodes | entries | all, ms | an entry, µs | entries/s | barrier, ms (median of %d) |
|---|---|---|---|---|---|
%s`, rounds, writes.String())
	return nil
}

func measure(b, writes *strings.Builder, pass *ebpf.Program, nodes, rounds int) (err error) {
	pin := fmt.Sprintf("/sys/fs/bpf/dpud/bench-%d", nodes)
	d, err := maps.Load(pin, maps.Options{MaxNodes: uint32(nodes)})
	if err != nil {
		return err
	}
	defer func() {
		_ = d.Close()
		if unloadErr := maps.Unload(pin); err == nil {
			err = unloadErr
		}
	}()
	if err := d.Barrier(); err != nil { // or the first write would wait for one
		return err
	}
	began := time.Now()
	entries, err := fill(d, nodes)
	if err != nil {
		return err
	}
	took := time.Since(began)
	var barriers []time.Duration
	for range rounds {
		began := time.Now()
		if err := d.Barrier(); err != nil {
			return err
		}
		barriers = append(barriers, time.Since(began))
	}
	fmt.Fprintf(writes, "| %d | %d | %s | %.2f | %.0f | %s |\n", nodes, entries, ms(took), float64(took.Nanoseconds())/1000/float64(entries),
		float64(entries)/took.Seconds(), ms(quantile(barriers, .5)))

	if err := d.SetPort(here, maps.RoleNode); err != nil {
		return err
	}
	verdict, err := ebpf.LoadPinnedProgram(filepath.Join(pin, "programs", "dpud_ingress"), nil)
	if err != nil {
		return fmt.Errorf("load pinned program: %w", err)
	}
	defer verdict.Close()
	one, same, other := stationOf(1), stationOf(3), stationOf(2) // odd nodes belong to one tenant
	cases := []struct {
		program *ebpf.Program
		frame   []byte
		action  uint32
	}{
		{pass, frame4(one, same), 2},
		{verdict, frame4(one, same), 2},
		{verdict, frame6(one, same), 2},
		{verdict, frame4(one, other), 1},
	}
	figures := make([][]float64, len(cases))
	for range rounds {
		for i, c := range cases {
			action, took, err := c.program.Benchmark(c.frame, repeat, nil)
			if err != nil {
				return err
			}
			if action != c.action {
				return fmt.Errorf("case %d: action %d, want %d", i, action, c.action)
			}
			figures[i] = append(figures[i], float64(took.Nanoseconds()))
		}
	}
	var ratios []float64
	for r := range rounds {
		ratios = append(ratios, figures[1][r]/max(figures[0][r], 1))
	}
	fmt.Fprintf(b, "| %d | %.0f | %.0f | %.0f | %.0f | %.1f |\n", nodes, median(figures[0]), median(figures[1]), median(figures[2]), median(figures[3]), median(ratios))
	return nil
}

func median(f []float64) float64 {
	f = slices.Sorted(slices.Values(f))
	return f[len(f)/2]
}

type station struct {
	node   record.NodeID
	mac    record.MAC
	v4, v6 netip.Addr
}

func stationOf(i int) station {
	hi, lo := byte(i>>8), byte(i)
	return station{
		node: record.NodeID(i), mac: record.MAC{2, 0, 0, 0, hi, lo},
		v4: netip.AddrFrom4([4]byte{10, 0, hi, lo}),
		v6: netip.AddrFrom16([16]byte{0xfd, 14: hi, 15: lo}),
	}
}

// fill programs nodes, in the order in which dpud does, and returns how many entries that took. Node 1 is behind
// the port of the packets, the others behind another.
func fill(d *maps.Datapath, nodes int) (entries int, err error) {
	for i := 1; i <= nodes; i++ {
		s := stationOf(i)
		end := table.Value{Node: s.node, Ifindex: 2, MAC: s.mac}
		if i == 1 {
			end.Ifindex = here
		}
		for _, e := range []struct {
			key   table.Key
			value table.Value
		}{
			{table.Key{Map: table.NodeState, Node: s.node}, table.Value{Epoch: 1, Generation: 1, Revision: 1}},
			{table.EndpointKey(s.v4), end},
			{table.EndpointKey(s.v6), end},
			{table.Key{Map: table.EndpointMAC, MAC: s.mac}, end},
			{table.Key{Map: table.NodeTenant, Node: s.node}, table.Value{Node: s.node, Tenant: record.TenantID(1 + i%2)}},
		} {
			if err := d.Put(e.key, e.value); err != nil {
				return entries, err
			}
			entries++
		}
	}
	return entries, nil
}

// frame returns a UDP packet from one station to another.
func frame(from, to station, src, dst netip.Addr) []byte {
	return packet.Frame{Src: from.mac, Dst: to.mac}.UDP(netip.AddrPortFrom(src, 4000), netip.AddrPortFrom(dst, 4001), make([]byte, 32))
}

func frame4(from, to station) []byte { return frame(from, to, from.v4, to.v4) }
func frame6(from, to station) []byte { return frame(from, to, from.v6, to.v6) }
