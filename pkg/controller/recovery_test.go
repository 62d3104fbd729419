package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/control/management"
	"dpud/pkg/record"
	"dpud/pkg/store"
)

// childEnv makes the test binary a controller in the directory given, to be killed.
const childEnv = "DPUD_TEST_CONTROLLER_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		err := Run(context.Background(), Config{
			DataDir: filepath.Join(dir, "data"), Listen: []string{"unix://" + filepath.Join(dir, "api.sock")},
			Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		})
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// spawn runs the controller in a process of its own, and returns how to kill it with signal 9.
func (w *world) spawn() (kill func()) {
	w.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+w.dir)
	cmd.Stderr = w.t.Output()
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	w.t.Cleanup(kill)
	eventually(w.t, "the controller answers", func() bool {
		_, err := w.client.Version(w.t.Context(), connect.NewRequest(&dpudv1.VersionRequest{}))
		return err == nil
	})
	w.connect()
	return kill
}

// TestKilledController kills the controller at each step of a reclaim; the next one completes it.
func TestKilledController(t *testing.T) {
	w := newWorld(t)
	kill := w.spawn()
	w.apply()
	d1, d2 := w.dpu("d1"), w.dpu("d2")
	w.assign("n1", "t1")
	kill() // while it is being programmed
	kill = w.spawn()
	w.await("n1", programmed)

	d1.freeze(true)
	d2.freeze(true)
	w.reclaim("n1")
	kill() // revoked, nothing confirmed
	kill = w.spawn()
	w.await("n1", waitsFor("d1", "d2"))

	d1.freeze(false)
	w.await("n1", waitsFor("d2"))
	kill() // revoked, one has confirmed
	kill = w.spawn()
	w.await("n1", waitsFor("d2"))
	if d1.tenant(1) != 0 || d2.tenant(1) == 0 {
		t.Fatal("the stage is not as planned")
	}

	sequence := w.node("n1").GetDpus()[1].GetSequence() + 1
	kill() // both have confirmed, the guard has not run: what it would find is written by hand
	w.confirmInStore(d2, sequence)
	kill = w.spawn()
	w.await("n1", free)

	d2.kill() // its count of confirmations knows nothing of the one written by hand; a new boot's starts anew
	d2 = startDPU(t, "d2", dpuOptions{controller: w.socket(), kernel: d2.kernel})
	w.assign("n1", "t2")
	w.await("n1", programmed)
	if d1.tenant(1) != 2 || d2.tenant(1) != 2 {
		t.Fatal("not programmed")
	}
	kill()
}

// confirmInStore writes what d's next confirmation of node 1 would, into the store of a dead controller.
func (w *world) confirmInStore(d *fakeDPU, sequence uint64) {
	w.t.Helper()
	d.mu.Lock()
	grants := d.core.Grants()
	boot, _, _ := d.core.Lease()
	d.mu.Unlock()
	s, err := store.Open(w.t.Context(), store.Config{DataDir: w.cfg.DataDir})
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			w.t.Error(err)
		}
	}()
	f := &management.Confirmation{At: time.Now(), Confirmation: record.Confirmation{
		DPU: d.name, Node: 1, Boot: boot, Sequence: sequence, State: record.Cleared,
		Epoch: grants[0].Epoch, Generation: grants[0].Generation, Revision: grants[0].Revision + 1,
	}}
	b, err := json.Marshal(f)
	if err != nil {
		w.t.Fatal(err)
	}
	if res, err := s.Prefix(managementPrefix).Commit(w.t.Context(), store.Txn{Put: map[string][]byte{string(f.Key()): b}}); err != nil || !res.OK {
		w.t.Fatal(res, err)
	}
}

// TestKilledAnywhere kills the controller at random instants of reclaims.
func TestKilledAnywhere(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t)
	kill := w.spawn()
	w.apply()
	w.dpu("d1")
	w.dpu("d2")
	rounds := 6
	if testing.Short() {
		rounds = 2
	}
	for range rounds {
		w.assign("n1", "t1")
		w.await("n1", programmed)
		time.AfterFunc(time.Duration(random.Int64N(int64(15*time.Millisecond))), kill)
		// Whether this is answered, and whether it was committed, is chance.
		_, _ = w.client.Reclaim(t.Context(), connect.NewRequest(&dpudv1.ReclaimRequest{Node: "n1"}))
		kill()
		kill = w.spawn()
		w.reclaim("n1") // asks for nothing if the first was committed
		w.await("n1", free)
	}
	kill()
}

