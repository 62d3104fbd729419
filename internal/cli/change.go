package cli

import (
	"context"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	"dpud/pkg/api/dpudv1"
)

var noWaitFlag = &cli.BoolFlag{Name: "no-wait", Usage: "return as soon as the controller has the request"}

func (a *app) assignCommand() *cli.Command {
	return leaf(&cli.Command{
		Name:  "assign",
		Usage: "assign a free node to a tenant",
		Description: "Waits until every DPU that serves the node has confirmed that it is programmed. When --timeout\n" +
			"(default 60s) is over first, the exit code is 4 and the request stands.",
		Flags:  []cli.Flag{noWaitFlag},
		Action: a.assign,
	}, "NODE", "TENANT")
}

func (a *app) reclaimCommand() *cli.Command {
	return leaf(&cli.Command{
		Name:  "reclaim",
		Usage: "take a node back from its tenant",
		Description: "Waits until every DPU that could have forwarded for it has confirmed that it no longer does, and\n" +
			"the node is free. When --timeout (default 60s) is over first, the exit code is 4 and the request\n" +
			"stands. Reclaiming again changes nothing, and waits again.",
		Flags:  []cli.Flag{noWaitFlag},
		Action: a.reclaim,
	}, "NODE")
}

func (a *app) assign(c *cli.Context) error {
	node, tenant := c.Args().Get(0), c.Args().Get(1)
	w := wait{what: fmt.Sprintf("assign %s to %s", node, tenant), node: node, state: "programmed"}
	return a.change(c, w, func(ctx context.Context, cl *client) (*dpudv1.NodeStatus, error) {
		r, err := cl.Assign(ctx, connect.NewRequest(&dpudv1.AssignRequest{Node: node, Tenant: tenant}))
		if err != nil {
			return nil, err
		}
		return r.Msg.GetNode(), nil
	})
}

func (a *app) reclaim(c *cli.Context) error {
	node := c.Args().Get(0)
	w := wait{what: "reclaim " + node, node: node, state: "cleared"}
	return a.change(c, w, func(ctx context.Context, cl *client) (*dpudv1.NodeStatus, error) {
		r, err := cl.Reclaim(ctx, connect.NewRequest(&dpudv1.ReclaimRequest{Node: node}))
		if err != nil {
			return nil, err
		}
		return r.Msg.GetNode(), nil
	})
}

// change makes a request, waits for its DPUs unless told otherwise, and says what is different now.
func (a *app) change(c *cli.Context, w wait, request func(context.Context, *client) (*dpudv1.NodeStatus, error)) error {
	cl, err := a.dial(c)
	if err != nil {
		return err
	}
	d := waitTimeout
	if c.Bool("no-wait") {
		d = answerTimeout
	}
	ctx, cancel := within(c, d)
	defer cancel()
	status, err := request(ctx, cl)
	if err != nil {
		return cl.callError(err, w.what, writes)
	}
	w.start, w.limit = viewNode(status), limit(c, d)
	end := w.start
	if !c.Bool("no-wait") {
		if end, err = a.follow(ctx, cl, w); err != nil {
			return a.standing(c, end, err)
		}
	}
	return a.print(c, end, func(out io.Writer) error {
		_, err := fmt.Fprintln(out, w.result(end))
		return err
	})
}

// standing prints, for programs, the node of a request that stands though the wait for it is over.
func (a *app) standing(c *cli.Context, n nodeView, err error) error {
	if exitCode(err) != exitTimeout || c.String("output") == "table" {
		return err
	}
	if failed := a.print(c, n, nil); failed != nil {
		return failed
	}
	return err
}

// result says what the request has changed so far.
func (w wait) result(n nodeView) string {
	text := fmt.Sprintf("node %s: %s", w.node, describe(n))
	switch {
	case w.start.Phase == "free":
		return text + "; nothing to reclaim"
	case w.state == "cleared" && w.start.olderThan(n):
		return fmt.Sprintf("node %s: reclaimed from %s, generation %d is over; %s meanwhile", w.node, w.start.Tenant, w.start.Generation, describe(n))
	case w.state == "cleared" && n.Phase == "free":
		text = fmt.Sprintf("node %s: free, reclaimed from %s at generation %d", w.node, w.start.Tenant, n.Generation)
	}
	if done := n.confirmed(w.state); len(done) > 0 {
		text += fmt.Sprintf("; %s on %s", w.state, list(done))
	}
	if len(n.WaitingFor) > 0 {
		text += "; waiting for " + list(n.WaitingFor)
	}
	return text
}

// olderThan says whether m belongs to a later assignment.
func (n nodeView) olderThan(m nodeView) bool {
	return n.Epoch < m.Epoch || (n.Epoch == m.Epoch && n.Generation < m.Generation)
}
