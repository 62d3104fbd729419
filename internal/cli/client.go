package cli

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"dpud/pkg/api/dpudv1/dpudv1connect"
)

// defaultController is where a controller on this machine listens unless told otherwise.
const defaultController = "unix:///run/dpud/controller.sock"

// How long to wait for an answer, unless --timeout says otherwise.
const (
	answerTimeout = 10 * time.Second
	waitTimeout   = 60 * time.Second // where DPUs are waited for
	namesTimeout  = 500 * time.Millisecond
)

// client is a controller's API with the URL by which the user knows it.
type client struct {
	dpudv1connect.ControllerServiceClient
	url string
}

// dial makes a client of the controller that the flags and the environment name; it connects to nothing yet.
func (a *app) dial(c *cli.Context) (*client, error) {
	return a.dialURL(c.String("controller"))
}

func (a *app) dialURL(given string) (*client, error) {
	if given == "" {
		given = a.env.Getenv("DPUD_CONTROLLER")
	}
	if given == "" {
		given = defaultController
	}
	transport := &http.Transport{DisableCompression: true}
	base := strings.TrimSuffix(given, "/")
	u, err := url.Parse(given)
	switch {
	case err == nil && u.Scheme == "unix" && u.Host == "" && filepath.IsAbs(u.Path):
		base = "http://controller"
		transport.DialContext = dialUnix(u.Path)
	case err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "":
	default:
		return nil, usagef("controller %q: want http://host:port or unix:///path", given)
	}
	return &client{dpudv1connect.NewControllerServiceClient(&http.Client{Transport: transport}, base), given}, nil
}

// limit is --timeout, or d when that is not given; 0 is for ever.
func limit(c *cli.Context, d time.Duration) time.Duration {
	if c.IsSet("timeout") {
		return c.Duration("timeout")
	}
	return d
}

// within limits ctx to --timeout, or to d when that is not given.
func within(c *cli.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d = limit(c, d); d == 0 {
		return context.WithCancel(c.Context)
	}
	return context.WithTimeout(c.Context, d)
}

// dialUnix connects to a socket, whatever the URL says.
func dialUnix(path string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
}
