// Package controller is the controller process: the management plane and, by default, every tenant's control
// plane, on one store, with the API, the direct messages to DPUs and gossip around them.
//
// What is decided is decided in packages management and tenant; this package carries it out. All state is
// in the store, so a controller can be killed at any instant, and several can run on one etcd. It refuses
// to answer a command, a lease or a confirmation before what it rests on is committed.
//
// Records are not signed yet: whoever reaches the API can command and confirm. Listen on a unix socket, on
// loopback or on a network that only DPUs and operators reach.
package controller

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"dpud/pkg/control/management"
	"dpud/pkg/gossip"
	"dpud/pkg/record"
	"dpud/pkg/store"
	"dpud/pkg/wire"
)

// Config of a controller.
type Config struct {
	// DataDir of the embedded store, or EtcdEndpoints of a cluster.
	DataDir                    string
	EtcdEndpoints              []string
	EtcdUsername, EtcdPassword string
	// Listen addresses of the API and of /metrics, /healthz and /readyz: host:port or unix:///path. At least one.
	Listen []string
	// Gossip; off without Gossip.Bind.
	Gossip  Gossip
	Version string
	// Logger; default slog.Default().
	Logger *slog.Logger
	// Dial connects to DPUs; default net.Dialer with a 2 s timeout.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Gossip says how the controller takes part in its rack's gossip; see gossip.Config.
type Gossip struct {
	// Name in the pool; default "controller-" and random digits.
	Name            string
	Bind, Advertise netip.AddrPort
	Seeds           []string
	Label           string
	Key             []byte
}

// Controller is a running controller. Its methods are safe for concurrent use.
type Controller struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	site    record.SiteID
	epoch   record.Epoch

	store     *store.Store
	plane     *plane
	fanout    *fanout
	feed      *feed
	inbox     *inbox
	watchers  *watchers
	troubles  *troubles
	guardWake chan struct{}
	gossip    *gossip.Gossip
	servers   *servers

	mu      sync.Mutex
	leases  map[record.DPU]time.Time // when a DPU last asked for one
	answers map[record.DPU]answer    // of its last lease request
	tenants map[record.TenantID]bool // whose control plane runs

	ready     atomic.Bool
	ctx       context.Context // of everything that runs
	cancel    context.CancelFunc
	wg        sync.WaitGroup
	failed    chan error // why the controller can't go on
	closeOnce sync.Once
	closeErr  error
}

// Run runs a controller until ctx ends. It returns nil then, or why it could not start or go on.
func Run(ctx context.Context, cfg Config) error {
	c, err := Start(ctx, cfg)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return c.Close()
	case err := <-c.Failed():
		return errors.Join(err, c.Close())
	}
}

// Start starts a controller and returns once it is ready. ctx bounds the start only.
func Start(ctx context.Context, cfg Config) (*Controller, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{Timeout: 2 * time.Second}).DialContext
	}
	c := &Controller{
		cfg: cfg, log: cfg.Logger, metrics: newMetrics(), inbox: newInbox(), watchers: newWatchers(), troubles: newTroubles(),
		guardWake: make(chan struct{}, 1), leases: make(map[record.DPU]time.Time), answers: make(map[record.DPU]answer),
		tenants: make(map[record.TenantID]bool), failed: make(chan error, 1),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if err := c.start(ctx); err != nil {
		return nil, fmt.Errorf("start controller: %w", errors.Join(err, c.Close()))
	}
	c.ready.Store(true)
	c.log.Info("controller ready", "listen", strings.Join(c.Addresses(), ","), "site_id", string(c.site), "epoch", uint64(c.epoch))
	return c, nil
}

func (c *Controller) start(ctx context.Context) error {
	var err error
	// The addresses first: they fail fastest.
	if c.servers, err = listen(c.cfg.Listen); err != nil {
		return err
	}
	c.store, err = store.Open(ctx, store.Config{
		DataDir: c.cfg.DataDir, Endpoints: c.cfg.EtcdEndpoints,
		Username: c.cfg.EtcdUsername, Password: c.cfg.EtcdPassword, Logger: c.log,
	})
	if err != nil {
		return err
	}
	c.plane = newPlane(c.store.Prefix(managementPrefix), len(c.cfg.EtcdEndpoints) > 0, c.metrics, c.log)
	if err := c.plane.load(ctx); err != nil {
		return err
	}
	if err := c.initSite(ctx); err != nil {
		return err
	}
	c.newFanout()
	c.feed = newFeed(c.plane)
	c.plane.publish, c.plane.fail = c.heard, c.fail
	c.heard(c.plane.snapshot())
	if err := c.joinGossip(); err != nil {
		return err
	}
	c.metrics.registry.MustRegister(c)
	c.wg.Go(func() { c.plane.follow(c.ctx) })
	c.wg.Go(func() { c.guard(c.ctx) })
	c.wg.Go(func() { c.hearGossip(c.ctx) })
	c.wg.Go(c.watchStore)
	c.servers.serve(c.handler(), c.fail)
	return nil
}

func (c *Controller) newFanout() {
	c.fanout = &fanout{
		ctx: c.ctx, wg: &c.wg, plane: c.plane, seal: sealer{c.site, c.epoch}, dial: c.cfg.Dial, metrics: c.metrics, log: c.log,
		links: make(map[record.DPU]*link), entries: make(map[record.Key]*record.Entry),
	}
	if c.cfg.Gossip.Bind.IsValid() {
		c.fanout.replica = wire.NewReplica(c.site, c.inbox.put)
	}
}

