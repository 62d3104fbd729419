package prober

import (
	"errors"
	"testing"

	"dpud/pkg/record"
)

// Readings at 10, 20, 30, 40, each of which takes 1: no tenant, t1 together, apart, no tenant.
func readings() *history {
	h := &history{}
	for _, s := range []sample{
		{10, 11, Assignment{0, 0}},
		{20, 21, Assignment{1, 1}},
		{30, 31, Assignment{1, 2}},
		{40, 41, Assignment{0, 0}},
		{50, 51, Assignment{0, 0}},
		{60, 61, nil},
		{70, 71, Assignment{0, 0}},
	} {
		h.add(s)
	}
	return h
}

func TestCommon(t *testing.T) {
	for _, c := range []struct {
		name     string
		from, to int64
		want     shared
	}{
		{"before anything is known", 0, 5, never},
		{"just before the reading that sees them together", 12, 13, sometime},
		{"while they are together", 20, 20, sometime},
		{"across it", 5, 55, sometime},
		{"just behind it", 25, 26, sometime},
		{"up to the end of the next reading they may still have been", 31, 31, sometime},
		{"behind the end of the next reading", 32, 38, never},
		{"long behind it", 43, 44, never},
		{"where the map could not be read", 62, 65, unknown},
		{"next to where the map could not be read", 52, 53, unknown},
		{"behind the last reading", 100, 200, never},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := readings().common(0, 1, c.from, c.to); got != c.want {
				t.Errorf("common in [%d, %d] = %d, want %d", c.from, c.to, got, c.want)
			}
		})
	}
	if got := (&history{}).common(0, 1, 1, 2); got != unknown {
		t.Errorf("without readings: %d, want unknown", got)
	}
}

func TestConflicts(t *testing.T) {
	for _, c := range []struct {
		name string
		d1   []sample
		d2   []sample
		want int
	}{
		{"another tenant in between", []sample{{10, 11, Assignment{1}}, {30, 31, Assignment{1}}}, []sample{{20, 21, Assignment{2}}}, 1},
		{"the same tenant", []sample{{10, 11, Assignment{1}}, {30, 31, Assignment{1}}}, []sample{{20, 21, Assignment{1}}}, 0},
		{"no tenant in between", []sample{{10, 11, Assignment{1}}, {30, 31, Assignment{1}}}, []sample{{20, 21, Assignment{0}}}, 0},
		{"it may have left before", []sample{{10, 11, Assignment{1}}, {30, 31, Assignment{0}}}, []sample{{20, 21, Assignment{2}}}, 0},
		{"nothing read behind", []sample{{10, 11, Assignment{1}}}, []sample{{20, 21, Assignment{2}}}, 0},
		{"not readable behind", []sample{{10, 11, Assignment{1}}, {30, 31, nil}}, []sample{{20, 21, Assignment{2}}}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, y := &history{samples: c.d1}, &history{samples: c.d2}
			if got := conflicts(x, y); got != c.want {
				t.Errorf("conflicts = %d, want %d", got, c.want)
			}
			if got := conflicts(y, x); got != c.want {
				t.Errorf("the other way round = %d, want %d", got, c.want)
			}
		})
	}
}

// A frame has to be lawful on every DPU on its way, and on no other.
func TestJudgeAsksTheDPUsOnTheWay(t *testing.T) {
	together, apart := &history{}, &history{}
	together.add(sample{0, 1, Assignment{1, 1, 1}})
	apart.add(sample{0, 1, Assignment{1, 2, 1}})
	p := &Prober{
		Config:    Config{Stations: []Station{{Home: "d1"}, {Home: "d1"}, {Home: "d2"}}},
		histories: map[record.DPU]*history{"d1": together, "d2": apart},
	}
	for _, c := range []struct {
		from, at int
		want     shared
	}{{0, 1, sometime}, {1, 2, never}, {2, 1, never}, {0, 2, sometime}} {
		a := arrival{stamp: stamp{sender: uint8(c.from), sent: 10}, received: 20}
		if got := p.judge(c.at, a); got != c.want {
			t.Errorf("from %d at %d: %d, want %d", c.from, c.at, got, c.want)
		}
	}
}

func TestStartRefusesWhatHasNoEnd(t *testing.T) {
	if _, err := Start(Config{Stations: make([]Station, 3), Rate: 1}); err == nil {
		t.Error("start without a limit: no error")
	}
	fail := errors.New("no namespace")
	stations := make([]Station, 3)
	for i := range stations {
		stations[i].Inside = func(func() error) error { return fail }
	}
	if _, err := Start(Config{Stations: stations, Rate: 1, Limit: 1, Period: 1}); !errors.Is(err, fail) {
		t.Errorf("start without namespaces: %v, want %v", err, fail)
	}
}
