package explore

import (
	"fmt"
	"testing"
	"time"
)

// TestWalk takes random walks over small sites. A failure prints the seed that repeats it.
func TestWalk(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if inMutant() {
		seed = 1 // a mutant is caught in the same way each time
	}
	done := make(map[string]int)
	for i := range uint64(3000) {
		sizes := [][3]int{{1, 1, 1}, {1, 1, 2}, {2, 1, 2}, {2, 2, 2}, {3, 3, 3}}[i%5]
		walk(t, seed+i, sizes, 1500, done)
		if t.Failed() {
			return
		}
	}
	for _, a := range new(Walk).actions() {
		if done[a.name] == 0 {
			t.Errorf("action %q was never taken", a.name)
		}
	}
	t.Log(done)
}

func walk(t *testing.T, seed uint64, sizes [3]int, steps int, done map[string]int) {
	t.Helper()
	world, err := New(sizes[0], sizes[1], sizes[2])
	if err != nil {
		t.Fatal(err)
	}
	w := NewWalk(world, seed)
	err = w.Run(steps)
	if err == nil {
		err = w.Heal(5)
	}
	if err != nil {
		t.Error(fmt.Errorf("seed %d, site %v: %w", seed, sizes, err))
	}
	for a, n := range w.Done {
		done[a] += n
	}
}