// initSite makes a site out of an empty store, and reads its identity.
func (c *Controller) initSite(ctx context.Context) error {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	epoch := record.Epoch(time.Now().UnixMilli())
	err := c.plane.do(ctx, func(core *management.Core) (management.Txn, error) {
		if core.Meta() != nil {
			return management.Txn{}, nil
		}
		c.log.Info("the store is empty: new site", "site_id", hex.EncodeToString(id[:]), "epoch", uint64(epoch))
		return core.Init(record.SiteID(hex.EncodeToString(id[:])), epoch)
	})
	if err != nil {
		return err
	}
	c.plane.read(func(core *management.Core) { c.site, c.epoch = core.Meta().SiteID, core.Meta().Epoch })
	return nil
}

func (c *Controller) joinGossip() error {
	g := c.cfg.Gossip
	if !g.Bind.IsValid() {
		return nil
	}
	if g.Name == "" {
		g.Name = "controller-" + strings.ToLower(rand.Text()[:8])
	}
	joined, err := gossip.Join(gossip.Config{
		Name: g.Name, Bind: g.Bind, Advertise: g.Advertise, Seeds: g.Seeds, Label: g.Label, Key: g.Key,
		Records: c.fanout.replica, Logger: c.log,
	})
	if err != nil {
		return err
	}
	c.gossip = joined
	c.fanout.join(joined)
	c.metrics.registry.MustRegister(joined)
	c.fanout.replica.Versions(func(k record.Key, _ record.Version) bool {
		joined.Announce(k)
		return true
	})
	return nil
}

// heard hands what is new in the management plane to everybody in this process whom it concerns.
func (c *Controller) heard(news []management.Object) {
	c.fanout.heard(news)
	c.findTwins(news)
	c.startTenants(news)
	c.feed.heard(news)
	c.watchers.heard(news)
	if slices.ContainsFunc(news, func(o management.Object) bool {
		switch o.(type) {
		case *management.Grant, *management.Confirmation:
			return true
		}
		return false
	}) {
		signal(c.guardWake)
	}
}

// findTwins says when two live runs of dpud have one name and one hardware identity.
func (c *Controller) findTwins(news []management.Object) {
	for _, o := range news {
		if r, ok := o.(*management.Registration); ok && c.troubles.registered(r.DPU, r.Instance, time.Now()) {
			c.log.Error(twinsSentence(r.DPU), "dpu", r.DPU, "boot", uint64(r.Boot))
		}
	}
}

// startTenants starts the control planes of tenants that have none here. They run until the controller ends:
// one that has left the site has no grants to act on.
func (c *Controller) startTenants(news []management.Object) {
	for _, o := range news {
		t, ok := o.(*management.Tenant)
		if !ok {
			continue
		}
		c.mu.Lock()
		runs := c.tenants[t.ID]
		c.tenants[t.ID] = true
		c.mu.Unlock()
		if !runs && c.ctx.Err() == nil {
			p := newTenantPlane(t.ID, c.store, c.fanout.tenantEntry, c.log)
			c.wg.Go(func() { p.run(c.ctx, c.feed) })
		}
	}
}

// snapshot returns what has to be published of everything that is known.
func (p *plane) snapshot() []management.Object {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []management.Object
	for _, t := range p.core.Tenants() {
		all = append(all, t)
	}
	if s := p.core.Services(); s != nil {
		all = append(all, s)
	}
	for _, g := range p.grants {
		all = append(all, g)
	}
	for _, d := range p.core.DPUs() {
		if r := p.core.Registration(d.Name); r != nil {
			all = append(all, r)
		}
	}
	return all
}

// watchStore reports when an embedded store stops by itself.
func (c *Controller) watchStore() {
	select {
	case <-c.ctx.Done():
	case <-c.store.Done():
		c.fail(errors.New("the embedded etcd stopped; its log says why"))
	}
}

// fail reports why the controller can't go on; the first report counts.
func (c *Controller) fail(err error) {
	c.ready.Store(false)
	select {
	case c.failed <- err:
	default:
	}
}

// Failed delivers why the controller can't go on, if that happens. Close it then.
func (c *Controller) Failed() <-chan error { return c.failed }

// Addresses returns where the API listens, as given in Config.Listen but with the port that a 0 became.
func (c *Controller) Addresses() []string { return c.servers.addresses() }

// GossipAddr returns where the controller gossips; not valid without gossip.
func (c *Controller) GossipAddr() netip.AddrPort {
	if c.gossip == nil {
		return netip.AddrPort{}
	}
	return c.gossip.Addr()
}

// Close stops the controller: requests under way are answered or cut off within 2 s, then the store is
// closed. Nothing is lost by not calling it.
func (c *Controller) Close() error {
	c.closeOnce.Do(func() {
		c.ready.Store(false)
		c.cancel()
		if c.servers != nil {
			c.servers.close()
		}
		if c.gossip != nil {
			c.closeErr = c.gossip.Close()
		}
		c.wg.Wait()
		if c.store != nil {
			c.closeErr = errors.Join(c.closeErr, c.store.Close())
		}
	})
	return c.closeErr
}
