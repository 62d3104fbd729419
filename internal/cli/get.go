package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/site"
)

func (a *app) getCommand() *cli.Command {
	return group(&cli.Command{
		Name: "get", Usage: "list what the controller knows",
		Subcommands: []*cli.Command{
			leaf(&cli.Command{Name: "site", Usage: "the site file, as it could be applied again", Action: a.asked(a.getSite)}),
			leaf(&cli.Command{Name: "nodes", Usage: "nodes with their phase and tenant", Action: a.asked(a.getNodes)}),
			leaf(&cli.Command{Name: "tenants", Usage: "tenants with their nodes", Action: a.asked(a.getTenants)}),
			leaf(&cli.Command{Name: "dpus", Usage: "DPUs and whether they answer", Action: a.asked(a.getDPUs)}),
			leaf(&cli.Command{Name: "entries", Usage: "what the tenants' control planes ask to be programmed", Action: a.asked(a.getEntries)}),
		},
	})
}

// asked makes an action of a function that asks the controller something, within the time for an answer.
func (a *app) asked(f func(ctx context.Context, c *cli.Context, cl *client) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		cl, err := a.dial(c)
		if err != nil {
			return err
		}
		ctx, cancel := within(c, answerTimeout)
		defer cancel()
		return f(ctx, c, cl)
	}
}

func (a *app) getSite(ctx context.Context, c *cli.Context, cl *client) error {
	r, err := cl.GetSite(ctx, connect.NewRequest(&dpudv1.GetSiteRequest{}))
	if err != nil {
		return cl.callError(err, "get site", reads)
	}
	file := r.Msg.GetSiteFile()
	if c.String("output") != "json" {
		fmt.Fprintf(a.env.Stdout, "# site id %s, epoch %d\n", r.Msg.GetSiteId(), r.Msg.GetEpoch())
		_, err := a.env.Stdout.Write(file)
		return err
	}
	s := new(site.Site)
	if err := yaml.Unmarshal(file, s); err != nil {
		return fmt.Errorf("get site: read the controller's answer: %w", err)
	}
	return a.print(c, s, nil)
}

func (a *app) getNodes(ctx context.Context, c *cli.Context, cl *client) error {
	r, err := cl.ListNodes(ctx, connect.NewRequest(&dpudv1.ListNodesRequest{}))
	if err != nil {
		return cl.callError(err, "get nodes", reads)
	}
	v := struct {
		Nodes []nodeView `json:"nodes"`
	}{views(r.Msg.GetNodes(), viewNode)}
	return a.print(c, v, func(w io.Writer) error { return a.nodeRows(v.Nodes).write(w) })
}

func (a *app) nodeRows(nodes []nodeView) rows {
	t := rows{{"NODE", "ID", "RACK", "PHASE", "TENANT", "GENERATION", "SINCE", "WAITING FOR", "ADDRESSES"}}
	for _, n := range nodes {
		t = append(t, []string{
			n.Name, decimal(n.ID), n.Rack, n.Phase, n.Tenant, decimal(n.Generation), age(a.env.Now(), n.Since), list(n.WaitingFor), list(n.Addresses),
		})
	}
	return t
}

func (a *app) getTenants(ctx context.Context, c *cli.Context, cl *client) error {
	r, err := cl.ListTenants(ctx, connect.NewRequest(&dpudv1.ListTenantsRequest{}))
	if err != nil {
		return cl.callError(err, "get tenants", reads)
	}
	v := struct {
		Tenants []tenantView `json:"tenants"`
	}{views(r.Msg.GetTenants(), viewTenant)}
	t := rows{{"TENANT", "ID", "VNI", "NODES"}}
	for _, x := range v.Tenants {
		t = append(t, []string{x.Name, decimal(x.ID), decimal(x.VNI), list(x.Nodes)})
	}
	return a.print(c, v, t.write)
}

func (a *app) getDPUs(ctx context.Context, c *cli.Context, cl *client) error {
	r, err := cl.ListDPUs(ctx, connect.NewRequest(&dpudv1.ListDPUsRequest{}))
	if err != nil {
		return cl.callError(err, "get dpus", reads)
	}
	v := struct {
		DPUs []dpuView `json:"dpus"`
	}{views(r.Msg.GetDpus(), viewDPU)}
	return a.print(c, v, func(w io.Writer) error { return a.dpuRows(v.DPUs).write(w) })
}

func (a *app) dpuRows(dpus []dpuView) rows {
	t := rows{{"DPU", "RACK", "BOOT", "ANSWERS", "LEASE ASKED", "PENDING", "ADDRESS", "ERROR"}}
	for _, d := range dpus {
		boot, answers := "never", "no"
		if d.Boot > 0 {
			boot = decimal(d.Boot)
		}
		if d.Reachable {
			answers = "yes"
		}
		asked := age(a.env.Now(), d.LeaseAsked)
		if asked != "" {
			asked += " ago"
		}
		t = append(t, []string{d.Name, d.Rack, boot, answers, asked, decimal(d.Pending), d.Address, d.Error})
	}
	return t
}

func (a *app) getEntries(ctx context.Context, c *cli.Context, cl *client) error {
	r, err := cl.ListEntries(ctx, connect.NewRequest(&dpudv1.ListEntriesRequest{}))
	if err != nil {
		return cl.callError(err, "get entries", reads)
	}
	v := struct {
		Entries []entryView `json:"entries"`
	}{views(r.Msg.GetEntries(), viewEntry)}
	t := rows{{"TENANT", "NODE", "EPOCH", "GENERATION", "REVISION", "STATE"}}
	for _, e := range v.Entries {
		state := "wanted"
		if e.Deleted {
			state = "deleted"
		}
		t = append(t, []string{e.Tenant, e.Node, decimal(e.Epoch), decimal(e.Generation), decimal(e.Revision), state})
	}
	return a.print(c, v, t.write)
}

func decimal[T uint32 | uint64](n T) string { return strconv.FormatUint(uint64(n), 10) }
