package cli

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"dpud/pkg/controller"
)

const (
	defaultDataDir = "/var/lib/dpud/controller"
	defaultTCP     = "127.0.0.1:7700"
)

func (a *app) controllerCommand() *cli.Command {
	return leaf(&cli.Command{
		Name:  "controller",
		Usage: "run the controller",
		Description: "Runs the management plane and every tenant's control plane until it is told to stop, with a store of\n" +
			"its own or on an etcd cluster. It says on stderr when it is ready. Whoever reaches its API commands\n" +
			"it: listen on a unix socket, on loopback, or on a network of DPUs and operators alone.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "data-dir", Value: defaultDataDir, Usage: "`FOLDER` of the embedded store; one controller at a time"},
			&cli.StringSliceFlag{Name: "etcd-endpoints", Usage: "`URL` of an etcd cluster's member (repeat, or separate by commas), instead of the embedded store"},
			&cli.StringFlag{Name: "etcd-username", Usage: "`USER` at that cluster; the password is $DPUD_ETCD_PASSWORD"},
			&cli.StringSliceFlag{Name: "listen", Usage: "`ADDRESS` of the API and of /metrics: host:port or unix:///path (may be repeated)", DefaultText: defaultController + " and " + defaultTCP},
			&cli.StringFlag{Name: "gossip-bind", Usage: "`IP:PORT` for gossip with the rack's DPUs; none: no gossip"},
			&cli.StringFlag{Name: "gossip-advertise", Usage: "`IP:PORT` that the others use", DefaultText: "as bound"},
			&cli.StringSliceFlag{Name: "gossip-seeds", Usage: "`HOST:PORT` of members to join through (repeat, or separate by commas)"},
			&cli.StringFlag{Name: "gossip-label", Usage: "`NAME` of the pool: members with another one are not heard"},
			&cli.StringFlag{Name: "gossip-key-file", Usage: "`FILE` of 16, 24 or 32 bytes that encrypt the pool's traffic"},
			&cli.StringFlag{Name: "log-format", Value: "text", Usage: "`FORMAT` of the log on stderr: text or json"},
			&cli.StringFlag{Name: "log-level", Value: "info", Usage: "least `LEVEL` that is logged: debug, info, warn or error"},
		},
		Action: func(c *cli.Context) error {
			cfg, err := a.controllerConfig(c)
			if err != nil {
				return err
			}
			if err := makeSocketFolders(cfg.Listen); err != nil {
				return err
			}
			return a.env.Controller(c.Context, cfg)
		},
	})
}

// controllerConfig is what the flags say.
func (a *app) controllerConfig(c *cli.Context) (controller.Config, error) {
	cfg := controller.Config{
		DataDir: c.String("data-dir"), EtcdEndpoints: c.StringSlice("etcd-endpoints"),
		EtcdUsername: c.String("etcd-username"), EtcdPassword: a.env.Getenv("DPUD_ETCD_PASSWORD"),
		Listen: c.StringSlice("listen"), Version: a.env.Version,
		Gossip: controller.Gossip{Seeds: c.StringSlice("gossip-seeds"), Label: c.String("gossip-label")},
	}
	if len(cfg.Listen) == 0 {
		cfg.Listen = []string{defaultController, defaultTCP}
	}
	if len(cfg.EtcdEndpoints) > 0 {
		if c.IsSet("data-dir") {
			return cfg, usagef("ctl controller: --data-dir is the embedded store's, --etcd-endpoints name another one: give one of them")
		}
		cfg.DataDir = ""
	} else if cfg.EtcdUsername != "" {
		return cfg, usagef("ctl controller: --etcd-username is for a cluster: give --etcd-endpoints too")
	}
	var err error
	if cfg.Gossip.Bind, err = addrPort(c, "gossip-bind"); err != nil {
		return cfg, err
	}
	if cfg.Gossip.Advertise, err = addrPort(c, "gossip-advertise"); err != nil {
		return cfg, err
	}
	if !cfg.Gossip.Bind.IsValid() {
		for _, f := range []string{"gossip-advertise", "gossip-seeds", "gossip-label", "gossip-key-file"} {
			if c.IsSet(f) {
				return cfg, usagef("ctl controller: --%s needs --gossip-bind", f)
			}
		}
	}
	if file := c.String("gossip-key-file"); file != "" {
		if cfg.Gossip.Key, err = os.ReadFile(file); err != nil {
			return cfg, fmt.Errorf("read gossip key: %w", err)
		}
	}
	cfg.Logger, err = a.logger(c)
	return cfg, err
}

func addrPort(c *cli.Context, flag string) (netip.AddrPort, error) {
	s := c.String(flag)
	if s == "" {
		return netip.AddrPort{}, nil
	}
	p, err := netip.ParseAddrPort(s)
	if err != nil {
		return p, usagef("ctl controller: --%s %q: want ip:port, like 10.0.0.1:7946", flag, s)
	}
	return p, nil
}

func (a *app) logger(c *cli.Context) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.String("log-level"))); err != nil {
		return nil, usagef("ctl controller: --log-level %q: want debug, info, warn or error", c.String("log-level"))
	}
	opts := &slog.HandlerOptions{Level: level}
	switch f := c.String("log-format"); f {
	case "text":
		return slog.New(slog.NewTextHandler(a.env.Stderr, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(a.env.Stderr, opts)), nil
	default:
		return nil, usagef("ctl controller: --log-format %q: want text or json", f)
	}
}

// makeSocketFolders makes the folders of unix sockets: /run is empty after a boot.
func makeSocketFolders(listen []string) error {
	for _, l := range listen {
		if path, ok := strings.CutPrefix(l, "unix://"); ok {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return fmt.Errorf("listen on %s: %w", l, err)
			}
		}
	}
	return nil
}
