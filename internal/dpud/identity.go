package dpud

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// hardwareID returns what identifies this hardware, under root ("/"): the DMI product UUID, else the device
// tree's serial number, else the machine id of the installation. It differs between DPUs and survives reboots;
// only the last of the three changes with a reinstallation.
func hardwareID(root string) (string, error) {
	for _, source := range []struct{ prefix, file string }{
		{"dmi:", "sys/class/dmi/id/product_uuid"},
		{"dt:", "sys/firmware/devicetree/base/serial-number"},
		{"machine:", "etc/machine-id"},
	} {
		b, err := os.ReadFile(filepath.Join(root, source.file))
		id := strings.ToLower(strings.Trim(string(b), " \n\x00"))
		if err == nil && tells(id) {
			return source.prefix + id, nil
		}
	}
	return "", errors.New("find hardware id: neither DMI product UUID, device tree serial number nor /etc/machine-id can be read; set hardware_id in the configuration")
}

// tells says whether an id tells machines apart: firmware fills in one repeated digit, or nothing, when it
// was given none.
func tells(id string) bool {
	digits := strings.ReplaceAll(id, "-", "")
	return len(digits) >= 4 && strings.Trim(digits, digits[:1]) != "" && id != "uninitialized" &&
		id != "03000200-0400-0500-0006-000700080009" // shipped by several vendors as a placeholder
}

// kernelBoot tells this boot of the kernel from others.
func kernelBoot() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// newInstance is random for each run of dpud.
func newInstance() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
