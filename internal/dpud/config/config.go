// Package config reads and checks dpud's configuration. It touches neither network nor kernel, and refuses
// what is misspelt rather than guessing: a setting that is not understood must not silently leave a port open.
package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// Config is what docs/dpud.md describes, key for key.
type Config struct {
	// Name of this DPU, as in the site file.
	Name string `yaml:"name"`
	// Pin is the folder of a bpffs that holds this dpud's maps, programs and links.
	// Default: /sys/fs/bpf/dpud/NAME.
	Pin string `yaml:"pin"`
	// Listen is where the API and /metrics are served: host:port or unix:///path.
	// Default: unix:///run/dpud/NAME.sock.
	Listen string `yaml:"listen"`
	// Advertise is the URL under which controllers reach the API: http://host:port or unix:///path.
	// Default: Listen, unless that is an unspecified address.
	Advertise string `yaml:"advertise"`
	// Controllers are tried in turn: http://host:port or unix:///path. None leaves gossip alone.
	Controllers []string `yaml:"controllers"`
	Gossip      Gossip   `yaml:"gossip"`
	Ports       Ports    `yaml:"ports"`
	// Local lists the DPU's own addresses; they are reachable through uplinks only.
	Local []string `yaml:"local"`
	// HardwareID binds the name to this hardware. Default: see docs/dpud.md.
	HardwareID string `yaml:"hardware_id"`
	// Mode is enforce, audit (count but do not drop) or off. Default: as the maps have it, which begin with
	// enforce, so that a restart does not undo `ctl mode`. In audit and off nothing is ever confirmed as cleared.
	Mode string `yaml:"mode"`
	// MaxNodes is the number of nodes that the maps hold. Default 4096; a node takes about 500 bytes.
	MaxNodes int `yaml:"max_nodes"`
	// Audit is the time between two sweeps over every map entry, port and forwarding entry. Default 30s;
	// shorter finds foreign changes sooner, at about 1 ms of CPU time for 1,000 nodes each.
	Audit time.Duration `yaml:"audit"`
}

// Gossip configures the pool of the rack; without Bind there is none.
type Gossip struct {
	// Bind is the address for UDP and TCP, ip:port.
	Bind string `yaml:"bind"`
	// Advertise is what others use, ip:port. Default: Bind.
	Advertise string `yaml:"advertise"`
	// Seeds are members to join through, host:port.
	Seeds []string `yaml:"seeds"`
	// Label names the pool: members with another one are not heard.
	Label string `yaml:"label"`
	// KeyFile holds 16, 24 or 32 bytes that encrypt the pool's traffic. Default: none.
	KeyFile string `yaml:"key_file"`
}

// Ports says which links dpud guards and how they are joined.
type Ports struct {
	// Nodes and Uplinks are names or globs (path.Match) of links.
	Nodes   []string `yaml:"nodes"`
	Uplinks []string `yaml:"uplinks"`
	// Bridge that joins the ports. Default: br-dpud.
	Bridge string `yaml:"bridge"`
	// CreateBridge makes the bridge when it is missing. Default true.
	CreateBridge bool `yaml:"create_bridge"`
	// BridgeUplinks puts the uplinks into the bridge too. Default true.
	BridgeUplinks bool `yaml:"bridge_uplinks"`
}

// Default returns the configuration of an empty file.
func Default() *Config {
	return &Config{
		Ports:    Ports{Bridge: "br-dpud", CreateBridge: true, BridgeUplinks: true},
		MaxNodes: 4096,
		Audit:    30 * time.Second,
	}
}

// Load reads a file over the defaults. The result is not checked yet: flags may still change it.
func Load(file string) (*Config, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	c := Default()
	if err := decode(data, c); err != nil {
		return nil, fmt.Errorf("read configuration %s: %w", file, err)
	}
	return c, nil
}

// Finish fills in the defaults that follow from other settings and checks everything. It reports all that is
// wrong, each as an [Error].
func (c *Config) Finish() error {
	if c.Listen == "" {
		c.Listen = "unix:///run/dpud/" + c.Name + ".sock"
	}
	var errs []error
	bad := func(path, problem, fix string, args ...any) {
		errs = append(errs, &Error{Path: path, Problem: fmt.Sprintf(problem, args...), Fix: fix})
	}
	if c.Name == "" || len(c.Name) > 63 || strings.ContainsFunc(c.Name, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' }) {
		bad("name", "%q is not a name", "give the DPU's name as in the site file, in `name` or --name", c.Name)
	} else if _, err := c.PinFolder(); err != nil {
		errs = append(errs, err)
	}
	if _, _, err := ListenOn(c.Listen); err != nil {
		bad("listen", "%v", "write host:port, or unix:///path for a socket of this machine", err)
	} else if c.Advertise == "" {
		c.Advertise = advertised(c.Listen)
	}
	if c.Advertise != "" {
		if err := checkURL(c.Advertise); err != nil {
			bad("advertise", "%v", urlFix, err)
		}
	}
	for i, u := range c.Controllers {
		if err := checkURL(u); err != nil {
			bad(fmt.Sprintf("controllers[%d]", i), "%v", urlFix, err)
		}
	}
	if len(c.Controllers) == 0 && c.Gossip.Bind == "" {
		bad("controllers", "neither controllers nor gossip are given, so nothing would ever be heard", "list a controller's URL, or set gossip.bind")
	}
	c.checkGossip(bad)
	c.checkPorts(bad)
	for i, a := range c.Local {
		if _, err := netip.ParseAddr(a); err != nil {
			bad(fmt.Sprintf("local[%d]", i), "%q is not an IP address", "write one address like 10.0.0.1 or 2001:db8::1, without a prefix length", a)
		}
	}
	if c.Mode != "" && c.Mode != "enforce" && c.Mode != "audit" && c.Mode != "off" {
		bad("mode", "%q is not a mode", "write enforce, audit or off, or nothing to leave it as it is", c.Mode)
	}
	if c.MaxNodes < 1 || c.MaxNodes > 1<<20 {
		bad("max_nodes", "%d is out of range", "write a number from 1 to 1048576", c.MaxNodes)
	}
	if c.Audit < 100*time.Millisecond {
		bad("audit", "%s is too short", "write 100ms or more", c.Audit)
	}
	return errors.Join(errs...)
}

