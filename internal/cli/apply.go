package cli

import (
	"errors"
	"fmt"
	"io"
	"os"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/site"
)

func (a *app) applyCommand() *cli.Command {
	return leaf(&cli.Command{
		Name:  "apply",
		Usage: "make the site what a site file says",

		UsageText: "ctl apply -f FILE [--dry-run] [--rename]",
		Description: "All or nothing: when anything is wrong with the file, every error is printed and nothing changes.\n" +
			"Applying a file twice changes nothing. Nodes that are assigned can't be changed or removed.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "the site `FILE`; - is standard input"},
			&cli.BoolFlag{Name: "dry-run", Usage: "print what would change, and change nothing"},
			&cli.BoolFlag{Name: "rename", Usage: "let the file give the site another name; otherwise it is refused as another site's"},
		},
		Action: a.apply,
	})
}

func (a *app) apply(c *cli.Context) error {
	file := c.String("file")
	if file == "" {
		return usagef("ctl apply: name the site file: ctl apply -f FILE")
	}
	data, err := a.readSite(file)
	if err != nil {
		return err
	}
	cl, err := a.dial(c)
	if err != nil {
		return err
	}
	ctx, cancel := within(c, answerTimeout)
	defer cancel()
	dry := c.Bool("dry-run")
	r, err := cl.Apply(ctx, connect.NewRequest(&dpudv1.ApplyRequest{SiteFile: data, DryRun: dry, Rename: c.Bool("rename")}))
	if err != nil {
		return cl.callError(err, "apply "+file, effect(!dry))
	}
	v := struct {
		DryRun  bool         `json:"dry_run"`
		Changes []changeView `json:"changes"`
	}{dry, views(r.Msg.GetChanges(), viewChange)}
	return a.print(c, v, func(w io.Writer) error {
		for _, x := range v.Changes {
			fmt.Fprintln(w, site.Change(x))
		}
		switch n := count(len(v.Changes), "change"); {
		case len(v.Changes) == 0:
			fmt.Fprintln(w, "nothing to change")
		case dry:
			fmt.Fprintf(w, "%s to make (dry run: nothing was changed)\n", n)
		default:
			fmt.Fprintf(w, "%s made\n", n)
		}
		return nil
	})
}

// readSite reads a site file and checks it here, so that its errors need no controller.
func (a *app) readSite(file string) ([]byte, error) {
	var (
		data []byte
		err  error
	)
	if file == "-" {
		data, err = io.ReadAll(io.LimitReader(a.env.Stdin, site.MaxBytes+1))
	} else {
		data, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, fmt.Errorf("apply: read site file: %w", err)
	}
	_, err = site.Parse(data)
	var errs site.Errors
	if errors.As(err, &errs) {
		return nil, fmt.Errorf("apply %s: %w\nnothing was changed", file, errs)
	}
	return data, err
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
