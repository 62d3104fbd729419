package site

import (
	"slices"
	"strings"
)

// resembles says whether key is near enough to known to be a misspelling of it: the same but for case, '-',
// '_' and the order of letters, or one single-letter edit apart (two for words of five letters and more).
func resembles(key, known string) bool {
	if len(key) > 2*len(known) {
		return false
	}
	norm := strings.NewReplacer("-", "", "_", "")
	a, b := norm.Replace(strings.ToLower(key)), norm.Replace(known)
	edits := 1
	if len(b) > 4 {
		edits = 2
	}
	return distance(a, b) <= edits || sorted(a) == sorted(b)
}

func sorted(s string) string {
	b := []byte(s)
	slices.Sort(b)
	return string(b)
}

// distance is the number of single-byte insertions, deletions and substitutions between a and b
// (Levenshtein's), by rows.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
