package main

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"dpud/internal/cli"
	"dpud/pkg/api/dpudv1"
	"dpud/pkg/api/dpudv1/dpudv1connect"
)

// On a terminal a wait is one line, rewritten and cleared, and never wider than the terminal.
func TestProgressOnTerminal(t *testing.T) {
	s := newSession(t)
	s.env.Columns = 40
	got := s.run("assign n1 t1")
	lines := strings.Split(got, "\r\x1b[K")
	last := lines[len(lines)-1]
	if want := "node n1: granted to t1, generation 1; programmed on d1, d2\n"; last != want {
		t.Errorf("after the last rewriting: %q, want %q", last, want)
	}
	if len(lines) < 4 || lines[0] != "" {
		t.Fatalf("got %q, want at least two states and a cleared line", got)
	}
	for _, l := range lines[1 : len(lines)-1] {
		if strings.Contains(l, "\n") || len([]rune(l)) > 39 {
			t.Errorf("%q does not fit one line of 39 columns", l)
		}
	}
	if !strings.HasPrefix(lines[1], "assign n1 to t1: waiting for d1, d2 (") {
		t.Errorf("first state: %q", lines[1])
	}
}

// An interrupted wait exits with 4: the request stands. An interrupted question exits with 1.
func TestInterrupt(t *testing.T) {
	s := newSession(t)
	for _, d := range []string{"d1", "d2"} {
		if err := s.fake.do(t.Context(), []string{"hold", d}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	code := make(chan int)
	go func() { code <- cli.Run(ctx, s.env, []string{"assign", "n1", "t1"}) }()
	if err := s.fake.do(t.Context(), []string{"watched", "n1", "granted", "1"}); err != nil {
		t.Fatal(err)
	}
	cancel()
	if got := <-code; got != 4 {
		t.Errorf("assign: exit code %d, want 4", got)
	}
	s.out.Reset()
	if got := cli.Run(ctx, s.env, []string{"get", "nodes"}); got != 1 || s.out.String() != "ctl: get nodes: interrupted\n" {
		t.Errorf("get nodes: exit code %d and %q, want 1", got, s.out)
	}
	s.out.Reset()
	if got := cli.Run(ctx, s.env, []string{"assign", "n3", "t1"}); got != 4 || !strings.Contains(s.out.String(), "the request may stand") {
		t.Errorf("assign: exit code %d and %q, want 4", got, s.out)
	}
}

// A DPU's own dpud knows the names that belong to its maps, ports' too, and is asked before the controller.
func TestNamesFromDPUD(t *testing.T) {
	s := newSession(t)
	l, err := net.Listen("unix", filepath.Join(s.env.RunFolder, "d1.sock"))
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(dpudv1connect.NewDPUServiceHandler(fakeDPUD{}))
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })

	got := s.run("map dump --pin /sys/fs/bpf/dpud/d1 --map node_tenant --map endpoint4 --controller unix:///nowhere")
	want := `MAP          KEY       VALUE
node_tenant  2 (n2)    tenant 2 (t2), node 2 (n2)
node_tenant  10 (n10)  tenant 1, node 10 (n10)
endpoint4    10.0.0.2  node 2 (n2), ifindex 7 (pf0vf2), vlan 0, mac 02:00:00:00:00:02
`
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// fakeDPUD answers with names, and with an entry that the kernel does not hold and that must not show up.
type fakeDPUD struct {
	dpudv1connect.UnimplementedDPUServiceHandler
}

func (fakeDPUD) DumpMaps(context.Context, *connect.Request[dpudv1.DumpMapsRequest]) (*connect.Response[dpudv1.DumpMapsResponse], error) {
	return connect.NewResponse(&dpudv1.DumpMapsResponse{Entries: []*dpudv1.MapEntry{
		{Map: "node_tenant", Key: "2", Node: 2, Tenant: 2, NodeName: "n2", TenantName: "t2"},
		{Map: "node_tenant", Key: "3", Node: 3, Tenant: 2, NodeName: "n3", TenantName: "t2"},
		{Map: "endpoint4", Key: "10.0.0.10", Node: 10, Ifindex: 7, NodeName: "n10", Port: "pf0vf2"},
	}}), nil
}
