// Package cli is ctl, the operator's tool: it turns a command line into calls of the controller's API or
// into reads of a DPU's pinned maps, and the answers into tables, JSON or YAML and an exit code.
//
// Nouns read, verbs write, and every write says what it changed. The package decides nothing about
// assignments: what is refused is refused by the controller, and shown in its words.
package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"dpud/pkg/controller"
	"dpud/pkg/maps"
	"dpud/pkg/table"
)

// Env is everything that a run of ctl has from outside.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Now            func() time.Time
	// StdinTTY says whether there is somebody to ask.
	StdinTTY bool
	// Columns of the terminal that Stderr is; 0: it is none.
	Columns int
	// Version of this ctl.
	Version string
	// PinRoot is the folder in which each dpud of this machine has its pin folder.
	PinRoot string
	// RunFolder is where each dpud of this machine has its API's socket.
	RunFolder string
	// OpenMaps opens the maps pinned in a folder.
	OpenMaps func(pin string) (Maps, error)
	// SetMode changes the mode of the data plane pinned in a folder.
	SetMode func(pin string, mode maps.Mode) error
	// Controller runs a controller until ctx ends.
	Controller func(ctx context.Context, cfg controller.Config) error
}

// Maps reads a DPU's pinned maps, whether or not dpud runs ([maps.Tables]).
type Maps interface {
	Read() (table.Tables, error)
	Counters() ([]maps.Counter, error)
	Mode() (maps.Mode, error)
	Close() error
}

// Run runs one command line (without the program's name) and returns the exit code. Errors are printed, one
// clear sentence each. It returns when the command is done or, soon after, when ctx ends.
func Run(ctx context.Context, env Env, args []string) int {
	err := run(ctx, env, args)
	if err == nil {
		return exitDone
	}
	text := err.Error()
	if !strings.HasPrefix(text, "ctl ") && !strings.HasPrefix(text, "ctl: ") {
		text = "ctl: " + text
	}
	fmt.Fprintln(env.Stderr, text)
	return exitCode(err)
}

func run(ctx context.Context, env Env, args []string) error {
	app := &app{env: env}
	root := app.root()
	root.Setup()
	if len(args) > 0 && args[0] == completeCommand {
		app.complete(ctx, root, args[1:])
		return nil
	}
	if len(args) > 0 && args[0] == "help" {
		args = append(args[1:], "--help")
	}
	sorted, err := arrange(root, args)
	if err != nil {
		return err
	}
	return root.RunContext(ctx, append([]string{root.Name}, sorted...))
}

// app is one run.
type app struct {
	env Env
}

func (a *app) root() *cli.App {
	return &cli.App{
		Name:            "ctl",
		HelpName:        "ctl",
		Usage:           "assign the nodes of a site to tenants, and see what its DPUs enforce",
		UsageText:       "ctl [flags] COMMAND [ARGUMENTS]   (flags may also stand behind the arguments)",
		Description:     exitText,
		Reader:          a.env.Stdin,
		Writer:          a.env.Stdout,
		ErrWriter:       a.env.Stderr,
		HideHelpCommand: true,
		HideVersion:     true,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "controller", Usage: "`URL` of the controller: http://host:port or unix:///path; else $DPUD_CONTROLLER, else " + defaultController},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "table", Usage: "`FORMAT` of what is printed: table, json or yaml"},
			&cli.DurationFlag{Name: "timeout", Usage: "how `LONG` to wait for an answer; 0 is for ever", DefaultText: "10s, or 60s where DPUs are waited for"},
		},
		Before: func(c *cli.Context) error {
			if c.Duration("timeout") < 0 {
				return usagef("--timeout %s: want a time like 90s; 0 is for ever", c.Duration("timeout"))
			}
			_, err := a.format(c)
			return err
		},
		OnUsageError:   func(_ *cli.Context, err error, _ bool) error { return usagef("%v", err) },
		ExitErrHandler: func(*cli.Context, error) {},
		Commands: []*cli.Command{
			a.applyCommand(), a.getCommand(), a.statusCommand(), a.assignCommand(), a.reclaimCommand(),
			a.mapCommand(), a.countersCommand(), a.modeCommand(),
			a.controllerCommand(), a.completionCommand(), a.versionCommand(),
		},
	}
}

// leaf makes a command that takes exactly the arguments named in argsUsage.
func leaf(c *cli.Command, args ...string) *cli.Command {
	action := c.Action
	c.ArgsUsage = joinWords(args)
	c.HideHelpCommand = true
	c.CustomHelpTemplate = cli.CommandHelpTemplate + everywhereText
	c.OnUsageError = func(_ *cli.Context, err error, _ bool) error { return usagef("%v", err) }
	c.Action = func(cc *cli.Context) error {
		if err := checkArgs(c, cc.Args().Slice(), args); err != nil {
			return err
		}
		return action(cc)
	}
	return c
}

// group makes a command that only holds others.
func group(c *cli.Command) *cli.Command {
	c.HideHelpCommand = true
	c.Action = func(*cli.Context) error {
		return usagef("%s: which? one of %s", c.HelpName, listCommands(c.Subcommands))
	}
	return c
}

const everywhereText = `
EVERYWHERE:
   --controller URL, --output FORMAT, --timeout LONG: see ctl --help
`

const exitText = `Exit codes: 0 done, 1 failed, 2 wrong usage, 3 refused by the guard or a precondition,
4 timed out or interrupted (the request stands), 5 controller unreachable.`
