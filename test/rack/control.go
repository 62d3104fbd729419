package rack

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"dpud/pkg/record"
)

// controllerArgs are the arguments of ctl that run the controller.
func (r *Rack) controllerArgs() []string {
	return []string{
		"controller",
		"--data-dir", filepath.Join(r.Dir, "store"),
		"--listen", strings.TrimPrefix(ControllerURL, "http://"),
		"--gossip-bind", fmt.Sprintf("%s.1:%d", gossipNetwork, gossipPort),
	}
}

// Start starts the controller and the dpuds, waits until they are ready, and applies the site file.
func (r *Rack) Start() error {
	if err := r.Controller.Start(); err != nil {
		return err
	}
	if err := r.ControllerReady(); err != nil {
		return err
	}
	if _, err := r.MustCtl("apply", "-f", r.SiteFile()); err != nil {
		return err
	}
	for _, dpu := range DPUs {
		if err := r.Daemons[dpu].Start(); err != nil {
			return err
		}
	}
	for _, dpu := range DPUs {
		if err := r.DaemonReady(dpu); err != nil {
			return err
		}
	}
	return nil
}

// ControllerReady waits until the controller says that it is ready.
func (r *Rack) ControllerReady() error {
	return r.ready("ctrl", r.Controller, ControllerURL)
}

// DaemonReady waits until a DPU's dpud says that it is ready.
func (r *Rack) DaemonReady(dpu record.DPU) error {
	return r.ready(string(dpu), r.Daemons[dpu], daemonURL(dpu))
}

