package maps

import (
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// Every enumerator of bpf/types.h has its description, under its own name and number.
func TestReasonsMatchBTF(t *testing.T) {
	spec, err := loadDatapath()
	if err != nil {
		t.Fatal(err)
	}
	var enum *btf.Enum
	if err := spec.Types.TypeByName("drop_reason", &enum); err != nil {
		t.Fatal(err)
	}
	if len(descriptions) != len(enum.Values)-1 {
		t.Errorf("%d descriptions of %d reasons", len(descriptions), len(enum.Values)-1)
	}
	for i, v := range enum.Values {
		if v.Name == "DROP_REASONS" {
			if i != len(enum.Values)-1 {
				t.Error("DROP_REASONS is not last")
			}
			continue
		}
		r := Reason(v.Value)
		want := strings.ToLower(strings.TrimPrefix(v.Name, "DROP_"))
		if r.Label() != want {
			t.Errorf("%s (%d): label %q, want %q", v.Name, v.Value, r.Label(), want)
		}
		if r.Dropped() != strings.HasPrefix(v.Name, "DROP_") {
			t.Errorf("%s: dropped is %v", v.Name, r.Dropped())
		}
		for _, s := range []string{r.Sentence(), r.Fix()} {
			if !strings.HasSuffix(s, ".") || strings.ToUpper(s[:1]) != s[:1] {
				t.Errorf("%s: %q is no sentence", v.Name, s)
			}
		}
	}
}

func TestReasonsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/data-plane.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for line := range strings.Lines(string(page)) {
		if label, _, ok := strings.Cut(strings.TrimPrefix(line, "| `"), "` |"); ok && strings.HasPrefix(line, "| `") {
			rows = append(rows, label)
		}
	}
	for r := range Reasons() {
		if row := "| `" + r.Label() + "` | " + r.Sentence() + " | " + r.Fix() + " |"; !strings.Contains(string(page), row+"\n") {
			t.Errorf("docs/data-plane.md lacks the row\n%s", row)
		}
	}
	spec, err := loadDatapath()
	if err != nil {
		t.Fatal(err)
	}
	for name := range spec.Maps {
		if !strings.HasPrefix(name, ".") && !strings.Contains(strings.Join(rows, " "), name) {
			t.Errorf("docs/data-plane.md lacks the map %s", name)
		}
	}
}
