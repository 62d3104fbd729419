// Dpud enforces tenant isolation on one DPU. See docs/dpud.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/urfave/cli/v2"

	"dpud/internal/dpud"
	"dpud/internal/dpud/config"
)

// version is set by the linker.
var version string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newApp(os.Stdout, os.Stderr).RunContext(ctx, os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "dpud:", err)
		if errors.As(err, new(usageError)) {
			os.Exit(2)
		}
		os.Exit(1)
	}
}

// usageError is a command line that asks for nothing that dpud does.
type usageError struct{ error }

func newApp(stdout, stderr io.Writer) *cli.App {
	return &cli.App{
		Name:            "dpud",
		Usage:           "enforce tenant isolation on this DPU",
		Writer:          stdout,
		ErrWriter:       stderr,
		HideVersion:     true,
		HideHelpCommand: true,
		ExitErrHandler:  func(*cli.Context, error) {}, // main prints it
		OnUsageError:    func(_ *cli.Context, err error, _ bool) error { return usageError{err} },
		Action: func(c *cli.Context) error { // no command of that name, or none at all
			if word := c.Args().First(); word != "" {
				return usageError{fmt.Errorf("there is no command %q. %s `dpud --help` lists them all", word, cli.SuggestCommand(c.App.Commands, word))}
			}
			return cli.ShowAppHelp(c)
		},
		Commands: []*cli.Command{
			{
				Name:      "run",
				Usage:     "load the data plane, guard the ports and follow the controllers, until SIGTERM",
				ArgsUsage: " ",
				Flags:     append(configFlags(), logFlags()...),
				Action: func(c *cli.Context) error {
					cfg, err := configOf(c)
					if err != nil {
						return err
					}
					log, err := logger(c, stderr)
					if err != nil {
						return err
					}
					return dpud.Run(c.Context, cfg, buildVersion(), log)
				},
			},
			{
				Name:      "unload",
				Usage:     "remove the data plane of a dpud that does not run; its ports are taken down",
				ArgsUsage: " ",
				Flags:     append(configFlags(), logFlags()...),
				Action: func(c *cli.Context) error {
					pin, err := pinOf(c)
					if err != nil {
						return err
					}
					log, err := logger(c, stderr)
					if err != nil {
						return err
					}
					return dpud.Unload(pin, log)
				},
			},
			{
				Name:      "version",
				Usage:     "print the version",
				ArgsUsage: " ",
				Action: func(*cli.Context) error {
					_, err := fmt.Fprintln(stdout, buildVersion())
					return err
				},
			},
		},
	}
}

// configFlags override the settings of the file.
func configFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "config", Aliases: []string{"c"}, Usage: "read settings from `FILE`", TakesFile: true},
		&cli.StringFlag{Name: "name", Usage: "`NAME` of this DPU, as in the site file"},
		&cli.StringFlag{Name: "pin", Usage: "`FOLDER` of a bpffs for maps, programs and links"},
		&cli.StringFlag{Name: "listen", Usage: "serve the API on `ADDRESS`, host:port or unix:///path"},
		&cli.StringFlag{Name: "advertise", Usage: "`URL` under which controllers reach the API"},
		&cli.StringSliceFlag{Name: "controller", Usage: "`URL` of a controller; may be given several times"},
		&cli.StringFlag{Name: "gossip-bind", Usage: "`IP:PORT` for gossip"},
		&cli.StringFlag{Name: "gossip-advertise", Usage: "`IP:PORT` that others use for gossip"},
		&cli.StringSliceFlag{Name: "gossip-seed", Usage: "`HOST:PORT` of a member to join through; may be given several times"},
		&cli.StringFlag{Name: "gossip-label", Usage: "`NAME` of the gossip pool"},
		&cli.StringSliceFlag{Name: "node-port", Usage: "`NAME` or glob of ports that face nodes; may be given several times"},
		&cli.StringSliceFlag{Name: "uplink", Usage: "`NAME` or glob of uplinks; may be given several times"},
		&cli.StringFlag{Name: "bridge", Usage: "`NAME` of the bridge that joins the ports"},
		&cli.StringSliceFlag{Name: "local", Usage: "`ADDRESS` of the DPU itself; may be given several times"},
		&cli.StringFlag{Name: "hardware-id", Usage: "`ID` that binds the name to this hardware"},
		&cli.StringFlag{Name: "mode", Usage: "`MODE`: enforce, audit or off"},
		&cli.IntFlag{Name: "max-nodes", Usage: "`NUMBER` of nodes that the maps hold"},
		&cli.DurationFlag{Name: "audit", Usage: "`TIME` between two sweeps over every entry"},
	}
}

func logFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "log-level", Value: "info", Usage: "debug, info, warn or error"},
		&cli.StringFlag{Name: "log-format", Value: "text", Usage: "text or json"},
	}
}

// settings reads the file and the flags over it.
func settings(c *cli.Context) (*config.Config, error) {
	if c.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q; settings are given as flags, or in a file with --config", c.Args().First())
	}
	cfg := config.Default()
	if file := c.String("config"); file != "" {
		var err error
		if cfg, err = config.Load(file); err != nil {
			return nil, err
		}
	}
	texts := map[string]*string{
		"name": &cfg.Name, "pin": &cfg.Pin, "listen": &cfg.Listen, "advertise": &cfg.Advertise, "gossip-bind": &cfg.Gossip.Bind,
		"gossip-advertise": &cfg.Gossip.Advertise, "gossip-label": &cfg.Gossip.Label, "bridge": &cfg.Ports.Bridge,
		"hardware-id": &cfg.HardwareID, "mode": &cfg.Mode,
	}
	for flag, field := range texts {
		if c.IsSet(flag) {
			*field = c.String(flag)
		}
	}
	lists := map[string]*[]string{
		"controller": &cfg.Controllers, "gossip-seed": &cfg.Gossip.Seeds, "node-port": &cfg.Ports.Nodes, "uplink": &cfg.Ports.Uplinks, "local": &cfg.Local,
	}
	for flag, field := range lists {
		if c.IsSet(flag) {
			*field = c.StringSlice(flag)
		}
	}
	if c.IsSet("max-nodes") {
		cfg.MaxNodes = c.Int("max-nodes")
	}
	if c.IsSet("audit") {
		cfg.Audit = c.Duration("audit")
	}
	return cfg, nil
}

func configOf(c *cli.Context) (*config.Config, error) {
	cfg, err := settings(c)
	if err != nil {
		return nil, err
	}
	if err := cfg.Finish(); err != nil {
		return nil, fmt.Errorf("check configuration:\n%w", err)
	}
	return cfg, nil
}

// pinOf needs no other setting than the pin folder, or the name that it follows from.
func pinOf(c *cli.Context) (string, error) {
	cfg, err := settings(c)
	if err != nil {
		return "", err
	}
	if cfg.Pin == "" && cfg.Name == "" {
		return "", errors.New("what to unload is not given; fix: give --config, --name or --pin")
	}
	return cfg.PinFolder()
}

func logger(c *cli.Context, w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.String("log-level"))); err != nil {
		return nil, fmt.Errorf("--log-level: %q is no level; fix: use debug, info, warn or error", c.String("log-level"))
	}
	opts := &slog.HandlerOptions{Level: level}
	switch f := c.String("log-format"); f {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	default:
		return nil, fmt.Errorf("--log-format: %q is no format; fix: use text or json", f)
	}
}

// buildVersion is what the linker set, or what the Go toolchain recorded.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	switch {
	case version != "":
		return version
	case !ok:
		return "unknown"
	case info.Main.Version != "" && info.Main.Version != "(devel)":
		return info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return "devel"
}
