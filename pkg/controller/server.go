package controller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sys/unix"

	"dpud/pkg/api/dpudv1/dpudv1connect"
	"dpud/pkg/control/management"
	"dpud/pkg/site"
	"dpud/pkg/store"
)

// servers are the listeners of the API.
type servers struct {
	names     []string
	listeners []net.Listener
	server    *http.Server
	stop      context.CancelFunc // ends the streams
	wg        sync.WaitGroup
}

// listen opens every address, or none.
func listen(addresses []string) (*servers, error) {
	if len(addresses) == 0 {
		return nil, errors.New("no address to listen on")
	}
	s := new(servers)
	for _, a := range addresses {
		l, err := listenOn(a)
		if err != nil {
			s.close()
			return nil, err
		}
		s.listeners = append(s.listeners, l)
		if l.Addr().Network() != "unix" {
			a = l.Addr().String()
		}
		s.names = append(s.names, a)
	}
	return s, nil
}

func listenOn(address string) (net.Listener, error) {
	network, where := "tcp", address
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		network, where = "unix", path
		if err := removeStale(path); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen(network, where)
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("listen on %s: another process listens there already", address)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	if network == "unix" {
		if err := os.Chmod(where, 0o660); err != nil {
			_ = l.Close()
			return nil, fmt.Errorf("listen on %s: %w", address, err)
		}
	}
	return l, nil
}

// removeStale removes a socket that a killed process left behind.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return nil // not there; whatever else is wrong, listening will say
	}
	if info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("listen on unix://%s: the path is taken by something that is not a socket", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("listen on unix://%s: another process listens there already", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("listen on unix://%s: %w", path, err)
	}
	return nil
}

func (s *servers) addresses() []string { return s.names }

// serve answers until close; a listener that fails before is reported.
func (s *servers) serve(h http.Handler, fail func(error)) {
	base, stop := context.WithCancel(context.Background())
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s.stop = stop
	s.server = &http.Server{
		Handler: h, Protocols: protocols, ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return base },
	}
	for _, l := range s.listeners {
		s.wg.Go(func() {
			if err := s.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				fail(fmt.Errorf("serve API: %w", err))
			}
		})
	}
}

// close ends streams at once and gives other requests 2 s.
func (s *servers) close() {
	if s.server == nil {
		for _, l := range s.listeners {
			_ = l.Close()
		}
		return
	}
	s.stop()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if s.server.Shutdown(ctx) != nil {
		_ = s.server.Close()
	}
	s.wg.Wait()
}

// handler serves the API, the metrics and the two health checks.
func (c *Controller) handler() http.Handler {
	mux := http.NewServeMux()
	small := connect.WithCompressMinBytes(16 << 10) // compressing a small answer costs more than it saves
	mux.Handle(dpudv1connect.NewControllerServiceHandler(controllerAPI{c}, small, connect.WithReadMaxBytes(site.MaxBytes+1<<20)))
	mux.Handle(dpudv1connect.NewPlaneServiceHandler(planeAPI{c}, small, connect.WithReadMaxBytes(16<<20)))
	mux.Handle("GET /metrics", promhttp.HandlerFor(c.metrics.registry, promhttp.HandlerOpts{ErrorLog: errorLog{c}}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !c.ready.Load() {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	return mux
}

type errorLog struct{ c *Controller }

func (l errorLog) Println(v ...any) { l.c.log.Warn("serve metrics", "err", fmt.Sprint(v...)) }

// apiError gives an error its code in the API.
func apiError(err error) error {
	code := connect.CodeInternal
	switch {
	case errors.Is(err, management.ErrNotFound):
		code = connect.CodeNotFound
	case errors.Is(err, management.ErrPrecondition):
		code = connect.CodeFailedPrecondition
	case errors.Is(err, management.ErrInvalid):
		code = connect.CodeInvalidArgument
	case errors.Is(err, errConflict):
		code = connect.CodeAborted
	case errors.Is(err, store.ErrTooLarge):
		code = connect.CodeResourceExhausted
	case errors.Is(err, store.ErrUnavailable):
		code = connect.CodeUnavailable
	case errors.Is(err, context.Canceled):
		code = connect.CodeCanceled
	case errors.Is(err, context.DeadlineExceeded):
		code = connect.CodeDeadlineExceeded
	}
	return connect.NewError(code, err)
}
