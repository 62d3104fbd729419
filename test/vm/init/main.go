// Init is the first process of the guest: it makes a machine of the kernel, runs the tests of the plan one after
// the other, prints what they print, and switches the machine off.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"dpud/test/vm/plan"
)

func main() {
	out, err := setup()
	if err == nil {
		err = tests(out)
	}
	if err != nil {
		fmt.Fprintln(out, plan.Done("init", err.Error()))
	} else {
		fmt.Fprintln(out, plan.End)
	}
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Fprintln(out, "power off:", err)
	}
	select {} // the first process must not end
}

// setup mounts what the tests expect, and opens the console that belongs to them.
func setup() (io.Writer, error) {
	var out io.Writer = os.Stdout
	for _, m := range []struct{ kind, path string }{
		{"devtmpfs", "/dev"},
		{"proc", "/proc"},
		{"sysfs", "/sys"},
		{"bpf", "/sys/fs/bpf"},
		{"tmpfs", "/tmp"},
		{"tmpfs", "/run"},
		{"tmpfs", "/var"},
	} {
		if err := os.MkdirAll(m.path, 0o755); err != nil {
			return out, fmt.Errorf("make %s: %w", m.path, err)
		}
		if err := unix.Mount(m.kind, m.path, m.kind, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return out, fmt.Errorf("mount %s: %w", m.path, err)
		}
	}
	console, err := os.OpenFile("/dev/ttyS1", os.O_RDWR, 0)
	if err != nil {
		return out, fmt.Errorf("open console: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return console, fmt.Errorf("find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return console, fmt.Errorf("raise loopback: %w", err)
	}
	return console, nil
}

func tests(out io.Writer) error {
	var p plan.Plan
	b, err := os.ReadFile(plan.Path)
	if err != nil {
		return fmt.Errorf("read plan: %w", err)
	}
	if err := json.Unmarshal(b, &p); err != nil {
		return fmt.Errorf("read plan: %w", err)
	}
	for _, m := range p.Modules {
		if err := load(m); err != nil {
			return err
		}
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fmt.Errorf("ask for the kernel's release: %w", err)
	}
	fmt.Fprintf(out, "kernel %s %s\n", unix.ByteSliceToString(name.Release[:]), unix.ByteSliceToString(name.Version[:]))
	for _, t := range p.Tests {
		fmt.Fprintln(out, plan.Begin(t.Name))
		cmd := exec.Command(t.Path, t.Args()...)
		cmd.Dir = t.Dir
		cmd.Env = append([]string{"PATH=/bin", "HOME=/tmp"}, p.Env...)
		cmd.Stdout, cmd.Stderr = out, out
		how := "ok"
		if err := cmd.Run(); err != nil {
			how = err.Error()
		}
		fmt.Fprintln(out, plan.Done(t.Name, how))
	}
	return nil
}

func load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("load module: %w", err)
	}
	defer func() { _ = f.Close() }()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load module %s: %w", path, err)
	}
	return nil
}
