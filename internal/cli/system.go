package cli

import (
	"context"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"dpud/pkg/controller"
	"dpud/pkg/maps"
)

// System is the environment of the process: its streams, its terminal, this machine's pinned maps.
// linked is the version that the linker set, or "".
func System(linked string) Env {
	env := Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Now: time.Now,
		Version: buildVersion(linked), PinRoot: DefaultPinRoot, RunFolder: "/run/dpud",
		OpenMaps:   func(pin string) (Maps, error) { return maps.OpenTables(pin) },
		SetMode:    maps.SetMode,
		Controller: controller.Run,
	}
	_, err := unix.IoctlGetTermios(int(os.Stdin.Fd()), unix.TCGETS)
	env.StdinTTY = err == nil
	if size, err := unix.IoctlGetWinsize(int(os.Stderr.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
		env.Columns = int(size.Col)
	}
	return env
}

// Main runs the process's command line until it is done or the process is told to stop, and returns the exit
// code. A second signal ends the process at once.
func Main(env Env) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return Run(ctx, env, os.Args[1:])
}
