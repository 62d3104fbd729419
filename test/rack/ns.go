package rack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Namespace is a network namespace with a name that `ip netns` knows.
type Namespace struct {
	Name   string
	handle netns.NsHandle
}

// newNamespace makes a namespace, with loopback up. A leftover of that name is replaced.
func newNamespace(name string) (*Namespace, error) {
	_ = netns.DeleteNamed(name)
	ns := &Namespace{Name: name, handle: netns.None()}
	err := onThread(func() error {
		h, err := netns.NewNamed(name)
		if err != nil {
			return fmt.Errorf("make namespace %s: %w", name, err)
		}
		ns.handle = h
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("find loopback of %s: %w", name, err)
		}
		return netlink.LinkSetUp(lo)
	})
	if err != nil {
		return nil, errors.Join(err, ns.close())
	}
	return ns, nil
}

// onThread runs f on a thread of its own whose namespace f may change: the thread ends with f.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime ends the thread, and with it what f changed
		done <- f()
	}()
	return <-done
}

// Do runs f on a thread that is inside the namespace. Sockets that f opens stay in it; processes that f
// starts run in it.
func (n *Namespace) Do(f func() error) error {
	return onThread(func() error {
		if err := netns.Set(n.handle); err != nil {
			return fmt.Errorf("enter namespace %s: %w", n.Name, err)
		}
		return f()
	})
}

// Dial connects from inside the namespace to an address without names in it.
func (n *Namespace) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := n.Do(func() error {
		var err error
		conn, err = (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// sysctl writes a value below /proc/sys inside the namespace; a setting that the kernel lacks is no error.
func (n *Namespace) sysctl(path, value string) error {
	return n.Do(func() error {
		err := os.WriteFile("/proc/sys/"+path, []byte(value), 0)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
}

func (n *Namespace) close() error {
	if n == nil || !n.handle.IsOpen() {
		return nil
	}
	return errors.Join(n.handle.Close(), netns.DeleteNamed(n.Name))
}
