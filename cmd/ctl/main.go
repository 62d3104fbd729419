// ctl is the operator's tool of dpud, and its controller. See docs/ctl.md.
package main

import (
	"os"

	"dpud/internal/cli"
)

// version is set with -ldflags "-X main.version=v1.2.3".
var version string

func main() {
	os.Exit(cli.Main(cli.System(version)))
}
