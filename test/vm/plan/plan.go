// Package plan is what the machine and its guest agree on: which tests run, and how their output is told apart.
package plan

import "strings"

// Path of the plan in the guest, as JSON.
const Path = "/plan.json"

// Plan is what the guest does.
type Plan struct {
	// Modules are the kernel modules to load, in order.
	Modules []string
	// Env is added to the environment of every test.
	Env []string
	// Tests run one after the other.
	Tests []Test
}

// Test is one test binary.
type Test struct {
	Name    string
	Path    string
	Dir     string // where it runs
	Run     string // a regular expression that chooses tests; empty is all
	Timeout string // as Go's test binaries take it
}

// Lines that the guest prints around the tests.
const (
	mark = "@@@ vm "
	// End is the last line: the guest has run everything.
	End = mark + "end"
)

// Begin is printed before a test.
func Begin(name string) string { return mark + "begin " + name }

// Done is printed behind a test; how is "ok", or says what went wrong.
func Done(name, how string) string { return mark + "done " + name + ": " + how }

// ParseDone reads a line of Done, or one that says that the guest failed.
func ParseDone(line string) (name, how string, ok bool) {
	rest, ok := strings.CutPrefix(line, mark+"done ")
	if !ok {
		return "", "", false
	}
	name, how, ok = strings.Cut(rest, ": ")
	return name, how, ok
}

// Args of the test binary.
func (t Test) Args() []string {
	return []string{"-test.v", "-test.count=1", "-test.timeout=" + t.Timeout, "-test.run=" + t.Run}
}
