package site

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"dpud/pkg/record"
)

// sameSite compares values, an empty list being the same as none.
var sameSite = []cmp.Option{cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})}

func example(t testing.TB) []byte {
	data, err := os.ReadFile("../../docs/examples/site.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestParse shows files and what is said of them. Golden files: go test -rewrite.
func TestParse(t *testing.T) {
	datadriven.Walk(t, "testdata/parse", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "parse" {
				t.Fatalf("unknown command %s", d.Cmd)
			}
			return parseText(d.Input)
		})
	})
}

func parseText(file string) string {
	s, err := Parse([]byte(file))
	if err != nil {
		return err.Error() + "\n"
	}
	out, err := Format(s)
	if err != nil {
		return err.Error() + "\n"
	}
	return string(out)
}

func TestCompareStories(t *testing.T) {
	datadriven.RunTest(t, "testdata/compare/stories", func(t *testing.T, d *datadriven.TestData) string {
		before, after, ok := strings.Cut(d.Input, "\n=>\n")
		if !ok || d.Cmd != "compare" {
			t.Fatalf("want compare with two files around =>")
		}
		old, updated := mustParse(t, before), mustParse(t, after)
		var b strings.Builder
		for _, c := range Compare(old, updated) {
			fmt.Fprintln(&b, c)
		}
		return b.String()
	})
}

func mustParse(t *testing.T, file string) *Site {
	t.Helper()
	if strings.TrimSpace(file) == "nothing" {
		return nil
	}
	s, err := Parse([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestExample(t *testing.T) {
	s, err := Parse(example(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Racks) != 1 || len(s.DPUs) != 2 || len(s.Tenants) != 2 || len(s.Nodes) != 4 || len(s.Services) != 1 {
		t.Errorf("have %+v", s)
	}
	n := s.Node("n3")
	if n == nil || n.DPUs[0] != (record.NodePort{DPU: "d2", Port: "n34", VLAN: 3}) || n.MAC != (record.MAC{2, 0, 0, 0, 0, 3}) {
		t.Errorf("n3 is %+v", n)
	}
}

// TestDocs holds docs/site-file.md to what the code does: its first YAML block is the example, and each later
// one is followed by a text block with what Parse says of it.
func TestDocs(t *testing.T) {
	doc, err := os.ReadFile("../../docs/site-file.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(doc), "\n```yaml\n")[1:]
	if len(blocks) < 2 {
		t.Fatalf("%d YAML blocks, want the example and a wrong file", len(blocks))
	}
	first, _, _ := strings.Cut(blocks[0], "\n```\n")
	if diff := cmp.Diff(strings.TrimSpace(string(example(t))), first); diff != "" {
		t.Errorf("example in the document (-file +document):\n%s", diff)
	}
	for _, b := range blocks[1:] {
		file, rest, _ := strings.Cut(b, "\n```\n")
		_, text, _ := strings.Cut(rest, "```text\n")
		text, _, _ = strings.Cut(text, "```\n")
		if diff := cmp.Diff(parseText(file+"\n"), text); diff != "" {
			t.Errorf("errors in the document (-said +document):\n%s", diff)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	odd := base()
	odd.Nodes[3].DPUs[0].Port = "0x10" // a number, if it were not quoted
	odd.Nodes[0].Name, odd.Tenants[0].Name, odd.Racks[1].Name = "null", "yes", "r2"
	odd.Nodes[0].SharedPort = true
	for _, s := range []*Site{base(), odd, {Name: "1e3"}} {
		checkRoundTrip(t, s)
	}
}

func checkRoundTrip(t *testing.T, s *Site) {
	t.Helper()
	out, err := Format(s)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse(out)
	if err != nil {
		t.Fatalf("parse what was formatted: %v\n%s", err, out)
	}
	if diff := cmp.Diff(s, again, sameSite...); diff != "" {
		t.Errorf("round trip (-before +after):\n%s", diff)
	}
	if changes := Compare(s, again); len(changes) > 0 {
		t.Errorf("round trip changes %v", changes)
	}
}

func TestErrors(t *testing.T) {
	_, err := Parse([]byte("site: x\nracks: [{name: R}]"))
	var errs Errors
	if !errors.As(err, &errs) || len(errs) != 1 {
		t.Fatalf("want one of Errors, have %#v", err)
	}
	if want := `line 2: racks[0].name: "R" is not a name; fix: ` + nameFix; errs[0].Error() != want {
		t.Errorf("have %s\nwant %s", errs[0], want)
	}
	if s, err := Parse(example(t)); err != nil || s == nil {
		t.Errorf("a sound file gives %v, %v", s, err)
	}

	many := make(Errors, maxPrinted+7)
	if text := many.Error(); !strings.HasSuffix(text, "\n  and 7 more") || strings.Count(text, "\n") != 2*maxPrinted+1 {
		t.Errorf("have\n%s", text)
	}
}

// TestBounds is files that would cost much more than their size.
func TestBounds(t *testing.T) {
	aliases := "site: &a [x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c < 'k'; c++ {
		aliases += fmt.Sprintf("%c: &%c [*%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c]\n", c, c, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1)
	}
	for name, test := range map[string]struct{ file, want string }{
		"aliases":  {aliases, "anchors and aliases"},
		"deep":     {"site: " + strings.Repeat("[", 20000), "this is not YAML: exceeded max depth"},
		"too long": {"site: x #" + strings.Repeat(" ", MaxBytes), "the file has"},
		"long key": {"site: x\n" + strings.Repeat("k", 1000) + ": 1\n", "unknown key"},
		"binary":   {"site: x\x00\xff", "this is not YAML"},
	} {
		_, err := Parse([]byte(test.file))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: want %q, have %v", name, test.want, err)
		} else if len(err.Error()) > 4000 {
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		}
	}
}

// FuzzParse: nothing panics, and what parses is sound and survives a round trip.
func FuzzParse(f *testing.F) {
	f.Add(example(f))
	files, err := os.ReadDir("testdata/parse")
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range files {
		data, err := os.ReadFile("testdata/parse/" + e.Name())
		if err != nil {
			f.Fatal(err)
		}
		for _, block := range bytes.Split(data, []byte("\n\n")) {
			input, _, _ := bytes.Cut(bytes.TrimPrefix(block, []byte("parse\n")), []byte("\n----\n"))
			f.Add(input)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse(data)
		if err != nil {
			_ = err.Error()
			return
		}
		if errs := s.Validate(); len(errs) > 0 {
			t.Fatalf("parsed, yet wrong: %v", errs)
		}
		if changes := Compare(s, s); len(changes) > 0 {
			t.Fatalf("differs from itself: %v", changes)
		}
		checkRoundTrip(t, s)
	})
}

// BenchmarkParse reads a site of 10,000 nodes.
func BenchmarkParse(b *testing.B) {
	data, err := Format(large(10000))
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := Parse(data); err != nil {
			b.Fatal(err)
		}
	}
}
