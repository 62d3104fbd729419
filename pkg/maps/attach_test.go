package maps

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"dpud/internal/netnstest"
	"dpud/pkg/table"
)

// addVeth makes a veth pair in the present namespace and returns its first end; both ends are up.
func addVeth(t *testing.T, name string) Iface {
	t.Helper()
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "_peer"}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{name, name + "_peer"} {
		l, err := netlink.LinkByName(n)
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return Iface{Index: l.Attrs().Index, Name: name}
}

func loadPin(t *testing.T, pin string) *Datapath {
	t.Helper()
	d, err := Load(pin, Options{MaxNodes: 64})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func attach(t *testing.T, d *Datapath, iface Iface, role Role) Attachment {
	t.Helper()
	a, err := d.Attach(iface, role)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Check(iface.Index); err != nil {
		t.Fatal(err)
	}
	return a
}

func wantUnguarded(t *testing.T, d *Datapath, iface Iface, after string) {
	t.Helper()
	if err := d.Check(iface.Index); !errors.Is(err, ErrUnguarded) {
		t.Errorf("check after %s: %v, want ErrUnguarded", after, err)
	}
}

func linkID(t *testing.T, path string) link.ID {
	t.Helper()
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	info, err := l.Info()
	if err != nil {
		t.Fatal(err)
	}
	return info.ID
}

// hasTCX says whether the kernel is 6.6 or newer.
func hasTCX(t *testing.T, iface Iface) bool {
	t.Helper()
	_, err := link.QueryPrograms(link.QueryOptions{Target: iface.Index, Attach: ebpf.AttachTCXEgress})
	return err == nil
}

func TestAttach(t *testing.T) {
	netnstest.NeedBPF(t)
	pin := testPin(t)
	netnstest.Do(t, func() {
		d := loadPin(t, pin)
		port, uplink := addVeth(t, "port"), addVeth(t, "uplink")
		if err := d.Check(port.Index); !errors.Is(err, ErrUnguarded) {
			t.Errorf("check of a port that was never attached: %v", err)
		}
		egress := "clsact"
		if hasTCX(t, port) {
			egress = "tcx"
		}
		ingress, err := programID(d.programs.DpudIngress)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []Attachment{
			{Ifindex: port.Index, Name: "port", Role: RoleNode, XDPMode: "native", Egress: egress, ProgID: ingress},
			{Ifindex: uplink.Index, Name: "uplink", Role: RoleUplink, XDPMode: "native", Egress: egress, ProgID: ingress},
		} {
			got := attach(t, d, Iface{want.Ifindex, want.Name}, want.Role)
			got.Notes = nil
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("attachment (-want +got):\n%s", diff)
			}
		}
		lo := attach(t, d, Iface{1, "lo"}, RoleUplink)
		if lo.XDPMode != "generic" || len(lo.Notes) == 0 {
			t.Errorf("loopback has no native XDP: %+v", lo)
		}
		attach(t, d, port, RoleUplink)
		if got := attach(t, d, port, RoleNode); got.Egress != egress {
			t.Errorf("a port that was an uplink for a while: %+v", got)
		}

		if err := d.SetPort(port.Index, RoleUplink); err != nil {
			t.Fatal(err)
		}
		wantUnguarded(t, d, port, "a change of the role")
		attach(t, d, port, RoleNode)

		if _, err := d.Attach(port, 3); err == nil {
			t.Error("role 3 was accepted")
		}
		if _, err := d.Attach(Iface{9999, "nowhere"}, RoleNode); err == nil {
			t.Error("an interface that is not there was attached to")
		}
		if err := d.Forget(9999); err != nil {
			t.Error(err)
		}
		if err := d.Forget(port.Index); !errors.Is(err, ErrElsewhere) {
			t.Errorf("a port that is there was forgotten: %v", err)
		}
		if err := d.Check(port.Index); err != nil {
			t.Error(err)
		}
		if ports, err := d.Ports(); err != nil || len(ports) != 3 {
			t.Errorf("ports %v, %v; want three", ports, err)
		}
	})
}

