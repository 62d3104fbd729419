package main

import (
	"os"
	"strings"
	"testing"

	"dpud/internal/cli"
	"dpud/pkg/maps"
	"dpud/pkg/table"
)

// ctl reads and switches real pinned maps while their dpud holds them, and when it is gone.
func TestPinnedMaps(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for BPF")
	}
	const pin = "/sys/fs/bpf/dpud-ctl-test/d1"
	dp, err := maps.Load(pin, maps.Options{MaxNodes: 16})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := maps.Unload(pin); err != nil {
			t.Error(err)
		}
		_ = os.Remove("/sys/fs/bpf/dpud-ctl-test")
	})
	for k, v := range map[table.Key]table.Value{
		{Map: table.NodeState, Node: 7}:  {Epoch: 1, Generation: 2, Revision: 3},
		{Map: table.NodeTenant, Node: 7}: {Node: 7, Tenant: 4},
	} {
		if err := dp.Put(k, v); err != nil {
			t.Fatal(err)
		}
	}
	s := newSession(t)
	system := cli.System("")
	s.env.OpenMaps, s.env.SetMode, s.env.PinRoot = system.OpenMaps, system.SetMode, "/sys/fs/bpf/dpud-ctl-test"

	check := func(command, want string) {
		t.Helper()
		if got := s.run(command); got != want {
			t.Errorf("ctl %s: got\n%swant\n%s", command, got, want)
		}
	}
	const dump = "map dump --controller unix:///nowhere"
	const entries = "MAP          KEY  VALUE\n" +
		"node_tenant  7    tenant 4, node 7\n" +
		"node_state   7    epoch 1, generation 2, revision 3\n"
	check(dump, entries)
	check("mode", pin+": mode enforce\n")
	if got := s.run("mode off --yes"); !strings.HasSuffix(got, pin+": mode off, was enforce\n") {
		t.Errorf("mode off: %s", got)
	}
	if m, err := dp.Mode(); err != nil || m != maps.Off {
		t.Errorf("the data plane has mode %s (%v), want off", m, err)
	}
	if err := dp.Close(); err != nil { // dpud dies
		t.Fatal(err)
	}
	check(dump, entries)
	check("mode enforce", pin+": mode enforce, was off\n")
	check("mode", pin+": mode enforce\n")
	check("counters", "no packet has been judged\n")
}
