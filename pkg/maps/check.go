package maps

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// Check asks the kernel whether a port that was attached still runs exactly our programs: XDP, and the
// egress check before every other program; and whether the programs still know its role. An error that
// wraps ErrUnguarded says what is wrong; [Datapath.Attach] repairs it. The mode is another question
// ([Tables.Mode]).
func (d *Datapath) Check(ifindex int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	a, ok := d.ports[ifindex]
	if !ok {
		return fmt.Errorf("check port %d: %w: it was never attached", ifindex, ErrUnguarded)
	}
	if err := d.check(a); err != nil {
		return fmt.Errorf("check port %s: %w", a.Name, err)
	}
	return nil
}

func (d *Datapath) check(a Attachment) error {
	var port datapathPort
	err := d.maps.Ports.Lookup(datapathPortKey{Ifindex: uint32(a.Ifindex)}, &port)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("read ports: %w", err)
	}
	if role := Role(port.Role); role != a.Role {
		return fmt.Errorf("%w: the programs take it for %s, not %s", ErrUnguarded, role, a.Role)
	}
	if err := d.checkIngress(a.Ifindex); err != nil {
		return err
	}
	switch a.Egress {
	case "tcx":
		return d.checkTCX(a.Ifindex)
	case "clsact":
		return d.checkClsact(a.Ifindex)
	}
	return nil
}

func (d *Datapath) checkIngress(ifindex int) error {
	want := d.ids[d.programs.DpudIngress]
	xdp, err := readXDP(ifindex)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnguarded, err)
	}
	if ebpf.ProgramID(xdp.ProgId) != want {
		return fmt.Errorf("%w: XDP runs program %d, not ours (%d)", ErrUnguarded, xdp.ProgId, want)
	}
	return nil
}