func (r *Rack) ready(space string, p *Process, url string) error {
	err := Until(r.Deadline, p.Name+" to be ready", func() (bool, error) {
		if !p.Running() {
			return true, fmt.Errorf("%s has ended: %w", p.Name, errors.Join(p.Wait(), errors.New("it should run")))
		}
		_, err := r.Namespace(space).Get(url + "/readyz")
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("%w\nits log ends with:\n%s", err, tail(p.Log(), 30))
	}
	return nil
}

func tail(s string, lines int) string {
	all := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Answer is what one run of ctl printed, and its exit code.
type Answer struct {
	Stdout, Stderr string
	Code           int
}

// Ctl runs ctl once, in the controller's namespace.
func (r *Rack) Ctl(args ...string) (Answer, error) { return r.CtlIn("ctrl", args...) }

// CtlIn runs ctl once, in the namespace of "ctrl" or a DPU. An exit code is no error.
func (r *Rack) CtlIn(space string, args ...string) (Answer, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(filepath.Join(r.Bin, "ctl"), args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Env = append(cmd.Environ(), "DPUD_CONTROLLER="+ControllerURL)
	err := r.Namespace(space).Do(cmd.Run)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return Answer{}, fmt.Errorf("run ctl %s: %w", strings.Join(args, " "), err)
	}
	return Answer{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}, nil
}

// MustCtl is Ctl where any exit code but 0 is an error.
func (r *Rack) MustCtl(args ...string) (Answer, error) {
	a, err := r.Ctl(args...)
	if err == nil && a.Code != 0 {
		err = fmt.Errorf("ctl %s: exit code %d: %s%s", strings.Join(args, " "), a.Code, a.Stdout, a.Stderr)
	}
	return a, err
}

// JSON runs ctl with -o json and decodes what it prints.
func (r *Rack) JSON(into any, args ...string) error {
	a, err := r.MustCtl(append(args, "-o", "json")...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(a.Stdout), into); err != nil {
		return fmt.Errorf("read ctl %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// NodeStatus is what ctl prints of a node.
type NodeStatus struct {
	Name       string            `json:"name"`
	ID         record.NodeID     `json:"id"`
	Phase      string            `json:"phase"`
	Tenant     string            `json:"tenant"`
	Generation record.Generation `json:"generation"`
	WaitingFor []record.DPU      `json:"waiting_for"`
}

// Node asks the controller for a node.
func (r *Rack) Node(name string) (NodeStatus, error) {
	var s NodeStatus
	return s, r.JSON(&s, "status", "node", name)
}

// IDs returns the nodes' ids, n1 first.
func (r *Rack) IDs() ([]record.NodeID, error) {
	var ids []record.NodeID
	for _, name := range Nodes {
		n, err := r.Node(name)
		if err != nil {
			return nil, err
		}
		ids = append(ids, n.ID)
	}
	return ids, nil
}

// WaitPhase waits until the controller says that a node is in a phase and waits for no DPU.
func (r *Rack) WaitPhase(name, phase string) error {
	return Until(r.Deadline, name+" to be "+phase, func() (bool, error) {
		n, err := r.Node(name)
		if err != nil {
			return false, err
		}
		if n.Phase == phase && len(n.WaitingFor) == 0 {
			return true, nil
		}
		return false, fmt.Errorf("it is %+v", n)
	})
}

// Counters returns a DPU's packet counters by hook, verdict and reason ("ingress drop tenant_mismatch"),
// from its pinned maps.
func (r *Rack) Counters(dpu record.DPU) (map[string]uint64, error) {
	var v struct {
		Counters []struct {
			Hook, Verdict, Reason string
			Packets               uint64
		}
	}
	if err := r.JSON(&v, "counters", "--pin", r.PinDir(dpu)); err != nil {
		return nil, err
	}
	counters := make(map[string]uint64)
	for _, c := range v.Counters {
		counters[c.Hook+" "+c.Verdict+" "+c.Reason] = c.Packets
	}
	return counters, nil
}

// MapEntry is what ctl prints of a map entry.
type MapEntry struct {
	Map        string            `json:"map"`
	Key        string            `json:"key"`
	Node       record.NodeID     `json:"node"`
	Tenant     record.TenantID   `json:"tenant"`
	Generation record.Generation `json:"generation"`
}

// Entries returns what one map of a DPU holds, from its pinned maps.
func (r *Rack) Entries(dpu record.DPU, name string) ([]MapEntry, error) {
	var v struct{ Entries []MapEntry }
	return v.Entries, r.JSON(&v, "map", "dump", "--pin", r.PinDir(dpu), "--map", name)
}

// SetMode switches enforcement on every DPU: "enforce", "audit" or "off".
func (r *Rack) SetMode(mode string) error {
	for _, dpu := range DPUs {
		if _, err := r.MustCtl("mode", mode, "--yes", "--pin", r.PinDir(dpu)); err != nil {
			return err
		}
	}
	return nil
}

// Logs returns the last lines of every process's log, for a test that fails.
func (r *Rack) Logs(lines int) string {
	var b strings.Builder
	processes := []*Process{r.Controller}
	for _, dpu := range DPUs {
		processes = append(processes, r.Daemons[dpu])
	}
	for _, p := range slices.DeleteFunc(processes, func(p *Process) bool { return p == nil }) {
		fmt.Fprintf(&b, "--- %s\n%s\n", p.Name, tail(p.Log(), lines))
	}
	return b.String()
}

// timeout is how ctl's --timeout flag is given.
func timeout(d time.Duration) []string { return []string{"--timeout", d.String()} }

// Assign assigns a node and waits until every DPU has programmed it.
func (r *Rack) Assign(node, tenant string) error {
	_, err := r.MustCtl(append([]string{"assign", node, tenant}, timeout(r.Deadline)...)...)
	return err
}

// Reclaim reclaims a node and waits until it is free.
func (r *Rack) Reclaim(node string) error {
	_, err := r.MustCtl(append([]string{"reclaim", node}, timeout(r.Deadline)...)...)
	return err
}

// Reboot ends a DPU's dpud as a power cut would, and takes away everything that the kernel held. The dpud
// does not run afterwards.
func (r *Rack) Reboot(dpu record.DPU) error {
	if err := r.Daemons[dpu].Stop(os.Kill); err != nil {
		return err
	}
	out, err := r.in(string(dpu), "dpud", "unload", "--pin", r.PinDir(dpu))
	if err != nil {
		return fmt.Errorf("unload %s: %w: %s", dpu, err, out)
	}
	return nil
}

// in runs one of the rack's programs in a namespace.
func (r *Rack) in(space, program string, args ...string) (output []byte, err error) {
	err = r.Namespace(space).Do(func() error {
		output, err = exec.Command(filepath.Join(r.Bin, program), args...).CombinedOutput()
		return err
	})
	return output, err
}

// Metrics returns what a DPU's dpud exports, by name and labels as Prometheus writes them.
func (r *Rack) Metrics(dpu record.DPU) (map[string]float64, error) {
	body, err := r.Namespace(string(dpu)).Get(daemonURL(dpu) + "/metrics")
	if err != nil {
		return nil, err
	}
	metrics := make(map[string]float64)
	for line := range strings.Lines(body) {
		if i := strings.LastIndexByte(line, ' '); i > 0 && line[0] != '#' {
			if metrics[line[:i]], err = strconv.ParseFloat(strings.TrimSpace(line[i:]), 64); err != nil {
				return nil, fmt.Errorf("read metrics of %s: %w", dpu, err)
			}
		}
	}
	return metrics, nil
}
