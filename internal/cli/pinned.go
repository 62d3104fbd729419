package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"dpud/pkg/maps"
)

// DefaultPinRoot is the folder in which dpud makes its pin folder unless told otherwise.
const DefaultPinRoot = "/sys/fs/bpf/dpud"

var (
	dpuFlag = &cli.StringFlag{Name: "dpu", Usage: "ask the `DPU`'s dpud through the controller, instead of reading this machine's pinned maps"}
	pinFlag = &cli.StringFlag{Name: "pin", Usage: "pin `FOLDER` of the dpud on this machine (default: the only one under " + DefaultPinRoot + ")"}
)

// pinFolder is the folder that --pin names, or the only one there is.
func (a *app) pinFolder(c *cli.Context) (string, error) {
	if pin := c.String("pin"); pin != "" {
		return pin, nil
	}
	pins, err := a.pinFolders()
	if errors.Is(err, fs.ErrPermission) {
		return "", fmt.Errorf("read %s: permission denied; become root, or ask through the controller with --dpu", a.env.PinRoot)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("find pin folder: %w", err)
	}
	switch len(pins) {
	case 0:
		return "", fmt.Errorf("no dpud has pinned its maps under %s; run this on a DPU, name the folder with --pin, or a DPU with --dpu", a.env.PinRoot)
	case 1:
		return pins[0], nil
	}
	return "", usagef("several dpuds have pinned maps here; name one: --pin %s", strings.Join(pins, ", --pin "))
}

func (a *app) pinFolders() ([]string, error) {
	entries, err := os.ReadDir(a.env.PinRoot)
	var pins []string
	for _, e := range entries {
		if e.IsDir() {
			pins = append(pins, filepath.Join(a.env.PinRoot, e.Name()))
		}
	}
	return pins, err
}

// open opens the pinned maps that the flags name.
func (a *app) open(c *cli.Context) (Maps, string, error) {
	pin, err := a.pinFolder(c)
	if err != nil {
		return nil, "", err
	}
	m, err := a.env.OpenMaps(pin)
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w; become root", err)
	}
	return m, pin, err
}

// remote says whether the command asks a DPU through the controller.
func remote(c *cli.Context) (bool, error) {
	if c.String("dpu") != "" && c.String("pin") != "" {
		return false, usagef("%s: --dpu asks the controller, --pin reads this machine's maps: give one of them", c.Command.HelpName)
	}
	return c.String("dpu") != "", nil
}

func (a *app) modeCommand() *cli.Command {
	var names []string
	for _, m := range modes {
		names = append(names, m.String())
	}
	return leaf(&cli.Command{
		Name:  "mode",
		Usage: "show or change what this DPU's data plane does with its verdicts",
		Description: "enforce drops what isn't allowed; audit counts what it would drop, and lets it pass; off judges\n" +
			"nothing. It works with dpud dead. A dpud that starts leaves the mode, unless its configuration names one.",
		Flags: []cli.Flag{
			pinFlag,
			&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask before isolation ends"},
		},
		Action: a.mode,
	}, "["+strings.Join(names, "|")+"]")
}

var modes = []maps.Mode{maps.Enforce, maps.Audit, maps.Off}

func (a *app) mode(c *cli.Context) error {
	var want maps.Mode
	if c.Args().Present() {
		var err error
		if want, err = maps.ParseMode(c.Args().First()); err != nil {
			return usagef("ctl mode %s: want enforce, audit or off", c.Args().First())
		}
	}
	m, pin, err := a.open(c)
	if err != nil {
		return err
	}
	defer m.Close()
	old, err := m.Mode()
	if err != nil {
		return err
	}
	v := struct {
		Pin  string `json:"pin"`
		Mode string `json:"mode"`
		Was  string `json:"was,omitempty"`
	}{Pin: pin, Mode: old.String()}
	text := fmt.Sprintf("%s: mode %s", pin, old)
	switch want {
	case 0:
	case old:
		text += "; nothing to change"
	default:
		if err := a.confirmMode(c, pin, want); err != nil {
			return err
		}
		if err := a.env.SetMode(pin, want); err != nil {
			return err
		}
		v.Mode, v.Was = want.String(), old.String()
		text = fmt.Sprintf("%s: mode %s, was %s", pin, want, old)
	}
	return a.print(c, v, lines(text))
}

// confirmMode asks before isolation ends; switching it on needs no word.
func (a *app) confirmMode(c *cli.Context, pin string, want maps.Mode) error {
	if want == maps.Enforce {
		return nil
	}
	warning := "WARNING: in audit mode %s drops nothing: packets between tenants are counted, and pass\n"
	if want == maps.Off {
		warning = "WARNING: with mode off %s judges NOTHING: every node reaches every node of every tenant\n"
	}
	fmt.Fprintf(a.env.Stderr, warning, pin)
	if c.Bool("yes") {
		return nil
	}
	if !a.env.StdinTTY {
		return usagef("ctl mode %s: this ends isolation, and there is nobody to ask: pass --yes", want)
	}
	fmt.Fprintf(a.env.Stderr, "switch %s to %s? type yes: ", pin, want)
	var answer string
	_, _ = fmt.Fscanln(a.env.Stdin, &answer)
	if !slices.Contains([]string{"y", "yes"}, strings.ToLower(answer)) {
		return coded(exitRefused, "ctl mode %s: not confirmed; nothing was changed", want)
	}
	return nil
}
