package config

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func load(t *testing.T, text string) (*Config, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "dpud.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(file)
	if err != nil {
		return nil, err
	}
	return c, c.Finish()
}

func TestEverySetting(t *testing.T) {
	have, err := load(t, `
name: d1.rack2
pin: /sys/fs/bpf/x
listen: 10.0.0.1:7400
advertise: http://d1:7400
controllers: [http://c1:7443, "unix:///run/c.sock"]
gossip:
  bind: 10.0.0.1:7946
  advertise: 10.1.0.1:7946
  seeds: [c1:7946]
  label: rack2
  key_file: /etc/dpud/key
ports:
  nodes: [p0, "pf0vf*"]
  uplinks: [up0]
  bridge: br1
  create_bridge: false
  bridge_uplinks: false
local: [10.0.0.1, "2001:db8::1"]
hardware_id: hw
mode: audit
max_nodes: 100
audit: 5s
`)
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		Name: "d1.rack2", Pin: "/sys/fs/bpf/x", Listen: "10.0.0.1:7400", Advertise: "http://d1:7400",
		Controllers: []string{"http://c1:7443", "unix:///run/c.sock"},
		Gossip:      Gossip{Bind: "10.0.0.1:7946", Advertise: "10.1.0.1:7946", Seeds: []string{"c1:7946"}, Label: "rack2", KeyFile: "/etc/dpud/key"},
		Ports:       Ports{Nodes: []string{"p0", "pf0vf*"}, Uplinks: []string{"up0"}, Bridge: "br1"},
		Local:       []string{"10.0.0.1", "2001:db8::1"}, HardwareID: "hw", Mode: "audit", MaxNodes: 100, Audit: 5 * time.Second,
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDefaults(t *testing.T) {
	const least = "name: d1.r2\ncontrollers: [http://c:1]\nports: {nodes: [p0]}\n"
	have, err := load(t, least)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Name, want.Controllers, want.Ports.Nodes = "d1.r2", []string{"http://c:1"}, []string{"p0"}
	want.Pin, want.Listen, want.Advertise = "/sys/fs/bpf/dpud/d1_r2", "unix:///run/dpud/d1.r2.sock", "unix:///run/dpud/d1.r2.sock"
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for listen, advertise := range map[string]string{
		"10.0.0.1:7400": "http://10.0.0.1:7400", "[2001:db8::1]:7400": "http://[2001:db8::1]:7400", "0.0.0.0:7400": "", "[::]:7400": "", ":7400": "", "127.0.0.1:0": "",
	} {
		c, err := load(t, least+"listen: '"+listen+"'\n")
		if err != nil || c.Advertise != advertise {
			t.Errorf("listen %s: advertise %q, %v; want %q", listen, c.Advertise, err, advertise)
		}
	}
}

func TestErrorsSayWhereWhatAndHow(t *testing.T) {
	good := map[string]string{"name": "d1", "controllers": "[http://c:1]", "ports": "{nodes: [p0]}"}
	for name, c := range map[string]struct {
		set  map[string]string
		want string // where: what
	}{
		"unknown key":         {map[string]string{"nmae": "x"}, "nmae: unknown key"},
		"unknown nested key":  {map[string]string{"ports": "{nodes: [p0], node: p1}"}, "ports.node: unknown key"},
		"key twice":           {map[string]string{"mode": "audit\nmode: off"}, "mode: the key is there twice"},
		"wrong type":          {map[string]string{"ports": "{nodes: {a: b}}"}, "ports.nodes: want a list, have keys and values"},
		"not a number":        {map[string]string{"max_nodes": "many"}, `max_nodes: want a number, have "many"`},
		"not a duration":      {map[string]string{"audit": "soon"}, `audit: want a duration, have "soon"`},
		"not a bool":          {map[string]string{"ports": "{nodes: [p0], create_bridge: perhaps}"}, `ports.create_bridge: want true or false, have "perhaps"`},
		"not keys":            {map[string]string{"gossip": "on"}, `gossip: want keys and values, have "on"`},
		"no name":             {map[string]string{"name": ""}, `name: "" is not a name`},
		"name with a blank":   {map[string]string{"name": "d 1"}, `name: "d 1" is not a name`},
		"pin with a dot":      {map[string]string{"pin": "/sys/fs/bpf/d.1"}, `pin: "/sys/fs/bpf/d.1" is not a folder`},
		"pin relative":        {map[string]string{"pin": "bpf"}, `pin: "bpf" is not a folder`},
		"listen":              {map[string]string{"listen": "here"}, `listen: "here" is neither host:port nor unix:///path`},
		"listen relative":     {map[string]string{"listen": "unix://sock"}, `listen: "sock" is not an absolute path`},
		"advertise":           {map[string]string{"advertise": "ftp://x"}, `advertise: "ftp://x" is not the URL`},
		"controller":          {map[string]string{"controllers": "[http://c:1, c2]"}, `controllers[1]: "c2" is not the URL`},
		"nobody to hear":      {map[string]string{"controllers": "[]"}, "controllers: neither controllers nor gossip"},
		"gossip without bind": {map[string]string{"gossip": "{label: x}"}, "gossip.bind: it is missing"},
		"gossip bind":         {map[string]string{"gossip": "{bind: c1}"}, `gossip.bind: "c1" is not an address`},
		"gossip advertise":    {map[string]string{"gossip": "{bind: '10.0.0.1:1', advertise: d1}"}, `gossip.advertise: "d1" is not an address`},
		"gossip seed":         {map[string]string{"gossip": "{bind: '10.0.0.1:1', seeds: ['']}"}, "gossip.seeds[0]: it is empty"},
		"no ports":            {map[string]string{"ports": "{}"}, "ports.nodes: no port is given"},
		"bad glob":            {map[string]string{"ports": "{nodes: [p0], uplinks: ['up[']}"}, `ports.uplinks[0]: "up[" is not the name or glob`},
		"bridge":              {map[string]string{"ports": "{nodes: [p0], bridge: abcdefghijklmnop}"}, `ports.bridge: "abcdefghijklmnop" is not the name`},
		"local":               {map[string]string{"local": "[10.0.0.1/24]"}, `local[0]: "10.0.0.1/24" is not an IP address`},
		"mode":                {map[string]string{"mode": "on"}, `mode: "on" is not a mode`},
		"max_nodes":           {map[string]string{"max_nodes": "0"}, "max_nodes: 0 is out of range"},
		"audit":               {map[string]string{"audit": "1ms"}, "audit: 1ms is too short"},
		"not YAML":            {map[string]string{"name": "[d1"}, "this is not YAML: line"},
	} {
		t.Run(name, func(t *testing.T) {
			keys := maps.Clone(good)
			maps.Copy(keys, c.set)
			var b strings.Builder
			for k, v := range keys {
				b.WriteString(k + ": " + v + "\n")
			}
			_, err := load(t, b.String())
			if err == nil {
				t.Fatal("no error")
			}
			line := strings.TrimPrefix(err.Error()[max(strings.LastIndex(err.Error(), ".yaml: "), 0):], ".yaml: ")
			if !strings.HasPrefix(line, c.want) || !strings.Contains(line, "; fix: ") || strings.Contains(line, "\n") {
				t.Errorf("error is %q, want one line that starts with %q and says how to fix it", err, c.want)
			}
		})
	}
}

func TestEveryErrorAtOnce(t *testing.T) {
	_, err := load(t, "name: d1\nmode: on\nmax_nodes: 0\n")
	for _, want := range []string{"controllers: ", "ports.nodes: ", "mode: ", "max_nodes: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not tell of %s", err, want)
		}
	}
}

func TestNoFile(t *testing.T) {
	if _, err := Load(filepath.Join(t.TempDir(), "none.yaml")); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("error is %v", err)
	}
}

// The example in the documentation is one that dpud takes, with every setting in it.
func TestDocumentedConfiguration(t *testing.T) {
	text, err := os.ReadFile("../../../docs/dpud.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "```yaml\n")
	example, _, end := strings.Cut(rest, "```")
	if !ok || !end {
		t.Fatal("no example in docs/dpud.md")
	}
	have, err := load(t, example)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	if have.MaxNodes != want.MaxNodes || have.Audit != want.Audit || have.Ports.Bridge != want.Ports.Bridge ||
		have.Ports.CreateBridge != want.Ports.CreateBridge || have.Ports.BridgeUplinks != want.Ports.BridgeUplinks {
		t.Errorf("the example does not show the defaults: %+v", have)
	}
	for _, v := range []any{Config{}, Gossip{}, Ports{}} {
		_, keys := fieldsOf(reflect.ValueOf(v))
		for _, key := range keys {
			if !strings.Contains(example, key+":") {
				t.Errorf("the example lacks %s", key)
			}
		}
	}
}
