package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func open(t *testing.T, cfg Config) *Store {
	t.Helper()
	cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// shortDir is a directory whose path leaves room for the name of a unix socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dpud")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// TestContract runs on an embedded etcd, and on the same one as a cluster that is reached over a socket.
func TestContract(t *testing.T) {
	dir := shortDir(t)
	embedded := open(t, Config{DataDir: dir})
	remote := open(t, Config{Endpoints: []string{"unix://" + filepath.Join(dir, "etcd.sock")}})
	for name, s := range map[string]*Store{"embedded": embedded, "cluster": remote} {
		t.Run(name, func(t *testing.T) {
			contract := func(what string, f func(*testing.T, *Store, *KV)) {
				t.Run(what, func(t *testing.T) { f(t, s, s.Prefix("/"+t.Name()+"/")) })
			}
			contract("commit", testCommit)
			contract("conflict", testConflict)
			contract("list", testList)
			contract("watch", testWatch)
			contract("compacted", testCompacted)
			contract("large", testLarge)
		})
	}
}

func mustCommit(t *testing.T, kv *KV, txn Txn) int64 {
	t.Helper()
	r, err := kv.Commit(t.Context(), txn)
	if err != nil || !r.OK {
		t.Fatalf("commit: %+v, %v", r, err)
	}
	return r.Revision
}

func put(k, v string) map[string][]byte { return map[string][]byte{k: []byte(v)} }

func testCommit(t *testing.T, _ *Store, kv *KV) {
	r1 := mustCommit(t, kv, Txn{If: map[string]int64{"a": 0}, Put: put("a", "1")})
	r2 := mustCommit(t, kv, Txn{If: map[string]int64{"a": r1, "b": 0}, Put: map[string][]byte{"a": []byte("2"), "b": {}}})
	if r2 <= r1 {
		t.Fatalf("revision %d after %d", r2, r1)
	}
	got, revision, err := kv.List(t.Context(), "", 0)
	if err != nil || revision < r2 {
		t.Fatalf("list at %d, want at least %d: %v", revision, r2, err)
	}
	if diff := cmp.Diff([]KeyValue{{"a", []byte("2"), r2}, {"b", []byte{}, r2}}, got); diff != "" {
		t.Fatal(diff)
	}
}

func testConflict(t *testing.T, _ *Store, kv *KV) {
	r1 := mustCommit(t, kv, Txn{Put: put("a", "1")})
	r, err := kv.Commit(t.Context(), Txn{If: map[string]int64{"a": r1 - 1, "b": 7, "c": 0}, Put: put("a", "2"), Delete: []string{"b"}})
	if err != nil || r.OK {
		t.Fatalf("a stale transaction got through: %+v, %v", r, err)
	}
	want := []KeyValue{{"a", []byte("1"), r1}, {"b", nil, r.Revision}, {"c", nil, r.Revision}}
	if diff := cmp.Diff(want, r.Found); diff != "" {
		t.Fatal(diff)
	}
	r3 := mustCommit(t, kv, Txn{If: map[string]int64{"a": r1}, Delete: []string{"a"}})
	if got, revision, err := kv.List(t.Context(), "", 0); err != nil || len(got) != 0 || revision < r3 {
		t.Fatalf("after deletion: %v at %d, %v", got, revision, err)
	}
}

func testList(t *testing.T, _ *Store, kv *KV) {
	r1 := mustCommit(t, kv, Txn{Put: put("x/1", "a")})
	r2 := mustCommit(t, kv, Txn{Put: put("x/2", "b")})
	mustCommit(t, kv, Txn{Put: put("y/1", "c")})
	got, _, err := kv.List(t.Context(), "x/", r1)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]KeyValue{{"x/2", []byte("b"), r2}}, got); diff != "" {
		t.Fatal(diff)
	}
}

