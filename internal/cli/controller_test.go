package cli

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"dpud/pkg/controller"
)

func TestControllerConfig(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := "unix://" + filepath.Join(dir, "run", "c.sock")
	for _, tt := range []struct {
		args string
		want controller.Config
	}{
		{"--listen " + socket, controller.Config{DataDir: defaultDataDir, Listen: []string{socket}}},
		{
			"--data-dir /d --listen 127.0.0.1:1 --listen [::1]:2 --log-format json --log-level debug",
			controller.Config{DataDir: "/d", Listen: []string{"127.0.0.1:1", "[::1]:2"}},
		},
		{
			"--etcd-endpoints http://a:1,http://b:1 --etcd-username dpud --listen " + socket,
			controller.Config{EtcdEndpoints: []string{"http://a:1", "http://b:1"}, EtcdUsername: "dpud", Listen: []string{socket}},
		},
		{
			"--listen " + socket + " --gossip-bind 127.0.0.1:7946 --gossip-advertise [::1]:7946 --gossip-seeds d1:1,d2:1 --gossip-seeds d3:1 --gossip-label r1 --gossip-key-file " + key,
			controller.Config{DataDir: defaultDataDir, Listen: []string{socket}, Gossip: controller.Gossip{
				Bind: netip.MustParseAddrPort("127.0.0.1:7946"), Advertise: netip.MustParseAddrPort("[::1]:7946"),
				Seeds: []string{"d1:1", "d2:1", "d3:1"}, Label: "r1", Key: []byte("0123456789abcdef"),
			}},
		},
	} {
		var (
			got controller.Config
			out bytes.Buffer
		)
		env := Env{
			Stdout: &out, Stderr: &out, Version: "v1.2.3",
			Getenv: func(name string) string { return map[string]string{"DPUD_ETCD_PASSWORD": "secret"}[name] },
			Controller: func(_ context.Context, cfg controller.Config) error {
				got = cfg
				return nil
			},
		}
		tt.want.Version, tt.want.EtcdPassword = "v1.2.3", "secret"
		if code := Run(t.Context(), env, append([]string{"controller"}, strings.Fields(tt.args)...)); code != 0 {
			t.Errorf("%s: exit code %d: %s", tt.args, code, out.String())
			continue
		}
		if d := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(controller.Config{}, "Logger", "Dial"), cmpopts.EquateComparable(netip.AddrPort{}), cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.args, d)
		}
	}
}
