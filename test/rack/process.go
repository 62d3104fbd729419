package rack

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"

	"github.com/vishvananda/netns"
)

// Process is a program of the rack that runs in a namespace and can be started again and again. Its output
// is appended to one log file. It is safe for concurrent use.
type Process struct {
	Name string
	// LogPath is the file that holds the standard output and error of every run.
	LogPath string

	ns   *Namespace
	path string
	args []string

	mu     sync.Mutex
	cmd    *exec.Cmd     // nil while it does not run
	exited chan struct{} // closed when cmd has ended
	err    error         // how the last run ended
}

func newProcess(ns *Namespace, name, dir, path string, args ...string) *Process {
	return &Process{Name: name, LogPath: filepath.Join(dir, name+".log"), ns: ns, path: path, args: args}
}

// Start runs the program. Starting one that runs is an error.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		return fmt.Errorf("start %s: it runs already", p.Name)
	}
	log, err := os.OpenFile(p.LogPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(p.path, p.args...)
	cmd.Stdout, cmd.Stderr = log, log
	// The kernel kills the program when the thread that started it ends, so that a test which crashes
	// leaves none behind. That thread therefore waits for it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, exited := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		err := netns.Set(p.ns.handle)
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err != nil {
			return
		}
		err = cmd.Wait()
		p.mu.Lock()
		p.cmd, p.err = nil, err
		p.mu.Unlock()
		close(exited)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	p.cmd, p.exited = cmd, exited
	return nil
}

// Signal sends a signal, and does not wait for what it does. A program that does not run is no error.
func (p *Process) Signal(s os.Signal) error {
	p.mu.Lock()
	cmd := p.cmd
	p.mu.Unlock()
	if cmd == nil {
		return nil
	}
	if err := cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.Name, err)
	}
	return nil
}

// Stop sends a signal that ends the program (SIGKILL, SIGTERM) and waits until it has ended.
func (p *Process) Stop(s os.Signal) error {
	if err := p.Signal(s); err != nil {
		return err
	}
	p.Wait()
	return nil
}

// Restart ends the program with a signal and starts it again.
func (p *Process) Restart(s os.Signal) error {
	if err := p.Stop(s); err != nil {
		return err
	}
	return p.Start()
}

// Wait blocks until the program does not run and returns how its last run ended.
func (p *Process) Wait() error {
	p.mu.Lock()
	exited, running := p.exited, p.cmd != nil
	p.mu.Unlock()
	if running {
		<-exited
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Running says whether the program runs.
func (p *Process) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd != nil
}

// Log returns what the program has printed so far.
func (p *Process) Log() string {
	b, err := os.ReadFile(p.LogPath)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
