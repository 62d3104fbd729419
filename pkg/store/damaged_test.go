package store

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDamagedFiles: a damaged data directory is an error of one sentence, and another start is not locked out.
func TestDamagedFiles(t *testing.T) {
	dir := shortDir(t)
	wal := filepath.Join(dir, "etcd", "member", "wal")
	if err := os.MkdirAll(wal, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(wal, "0000000000000000-0000000000000000.wal"), []byte(strings.Repeat("garbage ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), Config{DataDir: dir, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err == nil || !strings.Contains(err.Error(), "may be damaged: put a backup in their place") || strings.Contains(err.Error(), "\n") {
		t.Fatalf("open damaged store: %v", err)
	}
	t.Log(err)
	lock, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	_ = lock.Close()
}
