package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"
)

var formats = []string{"table", "json", "yaml"}

func (a *app) format(c *cli.Context) (string, error) {
	f := c.String("output")
	if !slices.Contains(formats, f) {
		return "", usagef("--output %q: want table, json or yaml", f)
	}
	return f, nil
}

// print writes v as JSON or YAML, or calls text for a table. v's JSON names are the documented ones.
func (a *app) print(c *cli.Context, v any, text func(w io.Writer) error) error {
	f, err := a.format(c)
	if err != nil {
		return err
	}
	if f == "table" {
		return text(a.env.Stdout)
	}
	b, err := encode(f, v)
	if err != nil {
		return err
	}
	_, err = a.env.Stdout.Write(b)
	return err
}

func encode(format string, v any) ([]byte, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", format, err)
	}
	if format == "json" {
		return append(b, '\n'), nil
	}
	// JSON is YAML in flow style with quotes: read it, and write it in YAML's own style.
	var n yaml.Node
	if err := yaml.Unmarshal(b, &n); err != nil {
		return nil, fmt.Errorf("encode yaml: %w", err)
	}
	plain(&n)
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(&n); err != nil {
		return nil, fmt.Errorf("encode yaml: %w", err)
	}
	return out.Bytes(), nil
}

// plain takes the styles away; what needs quotes gets them back from the encoder, by its tag, except what only
// YAML 1.1 reads as something else than a string. Empty lists and mappings have no block style.
func plain(n *yaml.Node) {
	if len(n.Content) > 0 || n.Kind == yaml.ScalarNode {
		n.Style = 0
	}
	if n.Tag == "!!str" && yaml11.MatchString(n.Value) {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, c := range n.Content {
		plain(c)
	}
}

// yaml11 matches booleans and sexagesimal numbers (like 12:30:45, and some MACs) of YAML 1.1.
var yaml11 = regexp.MustCompile(`^(?i:y|yes|n|no|on|off)$|^[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?$`)

// rows is a table: its first row names the columns. An empty cell is printed as "-".
type rows [][]string

func (r rows) write(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, cells := range r {
		for i, cell := range cells {
			if cell == "" {
				cell = "-"
			}
			if i > 0 {
				fmt.Fprint(tw, "\t")
			}
			fmt.Fprint(tw, strings.Map(printable, cell))
		}
		fmt.Fprintln(tw)
	}
	return tw.Flush()
}

// printable keeps what others sent from moving the cursor or the columns.
func printable(r rune) rune {
	if r < ' ' || r == 0x7f {
		return ' '
	}
	return r
}

// age says how long ago t was, to the two highest units; "" for no time.
func age(now time.Time, t *time.Time) string {
	if t == nil {
		return ""
	}
	d := max(now.Sub(*t), 0).Truncate(time.Second)
	days, d := d/(24*time.Hour), d%(24*time.Hour)
	switch {
	case days > 0:
		return fmt.Sprintf("%dd%dh", days, d/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return d.String() // 1m30s
}

// lines prints a text and a line end.
func lines(text string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := fmt.Fprintln(w, text)
		return err
	}
}

// list joins names for people; some cuts it short.
func list(names []string) string { return strings.Join(names, ", ") }

func some(names []string) string {
	const most = 8
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", list(names[:most]), len(names)-most)
	}
	return list(names)
}
