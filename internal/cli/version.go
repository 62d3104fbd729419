package cli

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	"dpud/pkg/api/dpudv1"
)

func (a *app) versionCommand() *cli.Command {
	return leaf(&cli.Command{
		Name:        "version",
		Usage:       "the versions of ctl and of the controller",
		Description: "The controller is asked for half a second; that it does not answer is no failure.",
		Action: func(c *cli.Context) error {
			cl, err := a.dial(c)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context, namesTimeout)
			defer cancel()
			v := struct {
				CTL        string `json:"ctl"`
				Go         string `json:"go"`
				Platform   string `json:"platform"`
				Controller string `json:"controller,omitempty"`
			}{CTL: a.env.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			if r, err := cl.Version(ctx, connect.NewRequest(&dpudv1.VersionRequest{})); err == nil {
				v.Controller = r.Msg.GetVersion()
			}
			return a.print(c, v, func(w io.Writer) error {
				fmt.Fprintf(w, "ctl         %s (%s, %s)\n", v.CTL, v.Go, v.Platform)
				if v.Controller == "" {
					v.Controller = "no answer"
				}
				_, err := fmt.Fprintf(w, "controller  %s (%s)\n", v.Controller, cl.url)
				return err
			})
		},
	})
}

// buildVersion is linked (what -ldflags set), or else what the Go toolchain recorded.
func buildVersion(linked string) string {
	if linked != "" {
		return linked
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return "devel"
}