func testWatch(t *testing.T, _ *Store, kv *KV) {
	r1 := mustCommit(t, kv, Txn{Put: put("a", "1")})
	ch := kv.Watch(t.Context(), r1)
	r2 := mustCommit(t, kv, Txn{Put: put("b", "2")})
	r3 := mustCommit(t, kv, Txn{Delete: []string{"a"}})
	var got []KeyValue
	for len(got) < 2 {
		b := <-ch
		if b.Err != nil || b.All {
			t.Fatalf("batch %+v", b)
		}
		got = append(got, b.Changes...)
	}
	if diff := cmp.Diff([]KeyValue{{"b", []byte("2"), r2}, {"a", nil, r3}}, got); diff != "" {
		t.Fatal(diff)
	}
}

func testCompacted(t *testing.T, s *Store, kv *KV) {
	r1 := mustCommit(t, kv, Txn{Put: put("a", "1")})
	r2 := mustCommit(t, kv, Txn{Put: put("b", "2")})
	r3 := mustCommit(t, kv, Txn{Delete: []string{"a"}})
	if _, err := s.client.Compact(t.Context(), r3); err != nil {
		t.Fatal(err)
	}
	ch := kv.Watch(t.Context(), r1)
	b := <-ch
	if b.Err != nil || !b.All || b.Revision < r3 {
		t.Fatalf("batch %+v", b)
	}
	if diff := cmp.Diff([]KeyValue{{"b", []byte("2"), r2}}, b.Changes); diff != "" {
		t.Fatal(diff)
	}
	r4 := mustCommit(t, kv, Txn{Put: put("c", "3")})
	if b := <-ch; b.All || len(b.Changes) != 1 || b.Changes[0].Revision != r4 {
		t.Fatalf("after the list: %+v", b)
	}
}

// testLarge puts a site of many nodes at once.
func testLarge(t *testing.T, _ *Store, kv *KV) {
	const nodes = 10_000
	txn := Txn{If: make(map[string]int64), Put: make(map[string][]byte)}
	for i := range nodes {
		key := fmt.Sprintf("node/%06d", i)
		txn.If[key] = 0
		txn.Put[key] = bytes.Repeat([]byte("x"), 400)
	}
	mustCommit(t, kv, txn)
	if got, _, err := kv.List(t.Context(), "node/", 0); err != nil || len(got) != nodes {
		t.Fatalf("listed %d of %d: %v", len(got), nodes, err)
	}
}

func TestReopen(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(t.Context(), Config{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	r1 := mustCommit(t, s.Prefix("/p/"), Txn{Put: put("a", "1")})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	got, _, err := open(t, Config{DataDir: dir}).Prefix("/p/").List(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]KeyValue{{"a", []byte("1"), r1}}, got); diff != "" {
		t.Fatal(diff)
	}
}

func TestOpenRefusals(t *testing.T) {
	busy := t.TempDir()
	open(t, Config{DataDir: busy})
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close() // nobody listens there now
	for name, c := range map[string]struct {
		cfg  Config
		is   error
		says string
	}{
		"busy":        {Config{DataDir: busy}, ErrLocked, "another controller"},
		"not a dir":   {Config{DataDir: file}, nil, "not usable"},
		"no place":    {Config{DataDir: "/proc/none"}, nil, "not usable"},
		"unreachable": {Config{Endpoints: []string{l.Addr().String()}}, ErrUnavailable, "does not answer"},
		"nothing":     {Config{}, nil, "give a data directory"},
		"both":        {Config{DataDir: busy, Endpoints: []string{"x"}}, nil, "not both"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Open(t.Context(), c.cfg)
			if err == nil {
				_ = s.Close()
				t.Fatal("opened")
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("error %q is not %q", err, c.is)
			}
			if !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q does not say %q in one line", err, c.says)
			}
		})
	}
}

// TestCanceled: a request whose caller has gone is not taken for an outage.
func TestCanceled(t *testing.T) {
	kv := open(t, Config{DataDir: t.TempDir()}).Prefix("/p/")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := kv.Commit(ctx, Txn{Put: put("a", "1")}); !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnavailable) {
		t.Fatalf("commit: %v", err)
	}
}
