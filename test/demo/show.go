package main

import (
	"fmt"
	"os/exec"
	"strings"
	"time"

	"dpud/pkg/record"
	"dpud/test/prober"
	"dpud/test/rack"
)

// demo is one run of the show.
type demo struct {
	*rack.Rack
	rate int
	ids  []record.NodeID
}

// Indices of the nodes.
const (
	n1 = iota
	n2
	n3
	n4
)

func title(format string, args ...any) { fmt.Printf("\n== "+format+"\n", args...) }

func (d *demo) show() error {
	title("a rack: controller, DPUs d1 and d2, nodes n1, n2 (behind d1), n3, n4 (behind d2)")
	if err := d.Start(); err != nil {
		return err
	}
	var err error
	if d.ids, err = d.IDs(); err != nil {
		return err
	}
	if err := d.ctl("get", "dpus"); err != nil {
		return err
	}
	if err := d.assign(); err != nil {
		return err
	}
	title("from now on frames flow from every node to every node, %d a second", d.rate)
	p, err := d.Probe(d.rate, time.Minute, d.ids)
	if err != nil {
		return err
	}
	moved := d.move(p)
	report, err := p.Stop()
	if moved != nil {
		return moved
	}
	if err != nil {
		return err
	}
	if err := d.maps(); err != nil {
		return err
	}
	title("what became of the frames")
	fmt.Print(report)
	if report.Total.Passed == 0 || report.Total.Crossed != 0 || report.Total.Unknown != 0 || report.TwoTenants != 0 {
		return fmt.Errorf("want frames that passed and none that crossed tenants")
	}
	return d.unenforced()
}

// assign gives n1 and n3 to t1, n2 and n4 to t2.
func (d *demo) assign() error {
	title("assign nodes to tenants")
	for _, a := range [][]string{{"n1", "t1"}, {"n3", "t1"}, {"n2", "t2"}, {"n4", "t2"}} {
		if err := d.ctl("assign", a[0], a[1]); err != nil {
			return err
		}
	}
	return d.ctl("get", "nodes")
}

// move shows who reaches whom, and gives n1 to the other tenant meanwhile.
func (d *demo) move(p *prober.Prober) error {
	before, err := d.Counters("d1")
	if err != nil {
		return err
	}
	for _, pair := range []pair{{n1, n3, true}, {n4, n2, true}, {n1, n2, false}, {n3, n4, false}} {
		if err := d.watch(p, pair); err != nil {
			return err
		}
	}
	if err := d.ctlOn("d1", "counters"); err != nil {
		return err
	}
	after, err := d.Counters("d1")
	if err != nil {
		return err
	}
	const mismatch = "ingress drop tenant_mismatch"
	if after[mismatch] <= before[mismatch] {
		return fmt.Errorf("d1 counted no packet under %q: %v", mismatch, after)
	}
	fmt.Printf("\nd1 dropped %d frames because their nodes are of two tenants (tenant_mismatch)\n", after[mismatch]-before[mismatch])
	title("n1 moves from t1 to t2, while all that goes on")
	if err := d.ctl("reclaim", "n1"); err != nil {
		return err
	}
	if err := d.ctl("assign", "n1", "t2"); err != nil {
		return err
	}
	for _, pair := range []pair{{n1, n2, true}, {n4, n1, true}, {n1, n3, false}, {n3, n1, false}} {
		if err := d.watch(p, pair); err != nil {
			return err
		}
	}
	return nil
}

// pair of nodes, and whether frames from one shall reach the other.
type pair struct {
	from, to int
	passes   bool
}

// watch follows a pair until enough of its honest frames were sent, and says how many arrived.
func (d *demo) watch(p *prober.Prober, w pair) error {
	const enough = 50
	honest := func() (sent, received uint64) {
		for _, k := range prober.Kinds() {
			if k.Honest() {
				sent += p.Sent(w.from, w.to, k)
				received += p.Received(w.from, w.to, k)
			}
		}
		return sent, received
	}
	sent0, received0 := honest()
	err := rack.Until(d.Deadline, "frames", func() (bool, error) {
		sent, received := honest()
		return sent >= sent0+enough && (!w.passes || received >= received0+enough/2), nil
	})
	sent, received := honest()
	verdict := "pass"
	if !w.passes {
		verdict = "dropped"
	}
	fmt.Printf("%s to %s: %d well-formed frames sent, %d arrived (%s)\n", rack.Nodes[w.from], rack.Nodes[w.to], sent-sent0, received-received0, verdict)
	if err == nil && !w.passes && received != received0 {
		err = fmt.Errorf("frames from %s reached %s", rack.Nodes[w.from], rack.Nodes[w.to])
	}
	return err
}

// maps shows what both kernels hold, read by ctl and by bpftool.
func (d *demo) maps() error {
	title("what the kernels of d1 and d2 hold")
	for _, dpu := range rack.DPUs {
		if err := d.ctlOn(dpu, "map", "dump", "--map", "node_tenant"); err != nil {
			return err
		}
	}
	for _, dpu := range rack.DPUs {
		args := []string{"map", "dump", "pinned", d.PinDir(dpu) + "/maps/node_tenant"}
		out, err := exec.Command("bpftool", args...).CombinedOutput()
		fmt.Printf("\n$ bpftool %s\n%s", strings.Join(args, " "), out)
		if err != nil {
			return fmt.Errorf("run bpftool: %w", err)
		}
	}
	return nil
}

// unenforced shows that the prober sees crossings where there are some.
func (d *demo) unenforced() error {
	title("enforcement off for a moment: the same prober must see frames cross")
	if err := d.SetMode("off"); err != nil {
		return err
	}
	p, err := d.Probe(d.rate, 10*time.Second, d.ids)
	if err != nil {
		return err
	}
	waited := rack.Until(d.Deadline, "frames of two tenants", func() (bool, error) {
		return p.Received(n1, n3, prober.V4) > 2 && p.Received(n3, n4, prober.V6) > 2, nil
	})
	report, err := p.Stop()
	if err != nil {
		return err
	}
	if err := d.SetMode("enforce"); err != nil {
		return err
	}
	if err := d.ForgetNeighbours(); err != nil {
		return err
	}
	fmt.Printf("sent %d, passed %d, dropped %d, crossed tenants %d\n", report.Total.Sent, report.Total.Passed, report.Total.Dropped(), report.Total.Crossed)
	if report.Total.Crossed == 0 {
		return fmt.Errorf("nothing crossed without enforcement, so the prober proves nothing: %w", waited)
	}
	for _, dpu := range rack.DPUs {
		if err := d.ctlOn(dpu, "mode"); err != nil {
			return err
		}
	}
	return nil
}

// ctl runs ctl as the operator and shows the command and what it prints.
func (d *demo) ctl(args ...string) error { return d.run("ctrl", "", args) }

// ctlOn runs ctl on a DPU, on its pinned maps.
func (d *demo) ctlOn(dpu record.DPU, args ...string) error {
	return d.run(string(dpu), "["+string(dpu)+"] ", append(args, "--pin", d.PinDir(dpu)))
}

func (d *demo) run(space, prompt string, args []string) error {
	fmt.Printf("\n%s$ ctl %s\n", prompt, strings.Join(args, " "))
	a, err := d.CtlIn(space, args...)
	if err != nil {
		return err
	}
	fmt.Print(a.Stderr, a.Stdout)
	if a.Code != 0 {
		return fmt.Errorf("ctl %s: exit code %d", strings.Join(args, " "), a.Code)
	}
	return nil
}
