package site

import (
	"fmt"
	"strconv"
	"strings"
)

// Error is one thing that is wrong with a site.
type Error struct {
	// Path of the field, like nodes[2].addresses[0]; empty when it is the file as a whole.
	Path string
	// Object that the path leads through, like "node n3"; empty when it has no usable name.
	Object string
	// Line of the file, from 1; 0 when the site did not come from a file.
	Line int
	// Problem says what is wrong, Fix what to do.
	Problem, Fix string

	column int // orders the errors of a line
}

// Error returns one line: where, what is wrong and how to fix it.
func (e Error) Error() string { return e.where() + e.Problem + "; fix: " + e.Fix }

func (e Error) where() string {
	var b strings.Builder
	if e.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", e.Line)
	}
	b.WriteString(e.Path)
	if e.Object != "" {
		fmt.Fprintf(&b, " (%s)", e.Object)
	}
	if e.Path != "" {
		b.WriteString(": ")
	}
	return b.String()
}

// Errors is everything that is wrong with a site, in the order of the file.
type Errors []Error

// maxPrinted bounds the text of Errors; the slice itself holds all of them.
const maxPrinted = 100

// Error returns two lines for each of the first 100 errors, and how many there are.
func (e Errors) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "check site: %d error", len(e))
	if len(e) != 1 {
		b.WriteByte('s')
	}
	for i, x := range e {
		if i == maxPrinted {
			fmt.Fprintf(&b, "\n  and %d more", len(e)-i)
			break
		}
		fmt.Fprintf(&b, "\n  %s%s\n    fix: %s", x.where(), x.Problem, x.Fix)
	}
	return b.String()
}

// err returns nil for no errors, so that an empty Errors is never taken for a failure.
func (e Errors) err() error {
	if len(e) == 0 {
		return nil
	}
	return e
}

// quote makes a word of the file safe to print: quoted, and cut after 64 bytes.
func quote[S ~string](s S) string {
	if len(s) > 64 {
		return strconv.Quote(string(s[:64])) + "…"
	}
	return strconv.Quote(string(s))
}

// some lists the first five names, for a message.
func some(names []string) string {
	if len(names) > 5 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:5], ", "), len(names)-5)
	}
	return strings.Join(names, ", ")
}

// objectAt names the object that a path leads through, as a person would: "node n3".
func (s *Site) objectAt(path string) string {
	list, rest, ok := strings.Cut(path, "[")
	if !ok {
		return ""
	}
	digits, _, _ := strings.Cut(rest, "]")
	i, err := strconv.Atoi(digits)
	if err != nil || i < 0 {
		return ""
	}
	var kind, name string
	switch {
	case list == "racks" && i < len(s.Racks):
		kind, name = "rack", string(s.Racks[i].Name)
	case list == "dpus" && i < len(s.DPUs):
		kind, name = "DPU", string(s.DPUs[i].Name)
	case list == "tenants" && i < len(s.Tenants):
		kind, name = "tenant", s.Tenants[i].Name
	case list == "nodes" && i < len(s.Nodes):
		kind, name = "node", s.Nodes[i].Name
	case list == "services" && i < len(s.Services):
		kind, name = "service", s.Services[i].Name
	}
	if problem, _ := checkName(name); problem != "" {
		return ""
	}
	return kind + " " + name
}
