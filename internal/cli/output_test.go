package cli

import (
	"bytes"
	"testing"
	"time"
)

func TestAge(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	for ago, want := range map[time.Duration]string{
		0: "0s", 900 * time.Millisecond: "0s", 90 * time.Second: "1m30s", time.Hour + 2*time.Minute + 5*time.Second: "1h2m",
		49*time.Hour + 59*time.Minute: "2d1h", -time.Minute: "0s",
	} {
		then := now.Add(-ago)
		if got := age(now, &then); got != want {
			t.Errorf("age of %s: got %q, want %q", ago, got, want)
		}
	}
	if got := age(now, nil); got != "" {
		t.Errorf("age of no time: got %q", got)
	}
}

// What others sent can't move the cursor or the columns, and strings stay strings.
func TestOutputIsSafe(t *testing.T) {
	var b bytes.Buffer
	if err := (rows{{"NODE", "NEXT"}, {"n1", "a\x1b[2J\tb\nc"}, {"n2", ""}}).write(&b); err != nil {
		t.Fatal(err)
	}
	if got, want := b.String(), "NODE  NEXT\nn1    a [2J b c\nn2    -\n"; got != want {
		t.Errorf("table: got %q, want %q", got, want)
	}
	y, err := encode("yaml", map[string]any{"a": "1e3", "b": "yes", "c": "12:30:45", "d": "x: y", "e": []string{}, "f": 7, "g": "90b1"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(y), "a: \"1e3\"\nb: \"yes\"\nc: \"12:30:45\"\nd: 'x: y'\ne: []\nf: 7\ng: 90b1\n"; got != want {
		t.Errorf("yaml: got\n%swant\n%s", got, want)
	}
}
