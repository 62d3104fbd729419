// Package dpud is the daemon of one DPU. It joins what decides (package agent, which knows no I/O) with what
// acts: the kernel's maps and programs (package maps), the DPU's links (package ports), the controllers' API,
// the gossip of the rack, and its own API with metrics.
//
// It never takes enforcement away by itself: however it ends, maps, programs and links stay as they are, and
// the next run adopts them. Only [Unload] removes them.
package dpud

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"dpud/internal/dpud/config"
	"dpud/internal/dpud/ports"
	"dpud/pkg/api/dpudv1"
	"dpud/pkg/control/agent"
	"dpud/pkg/gossip"
	"dpud/pkg/maps"
	"dpud/pkg/record"
	"dpud/pkg/table"
	"dpud/pkg/wire"
)

// daemon is one run of dpud.
type daemon struct {
	cfg      *config.Config
	log      *slog.Logger
	version  string
	instance string
	machine  machine

	records *records
	loop    *loop
	plane   *plane
	metrics *metrics
	gossip  atomic.Pointer[gossip.Gossip] // nil until joined, and without gossip

	ctx   context.Context // of the run
	epoch atomic.Uint64   // newest that was heard, for sealing

	request *record.LeaseRequest // the newest; owned by the loop's goroutine
}

// machine is the DPU under the daemon. Its methods are safe for concurrent use, but for those of kernel, which
// only the loop calls.
type machine struct {
	kernel Kernel
	tables tables
	ports  func() []ports.Port
	// foundUnguarded counts ports that were found up without our programs.
	foundUnguarded func() uint64
}

// tables reads what the kernel holds.
type tables interface {
	Read() (table.Tables, error)
	Counters() ([]maps.Counter, error)
	Mode() (maps.Mode, error)
}

// Run runs dpud until ctx ends. The configuration has been checked. Errors say what could not be set up, or what
// ended the run.
func Run(ctx context.Context, cfg *config.Config, version string, log *slog.Logger) error {
	identity, err := identify(cfg)
	if err != nil {
		return err
	}
	if err := refuseOther(cfg); err != nil {
		return err
	}
	dp, err := maps.Load(cfg.Pin, maps.Options{MaxNodes: uint32(cfg.MaxNodes)})
	if err != nil {
		return err
	}
	defer func() { _ = dp.Close() }() // the kernel keeps what is pinned
	if err := setUp(dp, cfg, log); err != nil {
		return err
	}
	own, err := newOwner(cfg.Pin)
	if err != nil {
		return err
	}
	var d *daemon
	p, err := ports.New(portsConfig(cfg, identity.HardwareID), guard{dp, own}, log, func(list []ports.Port) { d.loop.setPorts(list) })
	if err != nil {
		return err
	}
	defer p.Close()
	d, err = newDaemon(ctx, cfg, identity, machine{
		kernel: &datapath{Datapath: dp, ports: p}, tables: dp, ports: p.List, foundUnguarded: p.FoundUnguarded,
	}, version, log)
	if err != nil {
		return err
	}
	if err := p.Pass(); err != nil {
		return err
	}
	return d.run(p.Run)
}

// newDaemon joins the parts.
func newDaemon(ctx context.Context, cfg *config.Config, identity agent.Config, m machine, version string, log *slog.Logger) (*daemon, error) {
	site, err := loadSite(cfg.Pin)
	if err != nil {
		return nil, err
	}
	d := &daemon{cfg: cfg, log: log, version: version, instance: identity.Instance, machine: m, ctx: ctx}
	d.records = &records{Replica: wire.NewReplica(site, d.heard), log: log, joined: site != "", early: d.leaseNews}
	d.loop = newLoop(agent.New(identity), m.kernel, cfg.Audit, d, log)
	d.plane = newPlane(cfg.Controllers, d.records, log)
	d.plane.answer, d.plane.answered = d.leaseAnswered, d.confirmationsAnswered
	d.metrics = newMetrics(m, d.loop, d.records)
	log.Info("dpud starts", "name", cfg.Name, "version", version, "pin", cfg.Pin, "site", site, "hardware", identity.HardwareID, "instance", d.instance)
	return d, nil
}

// run serves, gossips and reconciles until ctx ends; followPorts does its part until then.
func (d *daemon) run(followPorts func(context.Context) error) error {
	listener, err := d.listen()
	if err != nil {
		return err
	}
	if err := d.join(); err != nil {
		return errors.Join(err, listener.Close())
	}
	if g := d.gossip.Load(); g != nil {
		defer func() {
			if err := g.Close(); err != nil {
				d.log.Debug("gossip", "err", err)
			}
		}()
	}
	group, ctx := errgroup.WithContext(d.ctx)
	group.Go(func() error { return d.loop.run(ctx) })
	group.Go(func() error { return followPorts(ctx) })
	group.Go(func() error { return d.plane.run(ctx) })
	group.Go(func() error { return d.serve(ctx, listener) })
	d.log.Info("dpud is ready", "listen", d.cfg.Listen, "advertise", d.cfg.Advertise, "problems", problemsOf(d.machine.ports()))
	err = group.Wait()
	d.log.Info("dpud ends; the kernel goes on enforcing")
	return err
}

// identify returns what tells this DPU, its hardware and this run from others.
func identify(cfg *config.Config) (agent.Config, error) {
	c := agent.Config{DPU: record.DPU(cfg.Name), Instance: newInstance(), HardwareID: cfg.HardwareID, Address: cfg.Advertise}
	var err error
	if c.HardwareID == "" {
		if c.HardwareID, err = hardwareID("/"); err != nil {
			return c, err
		}
	}
	c.KernelBoot, err = kernelBoot()
	return c, err
}

