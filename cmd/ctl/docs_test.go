package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"dpud/internal/cli"
	"dpud/pkg/maps"
)

// TestDocs runs every session of docs/ctl.md against the scripted controller, in order, and compares what ctl
// prints. UPDATE=1 writes it.
func TestDocs(t *testing.T) {
	docFile, err := filepath.Abs("../../docs/ctl.md")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(docFile)
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(t)
	var out bytes.Buffer
	kind, sessions := "", 0 // of the block that we are in
	for line := range strings.Lines(string(doc)) {
		text := strings.TrimSuffix(line, "\n")
		directive, isDirective := strings.CutPrefix(text, "<!-- fake ")
		command, isCommand := strings.CutPrefix(text, "$ ctl ")
		switch {
		case kind == "" && isDirective:
			if err := s.fake.do(t.Context(), strings.Fields(strings.TrimSuffix(directive, " -->"))); err != nil {
				t.Fatal(err)
			}
		case strings.HasPrefix(text, "```") && kind == "":
			kind = strings.TrimPrefix(text, "```")
			if kind == "" {
				kind = "none"
			}
		case strings.HasPrefix(text, "```"):
			kind = ""
		case kind == "console" && isCommand:
			sessions++
			out.WriteString(line)
			out.WriteString(s.run(command))
			continue
		case kind == "console":
			continue // what ctl prints now is there already
		case kind == "sh" && strings.HasPrefix(text, "ctl "):
			if got := s.run(strings.TrimPrefix(text, "ctl ") + " --help"); !strings.HasPrefix(got, "NAME:") {
				t.Errorf("docs/ctl.md: %s: %s", text, got)
			}
		}
		out.WriteString(line)
	}
	if sessions < 10 {
		t.Errorf("found %d sessions only", sessions)
	}
	if out.String() == string(doc) {
		return
	}
	if os.Getenv("UPDATE") == "" {
		t.Fatalf("docs/ctl.md differs from what ctl prints (UPDATE=1 writes it):\n%s", diff(string(doc), out.String()))
	}
	if err := os.WriteFile(docFile, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func diff(old, updated string) string {
	return cmp.Diff(strings.Split(old, "\n"), strings.Split(updated, "\n"))
}

// session runs ctl in this process against a scripted controller and a DPU's maps.
type session struct {
	t    *testing.T
	fake *fakeController
	env  cli.Env
	out  *bytes.Buffer
}

func newSession(t *testing.T) *session {
	dir := t.TempDir()
	fake := newFakeController(filepath.Join(dir, "c.sock"))
	if err := fake.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.stop)
	if err := setFakeMode(dir, maps.Enforce); err != nil {
		t.Fatal(err)
	}
	const pin = "/sys/fs/bpf/dpud/d1"
	s := &session{t: t, fake: fake, out: new(bytes.Buffer)}
	s.env = cli.Env{
		Stdin: strings.NewReader(""), Stdout: s.out, Stderr: s.out, Version: "v1.2.3", RunFolder: dir,
		Now: func() time.Time { return testNow },
		Getenv: func(name string) string {
			if name == "DPUD_CONTROLLER" {
				return "unix://" + fake.socket
			}
			return ""
		},
		OpenMaps: func(name string) (cli.Maps, error) {
			if name != pin {
				return nil, fmt.Errorf("open maps in %s: %w", name, maps.ErrNotLoaded)
			}
			return openFakeMaps(dir)
		},
		SetMode: func(_ string, m maps.Mode) error { return setFakeMode(dir, m) },
	}
	t.Chdir("../../docs/examples")
	return s
}

// run returns what a command prints, as it would be on a terminal, and its exit code unless that is 0.
func (s *session) run(command string) string {
	s.out.Reset()
	if code := cli.Run(context.Background(), s.env, strings.Fields(command)); code != 0 {
		fmt.Fprintf(s.out, "(exit code %d)\n", code)
	}
	return strings.ReplaceAll(s.out.String(), "unix://"+s.fake.socket, "unix:///run/dpud/controller.sock")
}
