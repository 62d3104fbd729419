package prober

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// now is CLOCK_MONOTONIC in ns, which is one clock for every process and namespace of a machine.
func now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // a clock that every Linux has
	}
	return t.Nano()
}

// arrival is one frame that a station received.
type arrival struct {
	stamp
	received int64 // CLOCK_MONOTONIC, ns; not before it arrived, and at most clockSlack after
}

// clockSlack covers a step of the wall clock's speed between the kernel's stamp and its conversion.
const clockSlack = 100 * time.Microsecond

// endpoint is the sockets of one station: a raw one for frames, and one that takes and forgets what is sent to
// the discard port, so that the node's own kernel answers no frame.
type endpoint struct {
	raw, discard int
	seq          uint32
	control      []byte
	arrivals     []arrival

	mu  sync.Mutex
	err error
}

// open opens a station's sockets inside its namespace.
func open(s *Station) (*endpoint, error) {
	e := &endpoint{raw: -1, discard: -1, control: make([]byte, 256)}
	err := s.Inside(func() error {
		link, err := net.InterfaceByName(s.Interface)
		if err != nil {
			return fmt.Errorf("find %s: %w", s.Interface, err)
		}
		if e.raw, err = openRaw(link.Index); err != nil {
			return err
		}
		e.discard, err = openDiscard()
		return err
	})
	if err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

func openRaw(ifindex int) (int, error) {
	all := int(binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff}))
	// Protocol 0 receives nothing until the socket is bound to the interface.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open packet socket: %w", err)
	}
	// Forced beyond the machine's limit where allowed: what overflows is counted and reported.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 8<<20)
	}
	timeout := unix.NsecToTimeval((50 * time.Millisecond).Nanoseconds())
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: ifindex}),
	)
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("set up packet socket: %w", err)
	}
	return fd, nil
}

func openDiscard() (int, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open discard socket: %w", err)
	}
	// A prober that has just ended may still hold the port for a moment.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("set up discard socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet6{Port: portDiscard}); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("bind discard socket: %w", err)
	}
	return fd, nil
}

func (e *endpoint) close() {
	for _, fd := range []int{e.raw, e.discard} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// fail keeps the first error of a goroutine, for the report.
func (e *endpoint) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = err
	}
}

// write sends a frame. A full queue is no error: the frame is one that was dropped.
func (e *endpoint) write(frame []byte) error {
	_, err := unix.Write(e.raw, frame)
	if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("send frame: %w", err)
	}
	return nil
}

// read waits a moment for a frame and returns its length, 0 for none, and when the kernel received it.
func (e *endpoint) read(buf []byte) (int, int64, error) {
	n, m, _, _, err := unix.Recvmsg(e.raw, buf, e.control, 0)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENETDOWN) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("receive frame: %w", err)
	}
	return n, receivedAt(e.control[:m]), nil
}

// receivedAt converts the kernel's time stamp, which is of the wall clock: what passes between the two readings of
// clocks makes it later, never earlier. Without a stamp it is now. A time that is too late only makes the time in which
// a frame may have been lawful longer; one that is too early would accuse it wrongly.
func receivedAt(control []byte) int64 {
	wall := time.Now().UnixNano()
	at := now()
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return at
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SO_TIMESTAMPNS || len(m.Data) < int(unsafe.Sizeof(unix.Timespec{})) {
			continue
		}
		stamped := *(*unix.Timespec)(unsafe.Pointer(&m.Data[0]))
		if age := wall - stamped.Nano(); age > 0 {
			return min(at, at-age+int64(clockSlack))
		}
	}
	return at
}

// lost returns how many frames the kernel could not keep for the receiver.
func (e *endpoint) lost() (uint64, error) {
	s, err := unix.GetsockoptTpacketStats(e.raw, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return 0, fmt.Errorf("read socket statistics: %w", err)
	}
	return uint64(s.Drops), nil
}
