// Package rack makes a rack of its own out of network namespaces: a controller, two DPUs, four nodes and the
// wires between them, and runs the real programs in it.
//
//	            ctrl ── api, gossip ──┬─────────────┐
//	                                  │             │
//	n1 ── p1 ┐                        │             │                    ┌ p1 ── n3
//	         ├──────────────────────  d1 ═ uplink0 ═ d2  ────────────────┤
//	n2 ── p2 ┘                                                           └ p2 ── n4
//
// It runs no external commands, so that it also works where there are none. Racks of different names do not
// see each other. Direct messages and gossip run over a network each, so that either can be cut.
package rack

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"dpud/pkg/record"
)

// Names of the rack's members.
var (
	DPUs  = []record.DPU{"d1", "d2"}
	Nodes = []string{"n1", "n2", "n3", "n4"}
)

// Options of a rack. Name and Bin are needed.
type Options struct {
	// Name starts the names of the namespaces. At most 20 characters.
	Name string
	// Bin is the folder of the programs ctl and dpud.
	Bin string
	// Dir holds configuration, data and logs; it is made. Empty: a temporary folder that Close removes.
	Dir string
	// Deadline of every wait inside the rack. 0: 30 s.
	Deadline time.Duration
}

// Rack is a running rack. Its methods may be called concurrently, except Close.
type Rack struct {
	Options
	Controller *Process
	Daemons    map[record.DPU]*Process

	spaces  map[string]*Namespace
	tempDir bool
	lock    *os.File
}

// Node is how a node of the rack is wired.
type Node struct {
	Name string
	// Home is the DPU that it hangs on, Port its interface there.
	Home record.DPU
	Port string
	MAC  record.MAC
	V4   netip.Addr
	V6   netip.Addr
}

// NodeInterface is the name of each node's interface in its own namespace.
const NodeInterface = "eth0"

// Uplink is the name of each DPU's interface to the other one.
const Uplink = "uplink0"

// Wiring returns how the nodes are wired, n1 first.
func Wiring() []Node {
	nodes := make([]Node, len(Nodes))
	for i, name := range Nodes {
		n := byte(i + 1)
		nodes[i] = Node{
			Name: name,
			Home: DPUs[i/2],
			Port: fmt.Sprintf("p%d", i%2+1),
			MAC:  record.MAC{2, 0, 0, 0, 0, n},
			V4:   netip.AddrFrom4([4]byte{10, 0, 0, n}),
			V6:   netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: n}),
		}
	}
	return nodes
}

// New makes the rack's namespaces and wires; nothing runs yet. What racks whose process was killed have left behind
// is removed; one of that name that lives is an error. On an error nothing is left behind.
func New(o Options) (*Rack, error) {
	if o.Deadline == 0 {
		o.Deadline = 30 * time.Second
	}
	r := &Rack{Options: o, spaces: make(map[string]*Namespace), Daemons: make(map[record.DPU]*Process)}
	if err := errors.Join(mountBPF(), sweep()); err != nil {
		return nil, fmt.Errorf("make rack %s: %w", o.Name, err)
	}
	lock, err := takeLock(lockPath(o.Name))
	if err != nil {
		return nil, fmt.Errorf("make rack %s: %w", o.Name, err)
	}
	r.lock = lock
	if err := r.build(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Rack) build() error {
	if err := r.makeDir(); err != nil {
		return err
	}
	for _, name := range members() {
		ns, err := newNamespace(r.Name + "-" + name)
		if err != nil {
			return err
		}
		r.spaces[name] = ns
	}
	if err := r.wireNodes(); err != nil {
		return err
	}
	if err := r.wireManagement(); err != nil {
		return err
	}
	return r.configure()
}

func (r *Rack) makeDir() (err error) {
	if r.Dir != "" {
		return os.MkdirAll(r.Dir, 0o755)
	}
	r.Dir, err = os.MkdirTemp("", "dpud-rack-")
	r.tempDir = err == nil
	return err
}

// wireNodes connects nodes to DPUs and the DPUs to each other.
func (r *Rack) wireNodes() error {
	for _, n := range Wiring() {
		ns := r.Namespace(n.Name)
		// Neighbour discovery of the kernel's own would only add noise: the address needs none.
		if err := ns.sysctl("net/ipv6/conf/default/addr_gen_mode", "1"); err != nil {
			return err
		}
		err := connect(
			end{
				ns: ns, name: NodeInterface, mac: n.MAC, up: true, plain: true,
				addresses: []netip.Prefix{netip.PrefixFrom(n.V4, 24), netip.PrefixFrom(n.V6, 64)},
			},
			end{ns: r.Namespace(string(n.Home)), name: n.Port},
		)
		if err != nil {
			return err
		}
	}
	return connect(end{ns: r.Namespace("d1"), name: Uplink}, end{ns: r.Namespace("d2"), name: Uplink})
}

// The management networks: .1 is the controller, .11 and .12 are the DPUs.
const (
	apiNetwork    = "192.168.77"
	gossipNetwork = "192.168.78"
)

func host(network string, n int) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("%s.%d/24", network, n))
}

