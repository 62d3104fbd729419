package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// entries reads an archive as the kernel does: fixed headers, and every part padded to 4 bytes.
func entries(t *testing.T, b []byte) []string {
	t.Helper()
	var all []string
	padded := func(n int) int { return (n + 3) &^ 3 }
	number := func(at int) int {
		n, err := strconv.ParseUint(string(b[at:at+8]), 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		return int(n)
	}
	for at := 0; at < len(b); {
		if !bytes.HasPrefix(b[at:], []byte("070701")) {
			t.Fatalf("no header at %d", at)
		}
		mode, size, name := number(at+14), number(at+54), number(at+94)
		data := at + padded(110+name)
		text := string(b[at+110 : at+110+name-1])
		all = append(all, fmt.Sprintf("%s %o %s", text, mode, b[data:data+size]))
		at = data + padded(size)
	}
	return all
}

func TestImage(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	if err := os.WriteFile(source, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	i := &image{}
	i.add("bin/tool", file{source: source, mode: 0o755})
	i.add("plan", file{content: "{}", mode: 0o644})
	if err := i.addTree("none", filepath.Join(dir, "missing")); err != nil {
		t.Error(err)
	}
	path := filepath.Join(dir, "image")
	if err := i.write(path); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"bin 40755 ", "bin/tool 100755 12345", "plan 100644 {}", "TRAILER!!! 0 "}
	if got := entries(t, b); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
