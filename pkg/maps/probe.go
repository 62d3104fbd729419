package maps

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

// Probe returns nil if this process and kernel can run the data plane, and otherwise an error that says in one
// sentence each which privilege or feature is missing.
func Probe() error {
	return errors.Join(
		probeKernel(),
		probeCapability(unix.CAP_BPF, "CAP_BPF", "to load programs and maps"),
		probeCapability(unix.CAP_PERFMON, "CAP_PERFMON", "for programs that compare pointers into packets"),
		probeCapability(unix.CAP_NET_ADMIN, "CAP_NET_ADMIN", "to load and attach XDP and tc programs"),
		probeBPF(),
		probeFilesystem(),
	)
}

func probeKernel() error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("read kernel version: %w", err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("read kernel version %q: %w", release, err)
	}
	if major < 6 || major == 6 && minor < 1 {
		return fmt.Errorf("the kernel is %s, and dpud needs 6.1 or newer", release)
	}
	return nil
}

func probeCapability(capability int, name, purpose string) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	has := func(c int) bool { return data[c/32].Effective&(1<<(c%32)) != 0 }
	if has(capability) || capability != unix.CAP_NET_ADMIN && has(unix.CAP_SYS_ADMIN) {
		return nil
	}
	return fmt.Errorf("%s is missing, which dpud needs %s: run it as root, or grant the capability", name, purpose)
}

func probeBPF() error {
	if probeCapability(unix.CAP_BPF, "", "") != nil || probeCapability(unix.CAP_NET_ADMIN, "", "") != nil {
		return nil // said already
	}
	var errs []error
	for _, t := range []ebpf.MapType{ebpf.Hash, ebpf.LPMTrie, ebpf.PerCPUArray, ebpf.ArrayOfMaps} {
		if err := features.HaveMapType(t); err != nil {
			errs = append(errs, fmt.Errorf("the kernel has no BPF maps of type %s: %w", t, err))
		}
	}
	for _, t := range []ebpf.ProgramType{ebpf.XDP, ebpf.SchedCLS} {
		if err := features.HaveProgramType(t); err != nil {
			errs = append(errs, fmt.Errorf("the kernel has no BPF programs of type %s: %w", t, err))
		}
	}
	if err := features.HaveProgramHelper(ebpf.XDP, asm.FnXdpGetBuffLen); err != nil {
		errs = append(errs, fmt.Errorf("the kernel has no XDP multi-buffer support (bpf_xdp_get_buff_len): %w", err))
	}
	return errors.Join(errs...)
}

func probeFilesystem() error {
	if _, err := os.Stat(bpffs); err != nil {
		return fmt.Errorf("%s is missing: mount sysfs on /sys, of a kernel with CONFIG_BPF_SYSCALL", bpffs)
	}
	_, on, err := findBPFFS(bpffs)
	if err != nil || on {
		return err
	}
	return probeCapability(unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN", "to mount a bpffs on "+bpffs+" (or mount one before)")
}
