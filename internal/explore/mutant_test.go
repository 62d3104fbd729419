package explore

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mutants are the real cores with one guard taken out, and the property that must then break. They are
// compiled through an overlay and never part of a build.
var mutants = []struct {
	name, file, old, new string
	caught               string
}{
	{
		"R1 the guard frees a node that a DPU still has", "management/core.go",
		"return f != nil && f.State == record.Cleared && f.Epoch == g.Epoch && f.Generation == g.Generation",
		"_ = f; return true", "FreeIsClear",
	},
	{
		"R1 the guard takes another generation's proof", "management/core.go",
		"f.Epoch == g.Epoch && f.Generation == g.Generation\n}", "f.Epoch == g.Epoch\n}", "FreeIsClear",
	},
	{
		"R1 the guard takes programmed for cleared", "management/core.go",
		"f.State == record.Cleared &&", "", "FreeIsClear",
	},
	{
		"R2 a DPU programs from an entry whose grant is revoked", "agent/plan.go",
		"if g == nil || g.Phase != record.Granted {", "if g == nil {", "FreeIsClear|ClearedIsFinal|Owner",
	},
	{
		"R2 a DPU programs from an entry of an earlier generation", "agent/plan.go",
		"if !designated || e == nil || e.Deleted || e.Epoch != g.Epoch || e.Generation != g.Generation {",
		"if !designated || e == nil || e.Deleted {", "EntryNarrows",
	},
	{
		"R3 a restarted DPU adds without a lease", "agent/plan.go",
		"case differs, blocked, len(puts) > 0 && !c.held:", "case differs, blocked:", "FreeIsClear|ClearedIsFinal|Owner",
	},
	{
		"R3 an answer to an earlier request is a lease", "agent/lease.go",
		"l.Instance != c.cfg.Instance || l.Nonce != c.nonce || c.asked.IsZero()", "false", "FreeIsClear|ClearedIsFinal|Owner",
	},
	{
		"a node that is not free is assigned", "management/core.go",
		"case old.Phase == record.Revoked:", "case false:", "FreeIsClear|Owner|TenantIsolation",
	},
	{
		"additions do not wait for the barrier", "agent/plan.go",
		"if deletes || c.unsettled && (len(s.states)+len(s.puts)+len(s.verify) > 0) {", "if deletes {", "Completes|BarrierFirst",
	},
	{
		"a deletion asks for no barrier", "agent/agent.go",
		"c.unsettled = c.unsettled || op.Key.Map != table.NodeState", "", "BarrierFirst|ClearedIsFinal",
	},
	{
		"a restarted dpud trusts its predecessor's barrier", "agent/agent.go",
		"failed: make(map[NodeID]struct{}), unsettled: true,", "failed: make(map[NodeID]struct{}),", "BarrierFirst|ClearedIsFinal",
	},
	{
		"cleared is confirmed with an unguarded port", "agent/confirm.go",
		"case state == record.Cleared && unguarded != nil:", "case false:", "GuardedProof",
	},
	{
		"a node without a record is removed", "agent/plan.go",
		"if g == nil {\n\t\treturn false\n\t}\n\tif g.Version()", "if g == nil {\n\t\treturn true\n\t}\n\tif g.Version()", "Adopts",
	},
	{
		"older news replaces what the kernel holds", "agent/plan.go",
		"return order > 0 || order == 0 && g.Phase == record.Granted && state.Revision > g.Revision", "_ = order; return false", "Adopts",
	},
	{
		"an older grant replaces a newer one", "agent/agent.go",
		"if old != nil && record.Newest(old, r) == old {\n\t\t\treturn false", "if old != nil && false {\n\t\t\treturn false", "FreeIsClear|ClearedIsFinal|Owner",
	},
	{
		"a tenant deletes an entry that is newer than the grant it heard", "tenant/tenant.go",
		"case order > 0:", "case false:", "Completes|Adopts",
	},
	{
		"a tenant forgets to renew an entry of an earlier generation", "tenant/tenant.go",
		"case ours && order < 0:", "case false:", "Completes",
	},
}

// TestMutants shows that the walk can find bugs: each guard that is taken out of the real cores is missed.
func TestMutants(t *testing.T) {
	if inMutant() {
		t.Skip("runs inside a mutant")
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			path, err := filepath.Abs(filepath.Join("../../pkg/control", m.file))
			if err != nil {
				t.Fatal(err)
			}
			source, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(source), m.old); n != 1 {
				t.Fatalf("%s has the guard %q %d times, want once: update the mutant", m.file, m.old, n)
			}
			dir := t.TempDir()
			mutant := filepath.Join(dir, "mutant.go")
			overlay := filepath.Join(dir, "overlay.json")
			write(t, mutant, []byte(strings.Replace(string(source), m.old, m.new, 1)))
			b, err := json.Marshal(map[string]map[string]string{"Replace": {path: mutant}})
			if err != nil {
				t.Fatal(err)
			}
			write(t, overlay, b)
			cmd := exec.Command("go", "test", "-overlay", overlay, "-count=1", "-timeout=60s", "-run", "^(TestWalk|TestStories)$", ".")
			cmd.Env = append(os.Environ(), "DPUD_MUTANT=1")
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatal("survived: no property caught it")
			}
			if bytes.Contains(out, []byte("[build failed]")) {
				t.Fatalf("does not build:\n%s", out)
			}
			line := caughtBy(out)
			if line == "" {
				t.Fatalf("died without a property:\n%s", out)
			}
			t.Log(line)
			for _, p := range strings.Split(m.caught, "|") {
				if strings.Contains(line, p) {
					return
				}
			}
			t.Errorf("caught by another property than %s", m.caught)
		})
	}
}

// inMutant says whether the test runs on a mutant.
func inMutant() bool { return os.Getenv("DPUD_MUTANT") != "" }

// caughtBy returns the lines of a test's output that name the properties that broke.
func caughtBy(out []byte) string {
	var lines []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "seed ") || strings.Contains(line, "BROKEN") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return strings.Join(lines, "\n")
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