// PinFolder fills in the default pin folder, and checks it.
func (c *Config) PinFolder() (string, error) {
	if c.Pin == "" {
		// A name in a bpffs can't hold a dot.
		c.Pin = "/sys/fs/bpf/dpud/" + strings.ReplaceAll(c.Name, ".", "_")
	}
	if !filepath.IsAbs(c.Pin) || strings.Contains(c.Pin, ".") || filepath.Clean(c.Pin) != c.Pin {
		return "", &Error{
			Path: "pin", Problem: fmt.Sprintf("%q is not a folder that a bpffs can hold", c.Pin),
			Fix: "give an absolute path without dots, like /sys/fs/bpf/dpud/d1",
		}
	}
	return c.Pin, nil
}

const urlFix = "write http://host:port or unix:///path"

func (c *Config) checkGossip(bad func(string, string, string, ...any)) {
	g := c.Gossip
	if g.Bind == "" {
		if g.Advertise != "" || len(g.Seeds) > 0 || g.Label != "" || g.KeyFile != "" {
			bad("gossip.bind", "it is missing", "write this DPU's ip:port for gossip, or take out the whole of `gossip`")
		}
		return
	}
	const fix = "write ip:port, like 10.0.0.1:7946"
	if _, err := netip.ParseAddrPort(g.Bind); err != nil {
		bad("gossip.bind", "%q is not an address with a port", fix, g.Bind)
	}
	if _, err := netip.ParseAddrPort(g.Advertise); err != nil && g.Advertise != "" {
		bad("gossip.advertise", "%q is not an address with a port", fix, g.Advertise)
	}
	for i, s := range g.Seeds {
		if s == "" {
			bad(fmt.Sprintf("gossip.seeds[%d]", i), "it is empty", "write host:port, or take out the line")
		}
	}
}

func (c *Config) checkPorts(bad func(string, string, string, ...any)) {
	check := func(list string, patterns []string) {
		for i, p := range patterns {
			if _, err := path.Match(p, ""); err != nil || p == "" || strings.ContainsAny(p, "/ ") {
				bad(fmt.Sprintf("ports.%s[%d]", list, i), "%q is not the name or glob of a link", "write a name like p0, or a glob like pf0vf*", p)
			}
		}
	}
	check("nodes", c.Ports.Nodes)
	check("uplinks", c.Ports.Uplinks)
	if len(c.Ports.Nodes) == 0 {
		bad("ports.nodes", "no port is given, so no node could be reached", "list the ports that face nodes, by name or glob")
	}
	if b := c.Ports.Bridge; b == "" || len(b) > 15 || strings.ContainsAny(b, "/: ") {
		bad("ports.bridge", "%q is not the name of a link", "write a name of at most 15 letters, like br-dpud", b)
	}
}

// ListenOn splits an address to listen on into network and address for [net.Listen].
func ListenOn(listen string) (network, address string, err error) {
	if file, ok := strings.CutPrefix(listen, "unix://"); ok {
		if !filepath.IsAbs(file) || len(file) > 107 {
			return "", "", fmt.Errorf("%q is not an absolute path of at most 107 bytes", file)
		}
		return "unix", file, nil
	}
	if _, _, err := net.SplitHostPort(listen); err != nil {
		return "", "", fmt.Errorf("%q is neither host:port nor unix:///path", listen)
	}
	return "tcp", listen, nil
}

// advertised is the URL under which a listening address is reached, or "" when it does not say.
func advertised(listen string) string {
	if strings.HasPrefix(listen, "unix://") {
		return listen
	}
	host, port, _ := net.SplitHostPort(listen)
	if a, err := netip.ParseAddr(host); host == "" || port == "0" || err == nil && a.IsUnspecified() {
		return ""
	}
	return "http://" + listen
}

func checkURL(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return fmt.Errorf("%q is not a URL", s)
	case u.Scheme == "unix" && u.Host == "" && filepath.IsAbs(u.Path):
		return nil
	case u.Scheme == "http" && u.Host != "" && strings.Trim(u.Path, "/") == "" && u.RawQuery == "":
		return nil
	}
	return fmt.Errorf("%q is not the URL of an API", s)
}
