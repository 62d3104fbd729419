package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	"dpud/pkg/api/dpudv1"
)

func (a *app) statusCommand() *cli.Command {
	c := leaf(&cli.Command{
		Name:  "status",
		Usage: "the site at a glance, or one node or DPU",
		Description: "Says for each node that waits which DPUs it waits for, since when, what each last confirmed,\n" +
			"and the next safe action.",
		Action: a.asked(a.status),
	}, "[node|dpu]", "[NAME]")
	return c
}

func (a *app) status(ctx context.Context, c *cli.Context, cl *client) error {
	switch kind, name := c.Args().Get(0), c.Args().Get(1); {
	case kind == "":
		return a.siteStatus(ctx, c, cl)
	case (kind == "node" || kind == "dpu") && name == "":
		return usagef("ctl status %s: which? `ctl get %ss` lists them", kind, kind)
	case kind == "node":
		return a.nodeStatus(ctx, c, cl, name)
	case kind == "dpu":
		return a.dpuStatus(ctx, c, cl, name)
	default:
		return usagef("ctl status %s: want ctl status, ctl status node NAME or ctl status dpu NAME", kind)
	}
}

func (a *app) siteStatus(ctx context.Context, c *cli.Context, cl *client) error {
	r, err := cl.Status(ctx, connect.NewRequest(&dpudv1.StatusRequest{}))
	if err != nil {
		return cl.callError(err, "status", reads)
	}
	v := viewStatus(r.Msg)
	return a.print(c, v, func(w io.Writer) error {
		site := v.Site
		if site == "" {
			site = "none yet, `ctl apply -f FILE` makes one"
		}
		fmt.Fprintf(w, "site        %s (id %s, epoch %d)\n", site, v.SiteID, v.Epoch)
		fmt.Fprintf(w, "controller  %s, version %s\n", cl.url, v.Version)
		fmt.Fprintf(w, "nodes       %s\n", phases(v.NodesByPhase))
		fmt.Fprintf(w, "gossip      %s\n", count(int(v.GossipMembers), "member"))
		if len(v.DPUs) > 0 {
			fmt.Fprintln(w)
			if err := a.dpuRows(v.DPUs).write(w); err != nil {
				return err
			}
		}
		for _, n := range v.Waiting {
			fmt.Fprintln(w)
			if err := a.writeNode(w, n); err != nil {
				return err
			}
		}
		if len(v.Waiting) == 0 {
			fmt.Fprintln(w, "\nno node waits for anything")
		}
		return nil
	})
}

// phases counts nodes, in the order in which a node passes through the phases.
func phases(byPhase map[string]uint32) string {
	var parts []string
	for _, p := range []string{"granted", "revoked", "free"} {
		parts = append(parts, fmt.Sprintf("%d %s", byPhase[p], p))
	}
	return strings.Join(parts, ", ")
}

// node asks for one node: the first message of its watch.
func (c *client) node(ctx context.Context, name string) (nodeView, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.WatchNode(ctx, connect.NewRequest(&dpudv1.WatchNodeRequest{Node: name}))
	if err != nil {
		return nodeView{}, err
	}
	defer stream.Close()
	if !stream.Receive() {
		if err := stream.Err(); err != nil {
			return nodeView{}, err
		}
		return nodeView{}, fmt.Errorf("the controller ended the watch without an answer")
	}
	return viewNode(stream.Msg().GetNode()), nil
}

func (a *app) nodeStatus(ctx context.Context, c *cli.Context, cl *client, name string) error {
	n, err := cl.node(ctx, name)
	if err != nil {
		return cl.callError(err, "status node "+name, reads)
	}
	return a.print(c, n, func(w io.Writer) error { return a.writeNode(w, n) })
}

