// Package netnstest gives tests network namespaces of their own, so that they neither see nor disturb the
// machine's interfaces, nor each other's.
package netnstest

import (
	"os"
	"runtime"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// NeedBPF skips the test unless it runs as root on a machine where BPF works. Nothing else may skip a test.
func NeedBPF(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root and BPF: not root")
	}
	if err := features.HaveMapType(ebpf.Hash); err != nil {
		t.Skipf("needs root and BPF: %v", err)
	}
}

// NS is a network namespace.
type NS struct{ Handle netns.NsHandle }

// New makes a network namespace with loopback up. It is gone when the test has ended and nothing uses it.
func New(t testing.TB) *NS {
	t.Helper()
	ns := &NS{Handle: netns.None()}
	run(t, func() {
		handle, err := netns.New()
		if err != nil {
			t.Fatalf("make network namespace: %v", err)
		}
		ns.Handle = handle
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			t.Fatalf("raise loopback: %v", err)
		}
	})
	t.Cleanup(func() { _ = ns.Handle.Close() })
	return ns
}

// Do calls f in the namespace and waits for it. f may fail the test; goroutines that it starts are elsewhere.
func (ns *NS) Do(t testing.TB, f func()) {
	t.Helper()
	run(t, func() {
		if err := netns.Set(ns.Handle); err != nil {
			t.Fatalf("enter network namespace: %v", err)
		}
		f()
	})
}

// Do calls f in a new namespace.
func Do(t testing.TB, f func()) {
	t.Helper()
	New(t).Do(t, f)
}

// run calls f on a thread that ends with it, because f changes the thread's namespace.
func run(t testing.TB, f func()) {
	t.Helper()
	done := make(chan bool)
	go func() {
		runtime.LockOSThread()
		finished := false
		defer func() { done <- finished }()
		f()
		finished = true
	}()
	if !<-done {
		t.FailNow()
	}
}
