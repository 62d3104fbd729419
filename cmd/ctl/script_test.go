package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"dpud/internal/cli"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"ctl": func() {
		env := cli.System("v1.2.3")
		if os.Getenv("FAKE_MAPS") != "" {
			env.PinRoot, env.RunFolder = os.Getenv("FAKE_MAPS"), os.Getenv("FAKE_MAPS")
			env.OpenMaps, env.SetMode = openFakeMaps, setFakeMode
			env.Now = func() time.Time { return testNow }
		}
		os.Exit(cli.Main(env))
	}})
}

// TestScripts runs ctl as a process against a scripted controller.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/fake",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE") != "",
		Setup: func(e *testscript.Env) error {
			f := newFakeController(filepath.Join(e.WorkDir, "controller.sock"))
			if err := f.start(); err != nil {
				return err
			}
			e.Defer(f.stop)
			e.Values[fakeKey{}] = f
			e.Setenv("DPUD_CONTROLLER", "unix://"+f.socket)
			e.Setenv("FAKE_MAPS", filepath.Join(e.WorkDir, "pins"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits,
			"fake": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(ts.Value(fakeKey{}).(*fakeController).do(t.Context(), args))
			},
		},
	})
}

type fakeKey struct{}

// exits CODE ctl ARGS… runs ctl, and wants this exit code.
func exits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	var (
		exit *exec.ExitError
		got  int
	)
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}
