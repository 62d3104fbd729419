package store

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

const (
	maxTxnOps       = 262_144
	maxRequestBytes = 64 << 20
	quotaBytes      = 8 << 30
	// compactAfter is how long etcd keeps old revisions; a watch that lags further lists anew.
	compactAfter = "10m"
	// maxSocketPath is the longest path of a unix socket, in bytes (unix(7): sun_path, with its final zero).
	maxSocketPath = 107
	memberName    = "dpud"
)

func openEmbedded(ctx context.Context, cfg Config) (*Store, error) {
	lock, err := lockDir(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	// etcd is chatty at error-free starts; warnings count from when it serves.
	level := zap.NewAtomicLevelAt(zap.ErrorLevel)
	etcd, err := startEtcd(etcdConfig(cfg.DataDir, zap.New(newCore(cfg.Logger, level))))
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("open store: start etcd in %s: %w", cfg.DataDir, err)
	}
	select {
	case <-etcd.Server.ReadyNotify():
	case <-etcd.Server.StopNotify():
		err = errors.New("etcd stopped while it started")
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		etcd.Close()
		_ = lock.Close()
		return nil, fmt.Errorf("open store: start etcd in %s: %w", cfg.DataDir, err)
	}
	level.SetLevel(zap.WarnLevel)
	return &Store{client: v3client.New(etcd.Server), etcd: etcd, level: level, lock: lock}, nil
}

// startEtcd returns the panic that etcd answers damaged files with as an error.
func startEtcd(cfg *embed.Config) (etcd *embed.Etcd, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("its files can not be read and may be damaged: put a backup in their place (etcd: %v)", p)
		}
	}()
	return embed.StartEtcd(cfg)
}

// lockDir makes the directory and takes the lock on it, held until the file is closed or the process ends.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory %s is not usable: %w", dir, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory %s is not writable: %w", dir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another controller is running on data directory %s: %w", dir, ErrLocked)
		}
		return nil, fmt.Errorf("lock data directory %s: %w", dir, err)
	}
	return f, nil
}

func etcdConfig(dir string, log *zap.Logger) *embed.Config {
	c := embed.NewConfig()
	c.Name = memberName
	c.Dir = filepath.Join(dir, "etcd")
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(log)
	// A single member has no peers. What it advertises to them is only a name that etcd wants.
	peer := url.URL{Scheme: "unix", Host: "peers:0"}
	c.ListenPeerUrls, c.AdvertisePeerUrls = nil, []url.URL{peer}
	c.InitialCluster = c.InitialClusterFromName(memberName)
	c.ListenClientUrls, c.AdvertiseClientUrls = nil, nil
	if abs, err := filepath.Abs(filepath.Join(dir, "etcd.sock")); err == nil && len(abs) <= maxSocketPath {
		socket := []url.URL{{Scheme: "unix", Path: abs}}
		c.ListenClientUrls, c.AdvertiseClientUrls = socket, socket
	}
	c.EnableGRPCGateway = false
	c.WarningApplyDuration = time.Second
	// Alone, a member elects itself: short ticks make a quick start.
	c.TickMs, c.ElectionMs = 20, 200
	c.MaxTxnOps, c.MaxRequestBytes, c.QuotaBackendBytes = maxTxnOps, maxRequestBytes, quotaBytes
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModePeriodic, compactAfter
	return c
}
