package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Error is one thing that is wrong with a setting.
type Error struct {
	// Path of the setting, like ports.nodes[1]; empty when it is the file as a whole.
	Path string
	// Problem says what is wrong, Fix what to do.
	Problem, Fix string
}

func (e *Error) Error() string {
	if e.Path == "" {
		return e.Problem + "; fix: " + e.Fix
	}
	return e.Path + ": " + e.Problem + "; fix: " + e.Fix
}

// decode reads one YAML document into the struct that c points to. Every key must be a field's.
func decode(data []byte, c any) error {
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil // an empty file sets nothing
	case err != nil:
		return &Error{Problem: "this is not YAML: " + strings.TrimPrefix(err.Error(), "yaml: "), Fix: "correct that line; indent with blanks, never with tabs"}
	}
	if len(doc.Content) == 0 {
		return nil
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return &Error{Problem: "more than one YAML document", Fix: "keep one and take out the line `---`"}
	}
	return errors.Join(decodeNode(doc.Content[0], "", reflect.ValueOf(c).Elem())...)
}

// decodeNode reads a node into v. Structs are walked here, for the paths in errors; the rest is YAML's business.
func decodeNode(n *yaml.Node, path string, v reflect.Value) []error {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return nil // as if it were not there
	}
	if v.Kind() != reflect.Struct {
		if err := n.Decode(v.Addr().Interface()); err != nil {
			return []error{&Error{Path: path, Problem: "want " + want(v.Type()) + ", have " + have(n), Fix: "write " + example(v.Type())}}
		}
		return nil
	}
	fields, names := fieldsOf(v)
	keys := strings.Join(names, ", ")
	if n.Kind != yaml.MappingNode {
		return []error{&Error{Path: path, Problem: "want keys and values, have " + have(n), Fix: "use these keys: " + keys}}
	}
	var errs []error
	seen := make(map[string]bool)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i].Value
		at := strings.TrimPrefix(path+"."+key, ".")
		field, ok := fields[key]
		switch {
		case !ok:
			errs = append(errs, &Error{Path: at, Problem: "unknown key", Fix: "use these keys: " + keys})
		case seen[key]:
			errs = append(errs, &Error{Path: at, Problem: "the key is there twice", Fix: "keep one"})
		default:
			errs = append(errs, decodeNode(n.Content[i+1], at, field)...)
		}
		seen[key] = true
	}
	return errs
}

func fieldsOf(v reflect.Value) (fields map[string]reflect.Value, names []string) {
	fields = make(map[string]reflect.Value)
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("yaml")
		fields[name] = v.Field(i)
		names = append(names, name)
	}
	return fields, names
}

func want(t reflect.Type) string {
	switch {
	case t.Kind() == reflect.Slice:
		return "a list"
	case t.String() == "time.Duration":
		return "a duration"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Int:
		return "a number"
	default:
		return "a text"
	}
}

func example(t reflect.Type) string {
	switch {
	case t.Kind() == reflect.Slice:
		return "a list of texts, even of one: [one]"
	case t.String() == "time.Duration":
		return "a number with its unit, like 30s"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Int:
		return "a decimal number"
	default:
		return "one value on the line of the key"
	}
}

func have(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "keys and values"
	case yaml.SequenceNode:
		return "a list"
	default:
		return fmt.Sprintf("%q", n.Value)
	}
}
