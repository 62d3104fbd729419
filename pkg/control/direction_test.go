// Package control_test checks that the cores stay pure.
package control_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// cores decide; everything that they import of this module must be as pure as they are.
var cores = []string{
	"dpud/pkg/record", "dpud/pkg/table", "dpud/pkg/site",
	"dpud/pkg/control/management", "dpud/pkg/control/tenant", "dpud/pkg/control/agent",
}

// impure packages: the network, the machine, the kernel, the store, encodings of messages, randomness, locks.
var impure = []string{
	"net", "net/http", "os", "os/exec", "os/signal", "syscall", "sync", "math/rand", "math/rand/v2", "crypto/rand", "log", "log/slog",
	"golang.org/x/sys/unix", "github.com/cilium/ebpf", "github.com/vishvananda/netlink", "github.com/hashicorp/memberlist",
	"go.etcd.io/etcd/client/v3", "connectrpc.com/connect", "google.golang.org/protobuf/proto",
}

type listed struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string
	Module     *struct{ Path string }
}

// TestDirection fails if a core, or anything of this module that it imports, can reach the outside, tell the
// time or start a goroutine.
func TestDirection(t *testing.T) {
	out, err := exec.Command("go", append([]string{"list", "-deps", "-json=ImportPath,Dir,GoFiles,Imports,Module"}, cores...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if p.Module == nil || p.Module.Path != "dpud" {
			continue
		}
		if !slices.Contains(cores, p.ImportPath) {
			t.Errorf("a core imports %s", p.ImportPath)
		}
		for _, i := range p.Imports {
			if slices.Contains(impure, i) {
				t.Errorf("%s imports %s", p.ImportPath, i)
			}
		}
		for _, f := range p.GoFiles {
			checkSource(t, filepath.Join(p.Dir, f))
		}
		checked++
	}
	if checked != len(cores) {
		t.Errorf("checked %d packages, want %d", checked, len(cores))
	}
}

func checkSource(t *testing.T, path string) {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			t.Errorf("%s starts a goroutine", fset.Position(n.Pos()))
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains([]string{"Now", "Since", "Until", "Sleep", "After", "NewTimer", "NewTicker", "Tick"}, n.Sel.Name) {
				t.Errorf("%s uses time.%s: time is handed in", fset.Position(n.Pos()), n.Sel.Name)
			}
		}
		return true
	})
}
