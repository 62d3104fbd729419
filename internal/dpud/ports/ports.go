// Package ports takes the links of a DPU that its configuration names: it has them guarded before anything
// else, joins them by a bridge that neither floods nor learns, and only then raises them.
//
// It works by passes: each compares the links with what they should be and changes what differs, so that it
// does not matter which event was missed. It decides nothing about packets, and never leaves a link of its
// own up without a guard: such a link is taken down first and reported.
//
// Everything happens in the network namespace of the process.
package ports

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"dpud/pkg/maps"
)

// Guard puts programs on links; *maps.Datapath does in the kernel.
type Guard interface {
	// Attach puts the programs on a link and tells them its role. Where they are already, they stay in
	// force while they are replaced.
	Attach(maps.Iface, maps.Role) (maps.Attachment, error)
	// Forget lets go of a link that is gone. One that lives on in another network namespace keeps its programs:
	// maps.ErrElsewhere.
	Forget(ifindex int) error
	// Runs says whether the kernel runs such programs on the link, attached by this run or an earlier one.
	Runs(ifindex int, role maps.Role) bool
	// Other returns an error if a program on the link judges by the assignments of another data plane.
	Other(netlink.Link) error
	// Ports returns the links that have a role.
	Ports() (map[int]maps.Role, error)
	// Check returns nil if the kernel runs what Attach put on the link.
	Check(ifindex int) error
}

// Config of the ports.
type Config struct {
	// Nodes and Uplinks are names or globs.
	Nodes, Uplinks []string
	// Bridge that joins the ports, made if it is missing and CreateBridge is set.
	Bridge       string
	CreateBridge bool
	// BridgeUplinks joins the uplinks too.
	BridgeUplinks bool
	// BridgeMAC is given to a bridge that is made, so that it does not follow that of its ports.
	BridgeMAC net.HardwareAddr
}

// Port is one link that the configuration names, as of the last pass.
type Port struct {
	Name  string
	Index int // 0: there is no such link
	Role  maps.Role
	Up    bool
	// XDP is native or generic, Egress tcx or clsact; empty when there is none. Notes say why not better.
	XDP, Egress, Notes string
	Guarded            bool
	Bridged            bool
	// Problem is what keeps the port from being used; empty when nothing does.
	Problem string

	joins int // how often it was put into the bridge, which forgets forwarding entries in between
}

// Ready says whether nodes can be programmed behind the port.
func (p Port) Ready() bool { return p.Guarded && p.Up && p.Problem == "" }

// Ports is safe for concurrent use.
type Ports struct {
	cfg     Config
	guard   Guard
	log     *slog.Logger
	nl      *netlink.Handle // of the passes
	fdb     *netlink.Handle // of forwarding entries, which don't wait for a pass
	changed func([]Port)

	mu       sync.Mutex // of a pass and the fields below
	taken    map[int]*port
	absent   []Port            // named links that are not there, or not taken
	reported map[string]string // what was said of links that are not taken
	kept     map[int]string    // why links that are gone could not be let go of

	last      atomic.Pointer[[]Port]
	unguarded atomic.Uint64
}

// port is a taken link.
type port struct {
	Port
	attached  bool // by this run
	raised    bool // by this run, since it last took the link down
	settled   bool // addresses dealt with
	fromGuard error
}

// New returns ports that no pass has looked at yet. changed is called after each pass that found or made a
// difference, with the ports in order of name; it must not call back.
func New(cfg Config, guard Guard, log *slog.Logger, changed func([]Port)) (*Ports, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	fdb, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	p := &Ports{
		cfg: cfg, guard: guard, log: log, nl: h, fdb: fdb, changed: changed,
		taken: make(map[int]*port), reported: make(map[string]string), kept: make(map[int]string),
	}
	p.last.Store(new([]Port))
	return p, nil
}

// Close releases the netlink sockets. The links stay as they are.
func (p *Ports) Close() {
	p.nl.Close()
	p.fdb.Close()
}

// sweepEvery bounds how long a change that netlink does not tell, like a tc program taken off, goes unseen,
// and how soon a port that failed is tried again.
const sweepEvery = time.Second

// Run makes passes until ctx ends: when a link or route changes, and every second.
func (p *Ports) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := p.follow(ctx); err != nil && ctx.Err() == nil {
			// Lost messages (ENOBUFS) end a subscription: begin anew with a full pass.
			p.log.Warn("netlink subscription broke, begun anew", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	return nil
}

func (p *Ports) follow(ctx context.Context) error {
	done := make(chan struct{})
	defer close(done)
	links, routes := make(chan netlink.LinkUpdate, 256), make(chan netlink.RouteUpdate, 256)
	broken := make(chan error, 8)
	fail := func(err error) {
		select {
		case broken <- err:
		default:
		}
	}
	if err := netlink.LinkSubscribeWithOptions(links, done, netlink.LinkSubscribeOptions{ErrorCallback: fail, ReceiveBufferSize: 1 << 20}); err != nil {
		return fmt.Errorf("subscribe to links: %w", err)
	}
	defer drain(links) // or the subscription's goroutine would block for ever
	if err := netlink.RouteSubscribeWithOptions(routes, done, netlink.RouteSubscribeOptions{ErrorCallback: fail, ReceiveBufferSize: 1 << 20}); err != nil {
		return fmt.Errorf("subscribe to routes: %w", err)
	}
	defer drain(routes)
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	for {
		if err := p.Pass(); err != nil {
			p.log.Error("ports could not be looked at", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-broken:
			return err
		case _, ok := <-links:
			if !ok {
				return fmt.Errorf("subscription to links ended")
			}
			discard(links)
		case _, ok := <-routes:
			if !ok {
				return fmt.Errorf("subscription to routes ended")
			}
			discard(routes)
		case <-sweep.C:
		}
	}
}

// discard takes what has come in: one pass deals with any number of changes.
func discard[T any](ch <-chan T) {
	for {
		select {
		case _, ok := <-ch:
			if !ok {
				return
			}
		default:
			return
		}
	}
}

// drain empties a channel until it is closed, so that its sender can end.
func drain[T any](ch <-chan T) {
	go func() {
		for range ch {
		}
	}()
}

// List returns the ports as of the last pass, in order of name. Read it, do not change it.
func (p *Ports) List() []Port { return *p.last.Load() }

// FoundUnguarded counts the links that were found up without our programs.
func (p *Ports) FoundUnguarded() uint64 { return p.unguarded.Load() }

// publish tells the owner what the pass came to, if it differs from the last.
func (p *Ports) publish() {
	now := slices.Clone(p.absent)
	for _, t := range p.taken {
		now = append(now, t.Port)
	}
	slices.SortFunc(now, func(a, b Port) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Index, b.Index)) })
	if slices.Equal(now, p.List()) {
		return
	}
	p.last.Store(&now)
	p.changed(now)
}
