package site

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MaxBytes bounds a site file. 100,000 nodes take 13 to 25 MB in the form of [Format], and reading them about
// 200 times a byte in memory: the YAML library builds the whole document.
const MaxBytes = 32 << 20

// Parse reads a site file and checks it. A failure is of type [Errors] and holds everything that is wrong,
// in the order of the file; a file that is not YAML at all has one error, where the YAML ends.
//
// The file is one YAML document of at most [MaxBytes]. Anchors, aliases, merge keys and tags are refused:
// the file says everything where it stands, and no small file grows into a large site.
func Parse(data []byte) (*Site, error) {
	root, errs := document(data)
	if errs != nil {
		return nil, errs
	}
	d := decoder{unread: make(map[string]bool)}
	s := d.site(root)
	for _, e := range s.Validate() {
		if !d.hides(e.Path) {
			n := nodeAt(root, e.Path)
			e.Line, e.column = n.Line, n.Column
			d.errs = append(d.errs, e)
		}
	}
	for i := range d.errs {
		d.errs[i].Object = s.objectAt(d.errs[i].Path)
	}
	slices.SortStableFunc(d.errs, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.column, b.column))
	})
	if err := d.errs.err(); err != nil {
		return nil, err
	}
	return s, nil
}

// Format returns the site as a file that [Parse] reads back to an equal site.
func Format(s *Site) ([]byte, error) {
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(s); err != nil {
		return nil, fmt.Errorf("format site: %w", err)
	}
	return b.Bytes(), nil
}

// document returns the root of the only YAML document in data.
func document(data []byte) (*yaml.Node, Errors) {
	if len(data) > MaxBytes {
		return nil, Errors{{
			Problem: fmt.Sprintf("the file has %d bytes, more than %d", len(data), MaxBytes),
			Fix:     "split the site",
		}}
	}
	empty := Errors{{Problem: "the file is empty", Fix: "start with a line like `site: frankfurt-1`"}}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, empty
	case err != nil:
		return nil, Errors{syntaxError(err)}
	case len(doc.Content) != 1 || isNull(doc.Content[0]):
		return nil, empty
	}
	switch err := dec.Decode(&next); {
	case errors.Is(err, io.EOF):
		return doc.Content[0], nil
	case err != nil:
		return nil, Errors{syntaxError(err)}
	}
	return nil, Errors{{
		Line:    next.Line,
		Problem: "a second YAML document starts here",
		Fix:     "keep one site in a file and take out the line `---`",
	}}
}

// syntaxError takes the line out of an error of the YAML library ("yaml: line 3: ..."), which names none
// for the first.
func syntaxError(err error) Error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	e := Error{Line: 1, Fix: "correct the YAML at this line or just above it; indent with blanks, never with tabs"}
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		digits, cause, _ := strings.Cut(rest, ": ")
		if n, err := strconv.Atoi(digits); err == nil {
			e.Line, text = n, cause
		}
	}
	e.Problem = "this is not YAML: " + text
	return e
}

// nodeAt returns the field at path, or the nearest thing around it that the file has.
func nodeAt(root *yaml.Node, path string) *yaml.Node {
	n := root
	for _, step := range strings.Split(strings.ReplaceAll(path, "[", ".["), ".") {
		var next *yaml.Node
		if digits, ok := strings.CutPrefix(step, "["); ok {
			i, _ := strconv.Atoi(strings.TrimSuffix(digits, "]"))
			if n.Kind == yaml.SequenceNode && i < len(n.Content) {
				next = n.Content[i]
			}
		} else {
			next = valueOf(n, step)
		}
		if next == nil {
			break
		}
		n = next
	}
	return n
}

// valueOf returns the value of a mapping's key, or nil.
func valueOf(n *yaml.Node, key string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}
