package rack

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Commands and flags of <linux/ethtool.h>.
const (
	ethtoolSetTSO   = 0x1f
	ethtoolSetTXSum = 0x17
	ethtoolSetGSO   = 0x24
	ethtoolSetGRO   = 0x2c
	ethtoolGetFlags = 0x25
	ethtoolSetFlags = 0x26

	flagTXVLAN = 1 << 7
	flagRXVLAN = 1 << 8
)

type ethtoolValue struct {
	command, data uint32
}

// ifreq of <net/if.h>, with a pointer in its union.
type ifreq struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// offloadsOff makes an interface of the calling thread's namespace behave as one that leaves nothing to
// hardware: checksums are complete, frames are no larger than the MTU, VLAN tags stay in the frame.
func offloadsOff(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	for _, command := range []uint32{ethtoolSetTXSum, ethtoolSetTSO, ethtoolSetGSO, ethtoolSetGRO} {
		if err := ethtool(fd, name, &ethtoolValue{command: command}); err != nil {
			return fmt.Errorf("switch offload %#x of %s off: %w", command, name, err)
		}
	}
	flags := ethtoolValue{command: ethtoolGetFlags}
	if err := ethtool(fd, name, &flags); err != nil {
		return fmt.Errorf("read offload flags of %s: %w", name, err)
	}
	flags.command = ethtoolSetFlags
	flags.data &^= flagTXVLAN | flagRXVLAN
	if err := ethtool(fd, name, &flags); err != nil {
		return fmt.Errorf("switch VLAN offloads of %s off: %w", name, err)
	}
	return nil
}

func ethtool(fd int, name string, v *ethtoolValue) error {
	req := ifreq{data: unsafe.Pointer(v)}
	copy(req.name[:unix.IFNAMSIZ-1], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	runtime.KeepAlive(v)
	if errno != 0 {
		return errno
	}
	return nil
}