func (r *Rack) wireManagement() error {
	for name, network := range map[string]string{"api": apiNetwork, "gossip": gossipNetwork} {
		ctrl := r.Namespace("ctrl")
		if err := addBridge(ctrl, name, host(network, 1)); err != nil {
			return err
		}
		for i, dpu := range DPUs {
			port := name + "-" + string(dpu)
			err := connect(
				end{ns: ctrl, name: port, up: true},
				end{ns: r.Namespace(string(dpu)), name: name, up: true, addresses: []netip.Prefix{host(network, 11+i)}},
			)
			if err != nil {
				return err
			}
			if err := enslave(ctrl, port, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// Namespace returns the namespace of "ctrl", a DPU or a node.
func (r *Rack) Namespace(name string) *Namespace { return r.spaces[name] }

// CutDirect cuts or mends the network of direct messages between the controller and all DPUs, or those named.
func (r *Rack) CutDirect(cut bool, dpus ...record.DPU) error { return r.cut("api", cut, dpus) }

// CutGossip cuts or mends the network of gossip of all members, or of the DPUs named.
func (r *Rack) CutGossip(cut bool, dpus ...record.DPU) error { return r.cut("gossip", cut, dpus) }

func (r *Rack) cut(network string, cut bool, dpus []record.DPU) error {
	if len(dpus) == 0 {
		dpus = DPUs
	}
	var errs []error
	for _, dpu := range dpus {
		errs = append(errs, r.Namespace("ctrl").SetLink(network+"-"+string(dpu), !cut))
	}
	return errors.Join(errs...)
}

// PinDir is the folder of a DPU's pinned maps.
func (r *Rack) PinDir(dpu record.DPU) string {
	return pinDir(r.Name, dpu)
}

// Close ends every process and removes everything that the rack made. It may be called again.
func (r *Rack) Close() error {
	var errs []error
	processes := []*Process{r.Controller}
	for _, p := range r.Daemons {
		processes = append(processes, p)
	}
	for _, p := range processes {
		if p != nil {
			errs = append(errs, p.Stop(unix.SIGKILL))
		}
	}
	errs = append(errs, removePins(r.Name))
	for _, ns := range r.spaces {
		errs = append(errs, ns.close())
	}
	r.spaces = nil
	if r.tempDir {
		errs = append(errs, os.RemoveAll(r.Dir))
	}
	if r.lock != nil {
		errs = append(errs, os.Remove(r.lock.Name()), r.lock.Close())
		r.lock = nil
	}
	return errors.Join(errs...)
}

// mountBPF mounts the BPF file system where it belongs if it is not there.
func mountBPF() error {
	const path, magic = "/sys/fs/bpf", 0xcafe4a11
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	if uint32(fs.Type) == magic {
		return nil
	}
	if err := unix.Mount("bpf", path, "bpf", 0, ""); err != nil {
		return fmt.Errorf("mount %s: %w", path, err)
	}
	return nil
}