// TestStartRefusals: whatever keeps a controller from starting is one clear sentence.
func TestStartRefusals(t *testing.T) {
	w := newWorld(t).start()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	file := filepath.Join(w.dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	other, local := filepath.Join(w.dir, "other"), []string{"127.0.0.1:0"}
	for name, c := range map[string]struct {
		cfg  Config
		says string
	}{
		"port taken":     {Config{DataDir: other, Listen: []string{l.Addr().String()}}, "another process listens there"},
		"socket taken":   {Config{DataDir: other, Listen: w.cfg.Listen}, "another process listens there"},
		"not a socket":   {Config{DataDir: other, Listen: []string{"unix://" + file}}, "not a socket"},
		"no address":     {Config{DataDir: other}, "no address to listen on"},
		"data dir taken": {Config{DataDir: w.cfg.DataDir, Listen: local}, "another controller is running on data directory"},
		"data dir file":  {Config{DataDir: file, Listen: local}, "is not usable"},
		"no store":       {Config{Listen: local}, "give a data directory or etcd endpoints"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Run(t.Context(), c.cfg)
			if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q does not say %q in one line", err, c.says)
			}
		})
	}
}

// leaseSees checks that w's leases hold what another controller has just committed.
func (w *world) leaseSees(other *world) {
	w.t.Helper()
	check := func(node record.NodeID, phase record.Phase) {
		w.t.Helper()
		l, err := w.c.lease(w.t.Context(), &record.LeaseRequest{DPU: "d1", Instance: "probe", HardwareID: "hw-d1", Nonce: 1})
		if err != nil || l.Refused != "" {
			w.t.Fatal(l, err)
		}
		for _, g := range l.Grants {
			if g.Node == node && g.Phase == phase {
				return
			}
		}
		w.t.Fatalf("the lease has no %s grant of node %d: %v", phase, node, l.Grants)
	}
	for _, node := range []record.NodeID{2, 3, 4} {
		name := fmt.Sprintf("n%d", node)
		other.assign(name, "t1")
		check(node, record.Granted)
		other.reclaim(name)
		check(node, record.Revoked)
	}
}

// TestTwoControllers run on one etcd; DPUs and operators use either.
func TestTwoControllers(t *testing.T) {
	dir, err := os.MkdirTemp("", "dpud")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	etcd, err := store.Open(t.Context(), store.Config{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = etcd.Close() })
	var worlds [2]*world
	for i := range worlds {
		w := newWorld(t)
		w.cfg.DataDir, w.cfg.EtcdEndpoints = "", []string{"unix://" + filepath.Join(dir, "etcd.sock")}
		worlds[i] = w.start()
	}
	a, b := worlds[0], worlds[1]
	if a.c.site != b.c.site {
		t.Fatalf("sites %s and %s", a.c.site, b.c.site)
	}
	a.apply()
	b.leaseSees(a)
	d1, d2 := a.dpu("d1"), b.dpu("d2")
	b.assign("n1", "t1") // just applied through the other
	a.await("n1", programmed)
	b.await("n1", programmed)
	for range 10 {
		a.reclaim("n1")
		b.await("n1", free)
		b.assign("n1", "t2")
		a.await("n1", programmed)
	}
	// Both assign at once: one of them wins.
	a.reclaim("n1")
	b.await("n1", free)
	errs := make(chan error, 2)
	for i, w := range worlds {
		go func() {
			_, err := w.client.Assign(t.Context(), connect.NewRequest(&dpudv1.AssignRequest{Node: "n1", Tenant: fmt.Sprintf("t%d", i+1)}))
			errs <- err
		}()
	}
	first, second := <-errs, <-errs
	if (first == nil) == (second == nil) {
		t.Fatalf("two assignments at once: %v and %v", first, second)
	}
	s := a.await("n1", programmed)
	want := record.TenantID(1)
	if s.GetTenant() == "t2" {
		want = 2
	}
	if d1.tenant(1) != want || d2.tenant(1) != want {
		t.Fatalf("assigned to %s, programmed for %d and %d", s.GetTenant(), d1.tenant(1), d2.tenant(1))
	}
	// With the first gone, the second carries on with the DPU that it reaches.
	b.stop()
	a.reclaim("n1")
	a.await("n1", waitsFor("d2"))
}
