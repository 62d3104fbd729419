package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// place is where a command line stands: the commands that its words lead through, from the root.
type place struct {
	commands []level
	args     []string
	// pending is the flag whose value comes next.
	pending cli.Flag
	// literal: behind "--", where nothing is a flag.
	literal bool
}

// level is a command on the way, with its flags as they stood.
type level struct {
	name     string
	flags    []cli.Flag
	children []*cli.Command
	given    []string
}

// arrange moves each flag behind the command that it belongs to, because the cli package reads flags only
// before the first argument. It finds unknown commands and flags.
func arrange(root *cli.App, args []string) ([]string, error) {
	p, err := walk(root, args)
	if err != nil {
		return nil, err
	}
	if p.pending != nil {
		return nil, usagef("%s: %s needs a value", p.name(), dashed(p.pending.Names()[0]))
	}
	var out []string
	for i, l := range p.commands {
		if i > 0 {
			out = append(out, l.name)
		}
		out = append(out, l.given...)
	}
	if len(p.args) > 0 {
		out = append(append(out, "--"), p.args...)
	}
	return out, nil
}

// walk follows the words of a command line as far as they make sense.
func walk(root *cli.App, args []string) (*place, error) {
	p := &place{commands: []level{{name: root.Name, flags: root.Flags, children: root.Commands}}}
	for _, word := range args {
		if err := p.step(word); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (p *place) step(word string) error {
	last := &p.commands[len(p.commands)-1]
	switch {
	case p.pending != nil:
		l := p.levelOf(p.pending)
		l.given = append(l.given, word)
		p.pending = nil
	case !p.literal && word == "--":
		p.literal = true
	case !p.literal && len(word) > 1 && word[0] == '-':
		return p.flag(word)
	case len(last.children) > 0 && len(p.args) == 0:
		i := slices.IndexFunc(last.children, func(c *cli.Command) bool { return c.HasName(word) })
		if i < 0 {
			return p.unknownCommand(word)
		}
		c := last.children[i]
		p.commands = append(p.commands, level{name: c.Name, flags: append(slices.Clone(c.Flags), cli.HelpFlag), children: c.Subcommands})
	default:
		p.args = append(p.args, word)
	}
	return nil
}

// flag takes "-o", "--output", "--output=json".
func (p *place) flag(word string) error {
	name, _, hasValue := strings.Cut(strings.TrimLeft(word, "-"), "=")
	for i := len(p.commands) - 1; i >= 0; i-- {
		l := &p.commands[i]
		f := findFlag(l.flags, name)
		if f == nil {
			continue
		}
		l.given = append(l.given, word)
		if takesValue(f) && !hasValue {
			p.pending = f
		}
		return nil
	}
	var flags []cli.Flag
	for i := len(p.commands) - 1; i >= 0; i-- {
		flags = append(flags, p.commands[i].flags...)
	}
	return usagef("%s: unknown flag %s%s; `%s --help` lists the flags", p.name(), dashed(name), didYouMean(name, cli.SuggestFlag(flags, name, true)), p.name())
}

func (p *place) unknownCommand(word string) error {
	last := p.commands[len(p.commands)-1]
	var best string
	if s := cli.SuggestCommand(last.children, word); s != "" {
		best = strings.Trim(strings.TrimPrefix(strings.TrimSuffix(s, "?"), "Did you mean "), `"`)
	}
	return usagef("%s: unknown command %q%s; `%s --help` lists the commands", p.name(), word, didYouMean(word, best), p.name())
}

// didYouMean proposes the nearest name if it is near: one that word begins, or that differs in a third of it at most.
func didYouMean(word, nearest string) string {
	name := strings.TrimLeft(nearest, "-")
	if name == "" || (!strings.HasPrefix(name, word) && 3*distance(word, name) > len(word)+1) {
		return ""
	}
	return fmt.Sprintf(", did you mean %s?", nearest)
}

// distance is the number of bytes to insert, delete or replace to make b of a (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// name is the command as typed: "ctl get nodes".
func (p *place) name() string {
	var words []string
	for _, l := range p.commands {
		words = append(words, l.name)
	}
	return strings.Join(words, " ")
}

func (p *place) levelOf(f cli.Flag) *level {
	for i := range p.commands {
		if slices.Contains(p.commands[i].flags, f) {
			return &p.commands[i]
		}
	}
	return &p.commands[0]
}

func findFlag(flags []cli.Flag, name string) cli.Flag {
	for _, f := range flags {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

func takesValue(f cli.Flag) bool {
	d, ok := f.(cli.DocGenerationFlag)
	return ok && d.TakesValue()
}

func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// checkArgs compares a command's arguments with the words of its usage; one in brackets may be left out.
func checkArgs(c *cli.Command, got, want []string) error {
	usage := c.UsageText
	if usage == "" {
		usage = c.HelpName + " " + joinWords(want)
	}
	for i, w := range want {
		if i >= len(got) && !strings.HasPrefix(w, "[") {
			return usagef("%s: %s is missing; usage: %s", c.HelpName, w, usage)
		}
	}
	if len(got) > len(want) {
		return usagef("%s: %q is one argument too many; usage: %s", c.HelpName, got[len(want)], usage)
	}
	return nil
}

func joinWords(words []string) string { return strings.Join(words, " ") }

func listCommands(commands []*cli.Command) string {
	var names []string
	for _, c := range commands {
		if !c.Hidden {
			names = append(names, c.Name)
		}
	}
	return strings.Join(names, ", ")
}