// writeNode tells where a node stands and what each DPU last confirmed of it.
func (a *app) writeNode(w io.Writer, n nodeView) error {
	fmt.Fprintf(w, "node %s: %s", n.Name, describe(n))
	if since := age(a.env.Now(), n.Since); since != "" {
		fmt.Fprintf(w, ", since %s", since)
	}
	fmt.Fprintln(w)
	if len(n.WaitingFor) > 0 && !strings.HasPrefix(n.Next, "waiting for") {
		fmt.Fprintf(w, "waits for %s\n", list(n.WaitingFor))
	}
	if n.Next != "" {
		fmt.Fprintf(w, "next: %s\n", n.Next)
	}
	if len(n.DPUs)+len(n.Ports) == 0 {
		return nil
	}
	t := rows{{"DPU", "PORT", "LAST CONFIRMED", "GENERATION", "BOOT", "AT"}}
	for _, d := range n.dpuNames() {
		cells := []string{d, "", "nothing", "", "", ""}
		if i := slices.IndexFunc(n.Ports, func(p portView) bool { return p.DPU == d }); i >= 0 {
			cells[1] = n.Ports[i].String()
		}
		if i := slices.IndexFunc(n.DPUs, func(p proofView) bool { return p.DPU == d && p.State != "none" }); i >= 0 {
			p := n.DPUs[i]
			cells[2], cells[3], cells[4] = p.State, decimal(p.Generation), decimal(p.Boot)
			if at := age(a.env.Now(), p.At); at != "" {
				cells[5] = at + " ago"
			}
		}
		t = append(t, cells)
	}
	return t.write(w)
}

// dpuNames are the DPUs that have to do with the node.
func (n nodeView) dpuNames() []string {
	var names []string
	for _, d := range n.DPUs {
		names = append(names, d.DPU)
	}
	for _, p := range n.Ports {
		names = append(names, p.DPU)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (p portView) String() string {
	if p.VLAN == 0 {
		return p.Port
	}
	return fmt.Sprintf("%s vlan %d", p.Port, p.VLAN)
}

// describe is a node's grant in words.
func describe(n nodeView) string {
	switch {
	case n.Phase == "granted":
		return fmt.Sprintf("granted to %s, generation %d", n.Tenant, n.Generation)
	case n.Phase == "revoked":
		return fmt.Sprintf("revoked from %s, generation %d", n.Tenant, n.Generation)
	case n.Generation == 0:
		return "free, never assigned"
	}
	return fmt.Sprintf("free, generation %d is over", n.Generation)
}

func (a *app) dpuStatus(ctx context.Context, c *cli.Context, cl *client, name string) error {
	what := "status dpu " + name
	r, err := cl.ListDPUs(ctx, connect.NewRequest(&dpudv1.ListDPUsRequest{}))
	if err != nil {
		return cl.callError(err, what, reads)
	}
	dpus := views(r.Msg.GetDpus(), viewDPU)
	i := slices.IndexFunc(dpus, func(d dpuView) bool { return d.Name == name })
	if i < 0 {
		return fmt.Errorf("%s: DPU %q is not in the site; `ctl get dpus` lists them", what, name)
	}
	nodes, err := cl.ListNodes(ctx, connect.NewRequest(&dpudv1.ListNodesRequest{}))
	if err != nil {
		return cl.callError(err, what, reads)
	}
	v := struct {
		DPU   dpuView    `json:"dpu"`
		Nodes []nodeView `json:"nodes"`
	}{dpus[i], slices.DeleteFunc(views(nodes.Msg.GetNodes(), viewNode), func(n nodeView) bool { return !slices.Contains(n.dpuNames(), name) })}
	return a.print(c, v, func(w io.Writer) error {
		if err := a.dpuRows(dpus[i : i+1]).write(w); err != nil {
			return err
		}
		t := rows{{"NODE", "PORT", "PHASE", "TENANT", "GENERATION", "LAST CONFIRMED"}}
		for _, n := range v.Nodes {
			cells := []string{n.Name, "", n.Phase, n.Tenant, decimal(n.Generation), "nothing"}
			if i := slices.IndexFunc(n.Ports, func(p portView) bool { return p.DPU == name }); i >= 0 {
				cells[1] = n.Ports[i].String()
			}
			if i := slices.IndexFunc(n.DPUs, func(p proofView) bool { return p.DPU == name && p.State != "none" }); i >= 0 {
				cells[5] = fmt.Sprintf("%s, generation %d", n.DPUs[i].State, n.DPUs[i].Generation)
			}
			t = append(t, cells)
		}
		fmt.Fprintln(w)
		return t.write(w)
	})
}