// wantBare checks that no program is left on an interface.
func wantBare(t *testing.T, iface Iface) {
	t.Helper()
	l, err := netlink.LinkByIndex(iface.Index)
	if err != nil {
		t.Fatal(err)
	}
	if xdp := l.Attrs().Xdp; xdp != nil && xdp.Attached {
		t.Errorf("XDP program %d is left on %s", xdp.ProgId, iface.Name)
	}
	if filters, err := egressFilters(iface.Index); err != nil || len(filters) != 0 {
		t.Errorf("filters left on %s: %v, %v", iface.Name, filters, err)
	}
	qdiscs, err := netlink.QdiscList(l)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range qdiscs {
		if q.Type() == "clsact" {
			t.Errorf("clsact is left on %s", iface.Name)
		}
	}
	if !hasTCX(t, iface) {
		return
	}
	have, err := link.QueryPrograms(link.QueryOptions{Target: iface.Index, Attach: ebpf.AttachTCXEgress})
	if err != nil || len(have.Programs) != 0 {
		t.Errorf("tcx programs left on %s: %v, %v", iface.Name, have, err)
	}
}

// Someone else takes our programs away, or gets before them.
func TestCheckAsksTheKernel(t *testing.T) {
	netnstest.NeedBPF(t)
	pin := testPin(t)
	netnstest.Do(t, func() {
		d := loadPin(t, pin)
		port := addVeth(t, "port")
		attach(t, d, port, RoleNode)

		steal := func(program string) {
			l, err := link.LoadPinnedLink(d.linkPath(program, port.Index), nil)
			if err == nil {
				err = errors.Join(l.Detach(), l.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		steal(datapathProgDpudIngress)
		wantUnguarded(t, d, port, "XDP was detached")
		attach(t, d, port, RoleNode)

		foreign := foreignProgram(t)
		if hasTCX(t, port) {
			steal(datapathProgDpudEgress)
			wantUnguarded(t, d, port, "the egress check was detached")
			attach(t, d, port, RoleNode)
			l, err := link.AttachTCX(link.TCXOptions{Interface: port.Index, Program: foreign, Attach: ebpf.AttachTCXEgress, Anchor: link.Head()})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			wantUnguarded(t, d, port, "another program got before the egress check")
			attach(t, d, port, RoleNode)
		}

		d.noTCX = true
		attach(t, d, port, RoleNode)
		filter := clsactFilter(port.Index)
		filter.Fd = foreign.FD()
		if err := netlink.FilterReplace(filter); err != nil {
			t.Fatal(err)
		}
		wantUnguarded(t, d, port, "another filter took the egress check's place")
		attach(t, d, port, RoleNode)
		filter.Handle = 2
		if err := netlink.FilterAdd(filter); err != nil {
			t.Fatal(err)
		}
		wantUnguarded(t, d, port, "another filter got before the egress check")
		if err := netlink.FilterDel(filter); err != nil {
			t.Fatal(err)
		}
		attach(t, d, port, RoleNode)
		if err := netlink.FilterDel(clsactFilter(port.Index)); err != nil {
			t.Fatal(err)
		}
		wantUnguarded(t, d, port, "the filter was deleted")
	})
}

func foreignProgram(t *testing.T) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, Instructions: passAll(), License: "GPL"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// Interfaces vanish with dpud running, and without.
func TestVanishedInterface(t *testing.T) {
	netnstest.NeedBPF(t)
	pin := testPin(t)
	netnstest.Do(t, func() {
		d := loadPin(t, pin)
		a, b := addVeth(t, "a"), addVeth(t, "b")
		attach(t, d, a, RoleNode)
		attach(t, d, b, RoleNode)
		remove := func(i Iface) {
			if err := netlink.LinkDel(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: i.Index}}); err != nil {
				t.Fatal(err)
			}
		}
		remove(a)
		wantUnguarded(t, d, a, "it vanished")
		if err := d.Forget(a.Index); err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		remove(b)
		d = loadPin(t, pin)
		if left, err := os.ReadDir(filepath.Join(pin, linksFolder)); err != nil || len(left) != 0 {
			t.Errorf("links left: %v, %v", left, err)
		}
		// A new interface may get the index of one that vanished.
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "c", Index: b.Index}, PeerName: "c_peer"}
		if err := netlink.LinkAdd(veth); err != nil {
			t.Fatal(err)
		}
		attach(t, d, Iface{b.Index, "c"}, RoleNode)
	})
}

