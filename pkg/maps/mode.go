package maps

import "fmt"

// SetMode changes the mode of the data plane that is pinned in a folder, whether or not a dpud has it loaded. It
// takes no lock: a mode is one 64-bit store. Errors: ErrNotLoaded, ErrLayout.
func SetMode(pin string, m Mode) error {
	t, err := openPinned(pin, nil)
	if err != nil {
		return fmt.Errorf("open maps in %s: %w", pin, err)
	}
	defer t.Close()
	if err := t.checkLayout(); err != nil {
		return fmt.Errorf("open maps in %s: %w", pin, err)
	}
	return (&Datapath{Tables: t}).SetMode(m)
}
