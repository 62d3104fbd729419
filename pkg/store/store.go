// Package store keeps bytes under keys in etcd: transactions that commit only if what they read still holds,
// linearizable reads and watches. There is one path for an etcd embedded in this process and for a cluster.
//
// It decides nothing about what is stored, and it refuses to hide a failure: a request that etcd does not
// answer in time ends with [ErrUnavailable], and whether it was carried out is then unknown; conditions make
// repeating it harmless.
//
// Limits of the embedded etcd, so that a whole site fits into one transaction: 262,144 operations and as many
// conditions, 64 MiB for a request, 8 GiB in all. A cluster needs --max-txn-ops=262144 and
// --max-request-bytes=67108864 for a site of 100,000 nodes; etcd's defaults (128 operations, 1.5 MiB) do for
// about 50 changes at once.
package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Errors that callers match.
var (
	// ErrUnavailable: etcd did not answer, or not in time.
	ErrUnavailable = errors.New("store unavailable")
	// ErrLocked: another process uses the data directory.
	ErrLocked = errors.New("data directory in use")
	// ErrTooLarge: the request is beyond etcd's limits.
	ErrTooLarge = errors.New("request too large for etcd")
)

const (
	// requestTimeout bounds every request; etcd itself gives up after 5 s plus two election timeouts.
	requestTimeout = 10 * time.Second
	// timePerOp is added for each condition and change of a transaction. Measured on 2 busy cores: 200,000 took 8 s.
	timePerOp = 200 * time.Microsecond
)

// Config says where the store is: either DataDir or Endpoints.
type Config struct {
	// DataDir holds an etcd embedded in this process; made when missing. One process uses it at a time. It holds
	// a unix socket, etcd.sock, for etcdctl; no TCP port is opened.
	DataDir string
	// Endpoints of a cluster: "host:port", or http:// or unix:// URLs.
	Endpoints []string
	// Username and Password for a cluster with authentication.
	Username, Password string
	// Logger for etcd's warnings; default slog.Default().
	Logger *slog.Logger
}

// Store is an open store. Its methods are safe for concurrent use.
type Store struct {
	client *clientv3.Client
	etcd   *embed.Etcd     // embedded, else nil
	level  zap.AtomicLevel // of its log, when embedded
	lock   *os.File
}

// Open opens the store and returns once it answers. An embedded one takes about half a second.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	switch {
	case cfg.DataDir != "" && len(cfg.Endpoints) > 0:
		return nil, errors.New("open store: give a data directory or etcd endpoints, not both")
	case cfg.DataDir != "":
		return openEmbedded(ctx, cfg)
	case len(cfg.Endpoints) > 0:
		return openCluster(ctx, cfg)
	}
	return nil, errors.New("open store: give a data directory or etcd endpoints")
}

func openCluster(ctx context.Context, cfg Config) (*Store, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: cfg.Endpoints, Username: cfg.Username, Password: cfg.Password,
		DialTimeout: requestTimeout, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 5 * time.Second,
		MaxCallSendMsgSize: math.MaxInt32, Logger: zap.New(newCore(cfg.Logger, zap.NewAtomicLevelAt(zap.ErrorLevel))),
	})
	if err != nil {
		return nil, fmt.Errorf("open store: etcd at %s: %w", strings.Join(cfg.Endpoints, ", "), err)
	}
	s := &Store{client: client}
	probe, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if _, err := client.Get(probe, "dpud"); err != nil {
		_ = client.Close()
		return nil, fmt.Errorf("open store: etcd at %s does not answer; is it running, and are the endpoints right? %w",
			strings.Join(cfg.Endpoints, ", "), requestError(err))
	}
	return s, nil
}

// probeTimeout bounds the first request to a cluster.
const probeTimeout = 5 * time.Second

// Close closes the store. Watches end.
func (s *Store) Close() error {
	err := s.client.Close()
	if errors.Is(err, context.Canceled) {
		err = nil // the in-process client reports that it was closed
	}
	if s.etcd != nil {
		s.level.SetLevel(zap.FatalLevel) // closing its own listeners is an error to etcd
		s.etcd.Close()
	}
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	if err != nil {
		return fmt.Errorf("close store: %w", err)
	}
	return nil
}

// Done is closed when the embedded etcd has stopped by itself; nil for a cluster.
func (s *Store) Done() <-chan struct{} {
	if s.etcd == nil {
		return nil
	}
	return s.etcd.Server.StopNotify()
}

// requestError classifies what etcd's client returned.
func requestError(err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, rpctypes.ErrTooManyOps), errors.Is(err, rpctypes.ErrRequestTooLarge), errors.Is(err, rpctypes.ErrGRPCTooManyOps),
		errors.Is(err, rpctypes.ErrGRPCRequestTooLarge):
		return fmt.Errorf("%w; start etcd with --max-txn-ops=%d --max-request-bytes=%d: %w", ErrTooLarge, maxTxnOps, maxRequestBytes, err)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}
