// Vm runs the kernel tests as the first process of a virtual machine, once for each kernel of a matrix: what the
// product claims of a kernel, it has done there. Kernels are Debian's, downloaded into a cache and not installed.
//
// A test that is skipped in the guest is a failure, as is anything that the kernel complains about.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"dpud/test/vm/plan"
)

// suite is a package whose tests run in the guest.
type suite struct {
	name, pack string
	// run chooses tests; empty is all of them.
	run string
}

// The short run is that of every change; the long one runs everything.
var (
	kernelTests = []suite{
		{name: "maps", pack: "./pkg/maps"},
		{name: "ports", pack: "./internal/dpud/ports"},
		{name: "dpud", pack: "./internal/dpud", run: "InTheKernel|UnguardedInTheKernel"},
		{name: "ctl", pack: "./cmd/ctl", run: "PinnedMaps"},
		{name: "prober", pack: "./test/prober"},
	}
	short = append(slices.Clone(kernelTests), suite{
		name: "e2e", pack: "./test/e2e",
		run: "NodeChangesTenantsUnderTraffic|CrossingsAreSeenWithoutEnforcement|DeathAndRestartChangeNoVerdict|DPUReboots|KillEverythingDuringReclaim",
	})
	long = append(slices.Clone(kernelTests), suite{name: "e2e", pack: "./test/e2e"})
)

func main() {
	cache := flag.String("cache", ".cache/vm", "folder for kernels and images")
	only := flag.String("kernel", "", "only this kernel of the matrix")
	all := flag.Bool("long", false, "run every end-to-end test")
	limit := flag.Duration("limit", 10*time.Minute, "most time for one kernel")
	flag.Parse()
	suites := short
	if *all {
		suites = long
	}
	failed := false
	for _, k := range kernels {
		if *only != "" && *only != k.name {
			continue
		}
		start := time.Now()
		err := run(k, suites, *cache, *limit)
		if err != nil {
			failed = true
			fmt.Fprintf(os.Stderr, "vm: kernel %s: %v\n", k.name, err)
			continue
		}
		fmt.Printf("vm: kernel %s: ok, in %s\n", k.name, time.Since(start).Round(time.Second))
	}
	if failed {
		os.Exit(1)
	}
}

func run(k kernel, suites []suite, cache string, limit time.Duration) error {
	cache, err := filepath.Abs(cache)
	if err != nil {
		return err
	}
	b, err := k.fetch(cache)
	if err != nil {
		return err
	}
	dir := filepath.Join(cache, k.name)
	p, i, err := build(k, b, suites, filepath.Join(dir, "bin"), limit)
	if err != nil {
		return err
	}
	initrd := filepath.Join(dir, "initrd")
	if err := i.write(initrd); err != nil {
		return err
	}
	return start(k, b.image, initrd, dir, p, limit)
}

// build compiles the tests and programs and lays out the guest's files. A single test binary may use up the limit.
func build(k kernel, b *boot, suites []suite, bin string, limit time.Duration) (plan.Plan, *image, error) {
	p := plan.Plan{Env: []string{"DPUD_BIN=/bin", "DPUD_PROBE_RATE=400"}}
	i := &image{}
	add := func(path, pack string, test bool) error {
		out := filepath.Join(bin, filepath.Base(path))
		i.add(path, file{source: out, mode: 0o755})
		return compile(k.arch, out, pack, test)
	}
	err := errors.Join(add("init", "./test/vm/init", false), add("bin/ctl", "./cmd/ctl", false), add("bin/dpud", "./cmd/dpud", false))
	// The guest mirrors the tree as far as tests read it.
	err = errors.Join(err, i.addTree("src/docs", "docs"))
	for _, s := range suites {
		dir := filepath.Join("src", s.pack)
		path := filepath.Join(dir, s.name+".test")
		err = errors.Join(err, add(path, s.pack, true), i.addTree(filepath.Join(dir, "testdata"), filepath.Join(s.pack, "testdata")))
		p.Tests = append(p.Tests, plan.Test{Name: s.name, Path: "/" + path, Dir: "/" + dir, Run: s.run, Timeout: limit.String()})
	}
	for _, m := range b.modules {
		path := filepath.Join("modules", filepath.Base(m))
		i.add(path, file{source: m, mode: 0o644})
		p.Modules = append(p.Modules, "/"+path)
	}
	text, e := json.MarshalIndent(p, "", "  ")
	i.add(strings.TrimPrefix(plan.Path, "/"), file{content: string(text), mode: 0o644})
	return p, i, errors.Join(err, e)
}

func compile(arch, out, pack string, test bool) error {
	args := []string{"build"}
	if test {
		args = []string{"test", "-c"}
	}
	cmd := exec.Command("go", append(args, "-ldflags=-s -w", "-o", out, pack)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile %s: %w: %s", pack, err, text)
	}
	return nil
}

// start runs the guest, prints what its tests print, and judges it.
func start(k kernel, kernelImage, initrd, dir string, p plan.Plan, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	kernelLog := filepath.Join(dir, "kernel.log")
	args := append([]string{}, k.qemu[1:]...)
	args = append(args,
		"-accel", "tcg,thread=multi", "-smp", "2", "-m", "2G", "-display", "none", "-monitor", "none", "-nodefaults", "-no-reboot",
		"-kernel", kernelImage, "-initrd", initrd,
		// The kernel has a console of its own, so that its lines never cut through those of the tests.
		"-serial", "file:"+kernelLog, "-serial", "stdio",
		"-append", "console=ttyS0 loglevel=5 panic=-1 oops=panic",
	)
	cmd := exec.CommandContext(ctx, k.qemu[0], args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start guest: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start guest: %w (Debian has it in qemu-system)", err)
	}
	v := newVerdict(p.Tests)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		s := strings.TrimRight(lines.Text(), "\r")
		fmt.Println(s)
		v.line(s)
	}
	err = errors.Join(lines.Err(), cmd.Wait())
	if ctx.Err() != nil {
		err = fmt.Errorf("it hangs: not done after %s", limit)
	}
	log, readErr := os.ReadFile(kernelLog)
	for s := range strings.Lines(string(log)) {
		v.kernelLine(s)
	}
	if err = errors.Join(err, readErr, v.err()); err != nil {
		return fmt.Errorf("%w\nthe kernel's log is %s", err, kernelLog)
	}
	return nil
}
