// Bench measures the project on this machine, prints a table and writes docs/benchmarks.md. Nothing is asserted:
// machines are noisy. Everything is measured in one run, and what is compared is measured in turns.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	bin := flag.String("bin", "bin", "folder of the programs ctl and dpud")
	out := flag.String("out", "docs/benchmarks.md", "file to write")
	cycles := flag.Int("cycles", 500, "assignments and reclaims to time")
	rounds := flag.Int("rounds", 9, "times that each packet figure is measured; the median is shown")
	flag.Parse()
	if err := run(*bin, *out, *cycles, *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(bin, out string, cycles, rounds int) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("network namespaces and BPF need root")
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Benchmarks\n\nMeasured by `make bench` on %s, on %s. Machines are noisy: compare figures of one run.\n",
		time.Now().UTC().Format(time.DateOnly), machine())
	for _, part := range []func(*strings.Builder) error{
		func(b *strings.Builder) error { return latency(b, bin, cycles) },
		func(b *strings.Builder) error { return packets(b, rounds) },
	} {
		if err := part(&b); err != nil {
			return err
		}
	}
	fmt.Print(b.String())
	return os.WriteFile(out, []byte(b.String()), 0o644)
}

// machine names the processor, its cores and the kernel.
func machine() string {
	cpu := runtime.GOARCH
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				cpu = strings.TrimSpace(value)
				break
			}
		}
	}
	var u unix.Utsname
	kernel := "unknown"
	if unix.Uname(&u) == nil {
		kernel = unix.ByteSliceToString(u.Release[:])
	}
	return fmt.Sprintf("%s, %d cores, Linux %s", cpu, runtime.NumCPU(), kernel)
}

// quantile of unsorted durations, by the nearest rank.
func quantile(d []time.Duration, q float64) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[min(len(d)-1, int(q*float64(len(d))))]
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d.Microseconds())/1000) }