// Two data planes on one machine, each in a namespace of its own, with ports of the same index.
func TestTwoNamespaces(t *testing.T) {
	netnstest.NeedBPF(t)
	pins := []string{testPin(t) + "_1", testPin(t) + "_2"}
	var ports []Iface
	var planes []*Datapath
	spaces := []*netnstest.NS{netnstest.New(t), netnstest.New(t)}
	for i, ns := range spaces {
		ns.Do(t, func() {
			d := loadPin(t, pins[i])
			port := addVeth(t, "port")
			attach(t, d, port, RoleNode)
			ports, planes = append(ports, port), append(planes, d)
		})
	}
	if ports[0].Index != ports[1].Index {
		t.Fatalf("indexes %d and %d: the test needs equal ones", ports[0].Index, ports[1].Index)
	}
	put(t, planes[0], table.Key{Map: table.NodeTenant, Node: 1}, table.Value{Node: 1, Tenant: 1})
	if have := readBack(t, planes[1].Tables); len(have) != 0 {
		t.Errorf("the other data plane sees %v", have)
	}
	spaces[0].Do(t, func() {
		if err := errors.Join(planes[0].Close(), Unload(pins[0])); err != nil {
			t.Fatal(err)
		}
		wantBare(t, ports[0])
	})
	spaces[1].Do(t, func() {
		if err := planes[1].Check(ports[1].Index); err != nil {
			t.Error(err)
		}
		if err := errors.Join(planes[1].Close(), Unload(pins[1])); err != nil {
			t.Fatal(err)
		}
	})
}

// A failed attach leaves no program behind.
func TestAnotherProgramIsThere(t *testing.T) {
	netnstest.NeedBPF(t)
	pin := testPin(t)
	netnstest.Do(t, func() {
		d := loadPin(t, pin)
		port := addVeth(t, "port")
		foreign, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, Instructions: passAll(), License: "GPL"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = foreign.Close() }()
		l, err := link.AttachXDP(link.XDPOptions{Interface: port.Index, Program: foreign})
		if err != nil {
			t.Fatal(err)
		}
		for _, noTCX := range []bool{false, true} {
			d.noTCX = noTCX
			if _, err := d.Attach(port, RoleNode); err == nil {
				t.Error("attached although another XDP program is there")
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		wantBare(t, port)
		attach(t, d, port, RoleNode)
	})
}

// Started in the wrong network namespace, dpud touches nothing; when the right one has died, it starts anew.
func TestFolderInAnotherNamespace(t *testing.T) {
	netnstest.NeedBPF(t)
	pin := testPin(t)
	old := netnstest.New(t)
	var port Iface
	old.Do(t, func() {
		d := loadPin(t, pin)
		port = addVeth(t, "port")
		attach(t, d, port, RoleNode)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	})
	netnstest.Do(t, func() {
		addVeth(t, "port")
		if _, err := Load(pin, Options{MaxNodes: 64}); !errors.Is(err, ErrElsewhere) {
			t.Errorf("load in another network namespace: %v", err)
		}
	})
	old.Do(t, func() {
		d := loadPin(t, pin)
		attach(t, d, port, RoleNode)
		if err := errors.Join(d.Close(), netlink.LinkDel(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: port.Index}})); err != nil {
			t.Fatal(err)
		}
	})
	netnstest.Do(t, func() {
		d := loadPin(t, pin)
		attach(t, d, addVeth(t, "port"), RoleNode)
	})
}

// A port that moves to another network namespace goes on enforcing there, and one that has its index here is not
// taken for it.
func TestPortMovesAway(t *testing.T) {
	netnstest.NeedBPF(t)
	pin := testPin(t)
	away := netnstest.New(t)
	netnstest.Do(t, func() {
		d := loadPin(t, pin)
		port := addVeth(t, "port")
		a := attach(t, d, port, RoleNode)
		if err := netlink.LinkSetNsFd(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: port.Index}}, int(away.Handle)); err != nil {
			t.Fatal(err)
		}
		if err := d.Forget(port.Index); !errors.Is(err, ErrElsewhere) {
			t.Errorf("forgetting it: %v", err)
		}
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "second", Index: port.Index}, PeerName: "second_peer"}
		if err := netlink.LinkAdd(veth); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Attach(Iface{port.Index, "second"}, RoleNode); !errors.Is(err, ErrElsewhere) {
			t.Errorf("attaching to another port of its index: %v", err)
		}
		away.Do(t, func() {
			l, err := netlink.LinkByName("port")
			if err != nil {
				t.Fatal(err)
			}
			if xdp := l.Attrs().Xdp; xdp == nil || xdp.ProgId != uint32(a.ProgID) {
				t.Errorf("XDP is %+v, not program %d", xdp, a.ProgID)
			}
		})
	})
}
