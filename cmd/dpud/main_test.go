package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"

	"dpud/internal/dpud/config"
)

// parse returns the configuration that a command line comes to.
func parse(t *testing.T, args ...string) (cfg *config.Config, err error) {
	t.Helper()
	var out bytes.Buffer
	app := newApp(&out, &out)
	app.Commands[0].Action = func(c *cli.Context) error {
		cfg, err = configOf(c)
		return err
	}
	return cfg, app.RunContext(t.Context(), append([]string{"dpud", "run"}, args...))
}

func file(t *testing.T, text string) string {
	t.Helper()
	f := filepath.Join(t.TempDir(), "dpud.yaml")
	if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFlagsOverrideTheFile(t *testing.T) {
	f := file(t, "name: d1\ncontrollers: [http://c:1]\nports: {nodes: [p0], uplinks: [u0]}\nmode: audit\nlocal: [10.0.0.1]\n")
	have, err := parse(t, "--config", f, "--name", "d2", "--pin", "/sys/fs/bpf/x", "--listen", "127.0.0.1:1", "--advertise", "http://h:1",
		"--controller", "http://a:1", "--controller", "unix:///b", "--gossip-bind", "127.0.0.1:2", "--gossip-advertise", "127.0.0.1:3",
		"--gossip-seed", "s:1", "--gossip-label", "l", "--node-port", "n*", "--bridge", "br1", "--hardware-id", "hw", "--max-nodes", "9", "--audit", "1s")
	if err != nil {
		t.Fatal(err)
	}
	want := config.Default()
	want.Name, want.Pin, want.Listen, want.Advertise = "d2", "/sys/fs/bpf/x", "127.0.0.1:1", "http://h:1"
	want.Controllers = []string{"http://a:1", "unix:///b"}
	want.Gossip = config.Gossip{Bind: "127.0.0.1:2", Advertise: "127.0.0.1:3", Seeds: []string{"s:1"}, Label: "l"}
	want.Ports.Nodes, want.Ports.Uplinks, want.Ports.Bridge = []string{"n*"}, []string{"u0"}, "br1"
	want.Mode, want.Local, want.HardwareID, want.MaxNodes, want.Audit = "audit", []string{"10.0.0.1"}, "hw", 9, time.Second
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestUsageErrors(t *testing.T) {
	good := []string{"--name", "d1", "--controller", "http://c:1", "--node-port", "p0"}
	for _, c := range []struct {
		args []string
		want string
	}{
		{append(good, "extra"), `unexpected argument "extra"`},
		{append(good, "--nonsense"), "flag provided but not defined"},
		{append(good, "--mode", "on"), "mode: "},
		{[]string{"--config", "/nowhere/dpud.yaml"}, "no such file"},
		{[]string{"--config", file(t, "nmae: d1\n")}, "nmae: unknown key"},
	} {
		if _, err := parse(t, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("dpud run %q: %v, want %q", c.args, err, c.want)
		}
	}
	var out bytes.Buffer
	if err := newApp(&out, &out).Run([]string{"dpud", "unload"}); err == nil || !strings.Contains(err.Error(), "--pin") {
		t.Errorf("unload of nothing: %v", err)
	}
	if err := newApp(&out, &out).Run([]string{"dpud", "unload", "--name", "d1", "--log-format", "xml"}); err == nil || !strings.Contains(err.Error(), "--log-format") {
		t.Errorf("an unknown log format: %v", err)
	}
}

func TestUnknownCommand(t *testing.T) {
	var out bytes.Buffer
	err := newApp(&out, &out).Run([]string{"dpud", "unlod", "--pin", "/sys/fs/bpf/dpud/d1"})
	if !errors.As(err, new(usageError)) || !strings.Contains(err.Error(), `"unload"`) {
		t.Errorf("dpud unlod: %v", err)
	}
	if err := newApp(&out, &out).Run([]string{"dpud"}); err != nil || !strings.Contains(out.String(), "unload") {
		t.Errorf("dpud: %v\n%s", err, out.String())
	}
}
