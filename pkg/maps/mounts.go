package maps

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// mountTable is what a process sees mounted (proc_pid_mountinfo(5)).
type mountTable struct {
	ids   map[string]bool // of mounts; each namespace's are its own
	bpffs map[string]bool // devices, as major:minor
}

func readMounts(process string) (mountTable, error) {
	b, err := os.ReadFile("/proc/" + process + "/mountinfo")
	if err != nil {
		return mountTable{}, fmt.Errorf("list mounts: %w", err)
	}
	t := mountTable{ids: map[string]bool{}, bpffs: map[string]bool{}}
	for line := range strings.Lines(string(b)) {
		before, after, _ := strings.Cut(line, " - ")
		id, rest, _ := strings.Cut(before, " ")
		_, rest, _ = strings.Cut(rest, " ") // of the parent
		device, _, _ := strings.Cut(rest, " ")
		t.ids[id] = true
		if strings.HasPrefix(after, "bpf ") {
			t.bpffs[device] = true
		}
	}
	return t, nil
}

// checkLasting refuses a bpffs that would last no longer than this process: one that is, or would be, mounted in
// the calling thread's mount namespace alone. What is pinned in it goes with the namespace, and with the pins all
// enforcement. path is on the bpffs; "" stands for one that is yet to be mounted.
func checkLasting(path string) error {
	own, err := readMounts("thread-self")
	if err != nil {
		return err
	}
	first, err := readMounts("1")
	if err != nil {
		return err
	}
	for id := range own.ids {
		if first.ids[id] {
			return nil // one namespace
		}
	}
	if path != "" {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return fmt.Errorf("look at %s: %w", path, err)
		}
		if first.bpffs[fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))] {
			return nil
		}
	}
	return ErrPrivateMount
}
