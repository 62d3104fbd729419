package main

import (
	"slices"
	"strings"
	"testing"

	"dpud/test/vm/plan"
)

func TestVerdict(t *testing.T) {
	good := []string{
		"kernel 6.1", plan.Begin("maps"), "=== RUN   TestLoad", "--- PASS: TestLoad (0.01s)", "PASS", plan.Done("maps", "ok"), plan.End,
	}
	with := func(at int, lines ...string) []string { return slices.Insert(slices.Clone(good), at, lines...) }
	for _, c := range []struct {
		name   string
		lines  []string
		kernel string
		want   string // in the error; empty: none
	}{
		{name: "all passed", lines: good},
		{name: "the kernel's usual talk", lines: good, kernel: "veth: loading out-of-tree module"},
		{name: "a failed test", lines: with(3, "--- FAIL: TestOther (0.01s)"), want: "FAIL: TestOther"},
		{name: "a failed subtest", lines: with(3, "    --- FAIL: TestOther/v4 (0.01s)"), want: "FAIL: TestOther/v4"},
		{name: "a skipped test", lines: with(3, "--- SKIP: TestOther (0.01s)"), want: "SKIP: TestOther"},
		{name: "a panic", lines: with(3, "panic: runtime error: index out of range"), want: "panic: "},
		{name: "nothing to run", lines: with(3, "testing: warning: no tests to run"), want: "no tests to run"},
		{name: "a bad exit code", lines: with(5, plan.Done("maps", "exit status 1")), want: "maps: exit status 1"},
		{name: "a test that hangs", lines: good[:4], want: "maps: did not report"},
		{name: "a guest that hangs", lines: good[:6], want: "did not come to its end"},
		{name: "a guest that does not start", want: "did not come to its end"},
		{name: "a guest that can't run the plan", lines: []string{plan.Done("init", "mount /proc: denied")}, want: "init: mount /proc"},
		{name: "no test at all", lines: []string{plan.Begin("maps"), "PASS", plan.Done("maps", "ok"), plan.End}, want: "no test passed"},
		{name: "a mistake of the kernel", lines: good, kernel: "[    1.0] BUG: sleeping function called from invalid context", want: "kernel: [    1.0] BUG"},
		{name: "a leaked device", lines: good, kernel: "unregister_netdevice: waiting for p1 to become free", want: "unregister_netdevice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := newVerdict([]plan.Test{{Name: "maps"}})
			for _, l := range c.lines {
				v.line(l)
			}
			v.kernelLine(c.kernel)
			err := v.err()
			switch {
			case c.want == "" && err != nil:
				t.Errorf("%v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestParseDepends(t *testing.T) {
	if got := parseDepends([]byte("license=GPL\x00depends=stp,llc\x00name=bridge\x00")); !slices.Equal(got, []string{"stp", "llc"}) {
		t.Errorf("got %v", got)
	}
	if got := parseDepends([]byte("license=GPL\x00depends=\x00")); got != nil {
		t.Errorf("got %v, want none", got)
	}
}
