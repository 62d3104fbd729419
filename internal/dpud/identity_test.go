package dpud

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestHardwareID(t *testing.T) {
	const (
		dmi     = "sys/class/dmi/id/product_uuid"
		dt      = "sys/firmware/devicetree/base/serial-number"
		machine = "etc/machine-id"
	)
	for name, c := range map[string]struct {
		files map[string]string
		want  string // "": an error
	}{
		"DMI first":              {map[string]string{dmi: "4C4C4544-0042\n", dt: "SN123\x00", machine: "abcd01"}, "dmi:4c4c4544-0042"},
		"device tree second":     {map[string]string{dt: "SN123\x00", machine: "abcd01"}, "dt:sn123"},
		"machine id last":        {map[string]string{machine: "abcd01\n"}, "machine:abcd01"},
		"zeros tell nothing":     {map[string]string{dmi: "00000000-0000-0000-0000-000000000000", machine: "abcd01"}, "machine:abcd01"},
		"a placeholder":          {map[string]string{dmi: "03000200-0400-0500-0006-000700080009", machine: "abcd01"}, "machine:abcd01"},
		"not yet made":           {map[string]string{machine: "uninitialized\n"}, ""},
		"an empty serial number": {map[string]string{dt: "\x00", machine: ""}, ""},
		"nothing":                {nil, ""},
	} {
		root := t.TempDir()
		for file, text := range c.files {
			path := filepath.Join(root, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		have, err := hardwareID(root)
		if have != c.want || (c.want == "") != (err != nil) {
			t.Errorf("%s: %q, %v; want %q", name, have, err, c.want)
		}
		if err != nil && !strings.Contains(err.Error(), "set hardware_id") {
			t.Errorf("%s: %v does not say what to do", name, err)
		}
	}
}
