package maps

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ETH_FLAG_RXVLAN of linux/ethtool.h: the NIC takes the VLAN tag out of the frame.
const rxVLAN = 1 << 8

// keepVLANTags turns off the stripping of VLAN tags by the NIC, which would hide them from XDP: a tagged frame
// would be judged as an untagged one. It returns what an operator should know.
func keepVLANTags(iface string) []string {
	flags, err := ethtoolFlags(iface, unix.ETHTOOL_GFLAGS, 0)
	if err != nil {
		return []string{fmt.Sprintf("can't tell whether the NIC strips VLAN tags, which XDP would not see then: %v", err)}
	}
	if flags&rxVLAN == 0 {
		return nil
	}
	if _, err := ethtoolFlags(iface, unix.ETHTOOL_SFLAGS, flags&^rxVLAN); err != nil {
		return []string{fmt.Sprintf("the NIC strips VLAN tags, so XDP does not see them, and that can't be turned off: %v", err)}
	}
	return []string{"turned off the stripping of VLAN tags (rxvlan), which XDP would not see"}
}

// ethtoolFlags gets or sets the flags of an interface by SIOCETHTOOL.
func ethtoolFlags(iface string, command, flags uint32) (uint32, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	value := struct{ command, data uint32 }{command, flags} // struct ethtool_value
	request := struct {                                     // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:unix.IFNAMSIZ-1], iface)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		return 0, errno
	}
	return value.data, nil
}
