package dpud

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"dpud/internal/dpud/config"
	"dpud/pkg/api/dpudv1/dpudv1connect"
	"dpud/pkg/gossip"
)

const (
	// maxRequest bounds a request's message: a push of 10,000 grants takes about 2 MB.
	maxRequest = 64 << 20
	// aliveTimeout is how long the loop may take to answer before dpud counts as dead. One operation, a
	// barrier or a read of every map, takes milliseconds.
	aliveTimeout = 5 * time.Second
	// stopTimeout bounds the wait for requests under way at the end.
	stopTimeout = time.Second
)

// join joins the rack's gossip, if it is configured.
func (d *daemon) join() error {
	g := d.cfg.Gossip
	if g.Bind == "" {
		return nil
	}
	c := gossip.Config{Name: d.cfg.Name, Seeds: g.Seeds, Label: g.Label, Records: d.records, Logger: d.log}
	var err error
	if c.Bind, err = netip.ParseAddrPort(g.Bind); err != nil {
		return fmt.Errorf("join gossip: %w", err)
	}
	if g.Advertise != "" {
		if c.Advertise, err = netip.ParseAddrPort(g.Advertise); err != nil {
			return fmt.Errorf("join gossip: %w", err)
		}
	}
	if g.KeyFile != "" {
		if c.Key, err = os.ReadFile(g.KeyFile); err != nil {
			return fmt.Errorf("read gossip key: %w", err)
		}
	}
	member, err := gossip.Join(c)
	if err != nil {
		return err
	}
	d.gossip.Store(member)
	return nil
}

// listen opens the API's socket. A unix socket that nobody answers on is left from an earlier run.
func (d *daemon) listen() (net.Listener, error) {
	network, address, err := config.ListenOn(d.cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if network == "unix" {
		if err := os.MkdirAll(filepath.Dir(address), 0o755); err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
		if c, err := net.Dial(network, address); err == nil {
			_ = c.Close()
			return nil, fmt.Errorf("listen on %s: another process answers there; stop it, or set listen to another address", d.cfg.Listen)
		}
		if err := os.Remove(address); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("listen: %w", err)
		}
	}
	l, err := net.Listen(network, address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if network == "unix" {
		if err := os.Chmod(address, 0o600); err != nil {
			return nil, errors.Join(fmt.Errorf("listen: %w", err), l.Close())
		}
	} else if a, ok := l.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
		d.log.Warn("records are not signed yet: whoever reaches this address can change what is programmed", "listen", d.cfg.Listen)
	}
	return l, nil
}

// serve serves the API, metrics and health until ctx ends.
func (d *daemon) serve(ctx context.Context, l net.Listener) error {
	var more []prometheus.Collector
	if g := d.gossip.Load(); g != nil {
		more = append(more, g)
	}
	srv := service{d}
	mux := http.NewServeMux()
	mux.Handle(dpudv1connect.NewDPUServiceHandler(srv, connect.WithReadMaxBytes(maxRequest)))
	mux.Handle("/metrics", promhttp.HandlerFor(d.metrics.registry(d.version, more...), promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", health(func(ctx context.Context) error { return d.loop.call(ctx, func() {}) }))
	mux.HandleFunc("/readyz", health(srv.ready))
	s := &http.Server{Handler: mux, Protocols: new(http.Protocols), ReadHeaderTimeout: aliveTimeout, IdleTimeout: 5 * time.Minute}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true) // for grpc
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		stop, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if err := s.Shutdown(stop); err != nil {
			_ = s.Close() // requests under way are cut off; their callers try again
		}
	}()
	err := s.Serve(l)
	if errors.Is(err, http.ErrServerClosed) {
		<-stopped
		return nil
	}
	return fmt.Errorf("serve: %w", err)
}

// health answers 200 with "ok", or 503 with what is wrong.
func health(check func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), aliveTimeout)
		defer cancel()
		if err := check(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	}
}
