package cli

import (
	"strings"
	"testing"
)

func TestArrange(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"assign n1 t1", "assign -- n1 t1"},
		{"assign n1 t1 --no-wait", "assign --no-wait -- n1 t1"},
		{"assign n1 --timeout 5s t1 --no-wait -o json", "--timeout 5s -o json assign --no-wait -- n1 t1"},
		{"-o json get nodes --controller=unix:///x", "-o json --controller=unix:///x get nodes"},
		{"get -o json nodes", "-o json get nodes"},
		{"apply -f - --dry-run", "apply -f - --dry-run"},
		{"map dump --map a --map b", "map dump --map a --map b"},
		{"reclaim -- --no-wait", "reclaim -- --no-wait"},
		{"reclaim --help", "reclaim --help"},
		{"", ""},
	} {
		root := (&app{}).root()
		root.Setup()
		got, err := arrange(root, strings.Fields(tt.in))
		if err != nil || strings.Join(got, " ") != tt.want {
			t.Errorf("arrange %q: got %q (%v), want %q", tt.in, strings.Join(got, " "), err, tt.want)
		}
	}
}

// Whatever the command line, it is taken or refused with a message, and nothing that was typed gets lost.
func FuzzArrange(f *testing.F) {
	f.Add("assign n1 t1 --no-wait -o json")
	f.Add("-- - --- -= --=x = get")
	f.Fuzz(func(t *testing.T, line string) {
		root := (&app{}).root()
		root.Setup()
		words := strings.Fields(line)
		got, err := arrange(root, words)
		if err != nil {
			if exitCode(err) != exitUsage || err.Error() == "" {
				t.Fatalf("arrange %q: %v with exit code %d", words, err, exitCode(err))
			}
			return
		}
		left := map[string]int{}
		for _, w := range got {
			left[w]++
		}
		for _, w := range words {
			left[w]--
			if left[w] < 0 && w != "--" {
				t.Fatalf("arrange %q: %q lost %q", words, got, w)
			}
		}
	})
}