// setUp brings mode and local addresses to what the configuration says.
func setUp(dp *maps.Datapath, cfg *config.Config, log *slog.Logger) error {
	mode, err := dp.Mode()
	if err != nil {
		return err
	}
	if cfg.Mode != "" && cfg.Mode != mode.String() {
		log.Warn("mode changes", "from", mode, "to", cfg.Mode)
		if mode, err = maps.ParseMode(cfg.Mode); err != nil {
			return err
		}
		if err := dp.SetMode(mode); err != nil {
			return err
		}
	}
	if mode != maps.Enforce {
		log.Warn("packets between tenants are not dropped in this mode, and nothing is confirmed as cleared; `ctl mode enforce` ends it", "mode", mode)
	}
	local := make([]netip.Addr, len(cfg.Local))
	for i, a := range cfg.Local {
		if local[i], err = netip.ParseAddr(a); err != nil {
			return fmt.Errorf("set local addresses: %w", err)
		}
	}
	return dp.SetLocal(local)
}

func portsConfig(cfg *config.Config, hardware string) ports.Config {
	// A MAC of its own, the same after each reboot: locally administered, from the DPU's identity.
	sum := sha256.Sum256([]byte(cfg.Name + "\n" + hardware))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^1 | 2
	return ports.Config{
		Nodes: cfg.Ports.Nodes, Uplinks: cfg.Ports.Uplinks, Bridge: cfg.Ports.Bridge, CreateBridge: cfg.Ports.CreateBridge,
		BridgeUplinks: cfg.Ports.BridgeUplinks, BridgeMAC: mac,
	}
}

// heard is told of every record that was news, from either way.
func (d *daemon) heard(r record.Record) {
	d.announce(r.Key())
	switch r := r.(type) {
	case *record.Lease, *record.LeaseRequest:
		d.leaseNews(d.records.Site(), r)
	case *record.Confirmation:
	default:
		d.loop.hear(r)
	}
}

// leaseNews is told of leases and lease requests of a site, before and after it is joined.
func (d *daemon) leaseNews(site record.SiteID, r record.Record) {
	switch r := r.(type) {
	case *record.Lease:
		if r.DPU == record.DPU(d.cfg.Name) {
			d.loop.post(func() { d.takeLease(site, r) })
		}
	case *record.LeaseRequest:
		if r.DPU == record.DPU(d.cfg.Name) && r.Instance != d.instance {
			d.loop.post(func() { d.loop.core.HearNonce(r.Nonce) })
		}
	}
}

func (d *daemon) announce(keys ...record.Key) {
	if g := d.gossip.Load(); g != nil {
		g.Announce(keys...)
	}
}

// leaseAnswered takes a direct answer. An error means that it is none for this DPU.
func (d *daemon) leaseAnswered(e *dpudv1.Envelope) error {
	r, err := d.records.open(e)
	if err != nil {
		return err
	}
	lease, ok := r.(*record.Lease)
	if !ok {
		return fmt.Errorf("controller answered a lease request with %s", r.Key())
	}
	d.loop.post(func() { d.takeLease(record.SiteID(e.GetSiteId()), lease) })
	return nil
}

// takeLease hears a lease; the caller is the loop's goroutine. An answer to this run's own request that is not a
// refusal, and nothing else, makes a dpud join a site; it remembers that before the lease takes effect, as from
// then on the maps belong to the site.
func (d *daemon) takeLease(site record.SiteID, r *record.Lease) {
	q := d.request
	if q == nil || r.DPU != q.DPU || r.Instance != q.Instance || r.Nonce != q.Nonce {
		return
	}
	if r.Refused == "" {
		if d.records.Site() == "" {
			if err := saveSite(d.cfg.Pin, site); err != nil {
				d.loop.say(err)
				return
			}
			d.records.join(site)
		}
		if site != d.records.Site() {
			return // came in before another site was joined
		}
		d.epoch.Store(max(d.epoch.Load(), uint64(r.Epoch)))
	}
	d.loop.hearLease(r)
}

// ask implements outgoing. Gossip carries the request only where the direct way does not.
func (d *daemon) ask(r *record.LeaseRequest) {
	d.request = r
	epoch := record.Epoch(d.epoch.Load())
	d.plane.ask(d.ctx, r, epoch, func() {
		changed, err := d.records.putRequest(epoch, r)
		d.spread(r, changed, err)
	})
}

// confirm implements outgoing.
func (d *daemon) confirm(fresh, unanswered []*record.Confirmation) {
	d.plane.confirm(unanswered)
	for _, f := range fresh {
		d.publish(f.Epoch, f)
		d.metrics.issued[f.State].Add(1)
		d.log.Info("confirmed", "node", f.Node, "state", f.State, "generation", f.Generation, "revision", f.Revision)
	}
}

// barrier implements outgoing.
func (d *daemon) barrier(took time.Duration) { d.metrics.barriers.Observe(took.Seconds()) }

// publish spreads a record of this DPU by gossip.
func (d *daemon) publish(epoch record.Epoch, r record.Record) {
	changed, err := d.records.Put(epoch, r)
	d.spread(r, changed, err)
}

func (d *daemon) spread(r record.Record, changed bool, err error) {
	if err != nil {
		d.log.Error("record could not be published", "err", err)
	}
	if changed {
		d.announce(r.Key())
	}
}

func (d *daemon) confirmationsAnswered(list []*record.Confirmation) {
	d.loop.post(func() { d.loop.core.Answered(list) })
}
