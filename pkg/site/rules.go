package site

import (
	"fmt"
	"net/netip"
	"strings"

	"dpud/pkg/record"
)

// Bounds of single values.
const (
	maxName = 63        // bytes: a DNS label (RFC 1035, section 2.3.4)
	maxPort = 15        // bytes: Linux's IFNAMSIZ less its final zero
	maxVLAN = 4094      // IEEE 802.1Q: 4095 is reserved
	maxVNI  = 1<<24 - 1 // RFC 7348, section 5
	nameFix = "use a-z, 0-9 and '-', at most 63, a letter or digit first and last, not digits alone (a name like 7 would look like an id)"
	portFix = "write the interface name on the DPU as `ip link` shows it there: 1 to 15 printable ASCII characters without '/', ':' or blanks"
	macFix  = "write the interface's own address as six bytes, like 02:00:00:00:00:01 (the first byte is even)"
	vlanFix = "write the VLAN as 1 to 4094, or leave it out when the node sends untagged"
	vniFix  = "write a VNI of 1 to 16777215 that no other tenant has"
)

// The functions below return what is wrong with one value and how to fix it, or two empty strings.

func checkName(name string) (problem, fix string) {
	if name == "" {
		return "the name is missing", nameFix
	}
	letters := false
	for i := range len(name) {
		c := name[i]
		letter := 'a' <= c && c <= 'z'
		edge := i == 0 || i == len(name)-1
		if !letter && (c < '0' || c > '9') && (c != '-' || edge) {
			return quote(name) + " is not a name", nameFix
		}
		letters = letters || letter
	}
	if len(name) > maxName || !letters {
		return quote(name) + " is not a name", nameFix
	}
	return "", ""
}

// checkPort follows the kernel's dev_valid_name (net/core/dev.c), and wants printable ASCII besides.
func checkPort(port string) (problem, fix string) {
	if port == "" {
		return "the port is missing", portFix
	}
	bad := func(r rune) bool { return r <= ' ' || r > '~' || r == '/' || r == ':' }
	if len(port) > maxPort || port == "." || port == ".." || strings.ContainsFunc(port, bad) {
		return quote(port) + " is not an interface name", portFix
	}
	return "", ""
}

func checkMAC(mac record.MAC) (problem, fix string) {
	switch {
	case mac == record.MAC{}:
		return "the MAC is missing or zero", macFix
	case !mac.IsUnicast():
		return fmt.Sprintf("MAC %s is a group address", mac), macFix
	}
	return "", ""
}

func checkVNI(vni record.VNI) (problem, fix string) {
	switch {
	case vni == 0:
		return "the VNI is missing or 0", vniFix
	case vni > maxVNI:
		return fmt.Sprintf("VNI %d is above 16777215", vni), vniFix
	}
	return "", ""
}

func checkVLAN(vlan uint16) (problem, fix string) {
	if vlan > maxVLAN {
		return fmt.Sprintf("VLAN %d is above 4094", vlan), vlanFix
	}
	return "", ""
}

// special says which kind of address no single node can have, or nothing.
func special(a netip.Addr) string {
	switch {
	case a.IsLoopback():
		return "a loopback address"
	case a.IsMulticast():
		return "a multicast address"
	case a.IsLinkLocalUnicast():
		return "a link-local address"
	case a.Is4In6():
		return "an IPv4 address mapped into IPv6"
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "the broadcast address"
	}
	return ""
}

func checkAddr(a netip.Addr) (problem, fix string) {
	const unicast = "write a unicast IPv4 or IPv6 address that belongs to this node alone"
	switch {
	case !a.IsValid():
		return "the address is missing", unicast
	case a.Zone() != "":
		return fmt.Sprintf("address %s has a zone", quote(a.String())), "leave out '%' and what follows it"
	case a.Is4In6():
		return fmt.Sprintf("%s is an IPv4 address mapped into IPv6", a), "write it as " + a.Unmap().String()
	case a.IsUnspecified():
		return fmt.Sprintf("%s is the unspecified address", a), unicast
	case special(a) != "":
		return fmt.Sprintf("%s is %s", a, special(a)), unicast
	}
	return "", ""
}

func checkPrefix(p netip.Prefix) (problem, fix string) {
	switch {
	case !p.IsValid():
		return "the prefix is missing", "write a prefix like 10.9.0.0/24; one address is 10.9.0.1/32"
	case p.Bits() == 0:
		return fmt.Sprintf("%s matches every address", p), "name the service's own prefixes"
	case p != p.Masked():
		return fmt.Sprintf("%s has bits set behind its length", p),
			fmt.Sprintf("write %s, or %s for the one address", p.Masked(), netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
	case special(p.Addr()) != "":
		return fmt.Sprintf("%s starts with %s", p, special(p.Addr())), "name the unicast prefixes of the service, IPv4 ones as IPv4"
	}
	return "", ""
}
