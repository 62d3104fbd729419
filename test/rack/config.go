package rack

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"

	"dpud/pkg/record"
	"dpud/pkg/site"
)

const (
	apiPort    = 7300
	gossipPort = 7946
)

// ControllerURL is where the controller's API is, from inside the namespaces of the controller and the DPUs.
var ControllerURL = fmt.Sprintf("http://%s.1:%d", apiNetwork, apiPort)

// daemonURL is where a DPU's API is.
func daemonURL(dpu record.DPU) string {
	return fmt.Sprintf("http://%s:%d", hostOf(apiNetwork, dpu), apiPort)
}

func hostOf(network string, dpu record.DPU) netip.Addr {
	n := 11
	if dpu == DPUs[1] {
		n = 12
	}
	return host(network, n).Addr()
}

// Site is the rack's site: tenants t1 and t2, and every node behind both DPUs.
func Site() *site.Site {
	s := &site.Site{
		Name:    "demo",
		Racks:   []site.Rack{{Name: "r1"}},
		Tenants: []site.Tenant{{Name: "t1", VNI: 1001}, {Name: "t2", VNI: 1002}},
	}
	for _, dpu := range DPUs {
		s.DPUs = append(s.DPUs, site.DPU{Name: dpu, Rack: "r1", Uplinks: []string{Uplink}})
	}
	for _, n := range Wiring() {
		node := site.Node{
			Name: n.Name, Rack: "r1", MAC: n.MAC, Addresses: []netip.Addr{n.V4, n.V6},
			DPUs: []record.NodePort{{DPU: n.Home, Port: n.Port}},
		}
		for _, dpu := range DPUs {
			if dpu != n.Home {
				node.DPUs = append(node.DPUs, record.NodePort{DPU: dpu, Port: Uplink})
			}
		}
		s.Nodes = append(s.Nodes, node)
	}
	return s
}

// SiteFile is the path of the rack's site file.
func (r *Rack) SiteFile() string { return filepath.Join(r.Dir, "site.yaml") }

// configure writes the site file and each program's configuration, and makes the processes.
func (r *Rack) configure() error {
	if err := writeYAML(r.SiteFile(), Site()); err != nil {
		return err
	}
	r.Controller = newProcess(r.Namespace("ctrl"), "controller", r.Dir, filepath.Join(r.Bin, "ctl"), r.controllerArgs()...)
	for _, dpu := range DPUs {
		file := filepath.Join(r.Dir, string(dpu)+".yaml")
		if err := writeYAML(file, r.daemonConfig(dpu)); err != nil {
			return err
		}
		r.Daemons[dpu] = newProcess(r.Namespace(string(dpu)), string(dpu), r.Dir, filepath.Join(r.Bin, "dpud"), "run", "--config", file)
	}
	return nil
}

func (r *Rack) daemonConfig(dpu record.DPU) map[string]any {
	return map[string]any{
		"name":        string(dpu),
		"pin":         r.PinDir(dpu),
		"listen":      fmt.Sprintf("%s:%d", hostOf(apiNetwork, dpu), apiPort),
		"controllers": []string{ControllerURL},
		"gossip": map[string]any{
			"bind":  fmt.Sprintf("%s:%d", hostOf(gossipNetwork, dpu), gossipPort),
			"seeds": []string{fmt.Sprintf("%s.1:%d", gossipNetwork, gossipPort)},
		},
		"ports":       map[string]any{"nodes": []string{"p*"}, "uplinks": []string{Uplink}},
		"hardware_id": r.Name + "-" + string(dpu),
	}
}

func writeYAML(path string, v any) error {
	b, err := yaml.Marshal(v)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.WriteFile(path, b, 0o644)
}
