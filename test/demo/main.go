// Demo shows the main job on a rack of network namespaces: nodes are assigned to tenants, traffic passes within a
// tenant and is dropped between two, and a node changes tenants while packets flow from every node to every node.
// It exits 0 only if no packet crossed tenants, and if some did once enforcement was switched off.
//
// With HOLD=1 it leaves the rack running until it is interrupted.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"dpud/test/rack"
)

func main() {
	bin := flag.String("bin", "bin", "folder of the programs ctl and dpud")
	rate := flag.Int("rate", 2000, "frames that are sent in a second")
	flag.Parse()
	if err := run(*bin, *rate, os.Getenv("HOLD") == "1"); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(bin string, rate int, hold bool) (err error) {
	if os.Geteuid() != 0 {
		return fmt.Errorf("network namespaces and BPF need root")
	}
	bin, err = filepath.Abs(bin)
	if err != nil {
		return err
	}
	start := time.Now()
	r, err := rack.New(rack.Options{Name: "demo", Bin: bin})
	if err != nil {
		return err
	}
	var once sync.Once
	closeRack := func() (err error) {
		once.Do(func() { err = r.Close() })
		return err
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	shown := make(chan error, 1)
	go func() { shown <- (&demo{Rack: r, rate: rate}).show() }()
	select {
	case err = <-shown:
	case <-interrupted:
		err = fmt.Errorf("interrupted")
	}
	if err != nil {
		fmt.Printf("\n%s", r.Logs(20))
	}
	fmt.Printf("\nit took %s\n", time.Since(start).Round(100*time.Millisecond))
	if hold && err == nil {
		howToEnter(r)
		<-interrupted
	}
	if closeErr := closeRack(); err == nil {
		err = closeErr
	}
	if err == nil {
		fmt.Println("the rack is removed; everything held")
	}
	return err
}

func howToEnter(r *rack.Rack) {
	ctl := filepath.Join(r.Bin, "ctl")
	fmt.Printf(`
The rack is running. From another terminal, as root:

  export DPUD_CONTROLLER=%s
  ip netns exec %s-ctrl %s status                             # the operator
  ip netns exec %[2]s-n2 ping 10.0.0.4                              # a node; 10.0.0.1 to 10.0.0.4 are n1 to n4
  ip netns exec %[2]s-d1 %[3]s map dump --pin %[4]s   # a DPU
  bpftool map dump pinned %[4]s/maps/node_tenant
  tail -f %[5]s/*.log

Interrupt this (Ctrl-C) to remove it.
`, rack.ControllerURL, r.Name, ctl, r.PinDir("d1"), r.Dir)
}
