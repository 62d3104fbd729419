package maps

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"dpud/internal/netnstest"
)

// What is pinned must outlive the process: a bpffs that only it sees is refused, the host's is used even from a
// mount namespace of one's own.
func TestPrivateMount(t *testing.T) {
	netnstest.NeedBPF(t)
	pin := testPin(t)
	if err := loadPin(t, pin).Close(); err != nil { // mounts the host's, if it is missing
		t.Fatal(err)
	}
	load := func() error {
		d, err := Load(pin, Options{MaxNodes: 64})
		if err == nil {
			err = d.Close()
		}
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends, and its mounts with it
		for _, step := range []struct {
			what string
			do   func() error
			want error
		}{
			{"the host's bpffs", func() error {
				return errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
			}, nil},
			{"no bpffs", func() error { return unix.Mount("tmpfs", bpffs, "tmpfs", 0, "") }, ErrPrivateMount},
			{"a bpffs of its own", func() error { return unix.Mount("bpf", bpffs, "bpf", 0, "") }, ErrPrivateMount},
		} {
			if err := step.do(); err != nil {
				t.Errorf("%s: %v", step.what, err)
				return
			}
			if err := load(); !errors.Is(err, step.want) {
				t.Errorf("load with %s: %v, want %v", step.what, err, step.want)
			}
		}
	}()
	<-done
}
