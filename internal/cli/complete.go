package cli

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	"dpud/pkg/api/dpudv1"
)

// completeCommand is what the shells call, with the words typed so far; the last one is to be completed. It
// prints a candidate and its description on each line, or ":files" where a file fits.
const completeCommand = "__complete"

var (
	//go:embed completion/ctl.bash
	bashScript string
	//go:embed completion/ctl.zsh
	zshScript string
	//go:embed completion/ctl.fish
	fishScript string
)

func (a *app) completionCommand() *cli.Command {
	return leaf(&cli.Command{
		Name:  "completion",
		Usage: "print what makes a shell complete ctl's commands, flags and live names",
		Description: "bash: source <(ctl completion bash)\nzsh:  source <(ctl completion zsh)\n" +
			"fish: ctl completion fish | source",
		Action: func(c *cli.Context) error {
			script, ok := map[string]string{"bash": bashScript, "zsh": zshScript, "fish": fishScript}[c.Args().First()]
			if !ok {
				return usagef("ctl completion %s: want bash, zsh or fish", c.Args().First())
			}
			_, err := fmt.Fprint(a.env.Stdout, script)
			return err
		},
	}, "bash|zsh|fish")
}

// candidate is a word that fits, with a description.
type candidate struct{ word, about string }

var files = []candidate{{word: ":files"}}

// complete prints what may stand in place of the last word. Where it does not know, it prints nothing.
func (a *app) complete(ctx context.Context, root *cli.App, words []string) {
	if len(words) == 0 {
		return
	}
	word := words[len(words)-1]
	p, err := walk(root, words[:len(words)-1])
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, namesTimeout)
	defer cancel()
	for _, c := range a.candidates(ctx, p, word) {
		if strings.HasPrefix(c.word, word) || c.word == ":files" {
			about, _, _ := strings.Cut(c.about, "\n")
			fmt.Fprintf(a.env.Stdout, "%s%s\n", c.word, strings.TrimSuffix("\t"+strings.Map(printable, about), "\t"))
		}
	}
}

func (a *app) candidates(ctx context.Context, p *place, word string) []candidate {
	last := p.commands[len(p.commands)-1]
	flag, _, valued := strings.Cut(word, "=")
	switch {
	case p.pending != nil:
		return a.flagValues(ctx, p, p.pending.Names()[0])
	case p.literal || !strings.HasPrefix(word, "-"):
	case valued:
		values := a.flagValues(ctx, p, strings.TrimLeft(flag, "-"))
		for i := range values {
			if values[i].word != ":files" {
				values[i].word = flag + "=" + values[i].word
			}
		}
		return values
	default:
		return flagNames(p)
	}
	if len(last.children) > 0 {
		return commandNames(last.children)
	}
	return a.argValues(ctx, p)
}

func flagNames(p *place) []candidate {
	var out []candidate
	for _, l := range slices.Backward(p.commands) {
		for _, f := range l.flags {
			d, ok := f.(cli.DocGenerationFlag)
			c := candidate{word: dashed(f.Names()[0])}
			if ok {
				c.about = strings.ReplaceAll(d.GetUsage(), "`", "")
			}
			if !slices.ContainsFunc(out, func(o candidate) bool { return o.word == c.word }) {
				out = append(out, c)
			}
		}
	}
	return out
}

func commandNames(commands []*cli.Command) []candidate {
	var out []candidate
	for _, c := range commands {
		if !c.Hidden {
			out = append(out, candidate{c.Name, c.Usage})
		}
	}
	return out
}

func (a *app) flagValues(ctx context.Context, p *place, flag string) []candidate {
	switch flag {
	case "output", "o":
		return bare(formats)
	case "map":
		return bare(mapNames)
	case "dpu":
		return a.liveNames(ctx, p, "dpus")
	case "pin":
		if pins, _ := a.pinFolders(); len(pins) > 0 {
			return bare(pins)
		}
		return files
	case "log-format":
		return bare([]string{"text", "json"})
	case "log-level":
		return bare([]string{"debug", "info", "warn", "error"})
	case "file", "f", "data-dir", "gossip-key-file":
		return files
	}
	return nil
}

func (a *app) argValues(ctx context.Context, p *place) []candidate {
	switch at := fmt.Sprintf("%s %d", p.name(), len(p.args)); at {
	case "ctl assign 0":
		return a.liveNames(ctx, p, "free nodes")
	case "ctl assign 1":
		return a.liveNames(ctx, p, "tenants")
	case "ctl reclaim 0":
		return a.liveNames(ctx, p, "assigned nodes")
	case "ctl status 0":
		return []candidate{{"node", "one node"}, {"dpu", "one DPU"}}
	case "ctl status 1":
		return a.liveNames(ctx, p, p.args[0]+"s")
	case "ctl mode 0":
		return bare([]string{"enforce", "audit", "off"})
	case "ctl completion 0":
		return bare([]string{"bash", "zsh", "fish"})
	}
	return nil
}

func bare(words []string) []candidate {
	return views(words, func(w string) candidate { return candidate{word: w} })
}

// liveNames asks the controller that the command line names; nothing when it does not answer in time.
func (a *app) liveNames(ctx context.Context, p *place, what string) []candidate {
	cl, err := a.dialURL(p.value("controller"))
	if err != nil {
		return nil
	}
	var out []candidate
	switch what {
	case "tenants":
		r, err := cl.ListTenants(ctx, connect.NewRequest(&dpudv1.ListTenantsRequest{}))
		if err != nil {
			return nil
		}
		for _, t := range r.Msg.GetTenants() {
			out = append(out, candidate{t.GetName(), fmt.Sprintf("VNI %d, %s", t.GetVni(), count(len(t.GetNodes()), "node"))})
		}
	case "dpus":
		r, err := cl.ListDPUs(ctx, connect.NewRequest(&dpudv1.ListDPUsRequest{}))
		if err != nil {
			return nil
		}
		for _, d := range r.Msg.GetDpus() {
			out = append(out, candidate{d.GetName(), "rack " + d.GetRack()})
		}
	case "nodes", "free nodes", "assigned nodes":
		r, err := cl.ListNodes(ctx, connect.NewRequest(&dpudv1.ListNodesRequest{}))
		if err != nil {
			return nil
		}
		for _, n := range views(r.Msg.GetNodes(), viewNode) {
			free := n.Phase == "free"
			if what == "nodes" || free == (what == "free nodes") {
				out = append(out, candidate{n.Name, describe(n)})
			}
		}
	}
	return out
}

// value is what the command line gives for a global flag, or "".
func (p *place) value(flag string) string {
	given := p.commands[0].given
	for i, w := range given {
		name, value, ok := strings.Cut(strings.TrimLeft(w, "-"), "=")
		if name == flag && w[0] == '-' && !ok && i+1 < len(given) {
			return given[i+1]
		}
		if name == flag && w[0] == '-' && ok {
			return value
		}
	}
	return ""
}
