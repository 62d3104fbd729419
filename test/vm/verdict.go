package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"dpud/test/vm/plan"
)

// verdict judges what the guest printed, line by line. What is not shown to have passed has failed.
type verdict struct {
	tests []string // that must report
	done  map[string]bool
	ended bool
	wrong []string
	pass  int
}

// A test that is skipped has not shown that the kernel can do what the product needs.
var (
	badTest   = regexp.MustCompile(`^\s*--- (FAIL|SKIP): `)
	goodTest  = regexp.MustCompile(`^\s*--- PASS: `)
	panicked  = regexp.MustCompile(`^(panic|fatal error|SIG[A-Z]+): `)
	raceFound = regexp.MustCompile(`^WARNING: DATA RACE`)
	noTests   = regexp.MustCompile(`^testing: warning: no tests to run`)
	// What the kernel prints when it has caught itself in a mistake.
	kernelTrouble = regexp.MustCompile(`BUG: |WARNING: |Oops|Kernel panic|Call Trace:|unregister_netdevice: waiting`)
)

func newVerdict(tests []plan.Test) *verdict {
	v := &verdict{done: make(map[string]bool)}
	for _, t := range tests {
		v.tests = append(v.tests, t.Name)
	}
	return v
}

// line takes a line of the tests' console.
func (v *verdict) line(s string) {
	switch {
	case badTest.MatchString(s), panicked.MatchString(s), raceFound.MatchString(s), noTests.MatchString(s):
		v.wrong = append(v.wrong, strings.TrimSpace(s))
	case goodTest.MatchString(s):
		v.pass++
	case s == plan.End:
		v.ended = true
	}
	name, how, ok := plan.ParseDone(s)
	if !ok {
		return
	}
	v.done[name] = true
	if how != "ok" || !slices.Contains(v.tests, name) {
		v.wrong = append(v.wrong, fmt.Sprintf("%s: %s", name, how))
	}
}

// kernelLine takes a line of the kernel's console.
func (v *verdict) kernelLine(s string) {
	if kernelTrouble.MatchString(s) {
		v.wrong = append(v.wrong, "kernel: "+strings.TrimSpace(s))
	}
}

// err returns nil if every test reported and nothing was wrong.
func (v *verdict) err() error {
	wrong := slices.Clone(v.wrong)
	for _, t := range v.tests {
		if !v.done[t] {
			wrong = append(wrong, t+": did not report")
		}
	}
	if !v.ended {
		wrong = append(wrong, "the guest did not come to its end")
	}
	if v.pass == 0 {
		wrong = append(wrong, "no test passed")
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%d wrong:\n  %s", len(wrong), strings.Join(wrong, "\n  "))
}
