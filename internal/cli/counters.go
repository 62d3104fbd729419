package cli

import (
	"io"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/maps"
)

type counterView struct {
	Hook    string `json:"hook"`
	Verdict string `json:"verdict"`
	Reason  string `json:"reason"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

func (a *app) countersCommand() *cli.Command {
	return leaf(&cli.Command{
		Name:  "counters",
		Usage: "packets passed and dropped by a DPU, by reason",
		Description: "Since the maps were made. Each packet is counted once at each hook that judges it: ingress on every\n" +
			"port, egress again on node ports.",
		Flags: []cli.Flag{
			dpuFlag, pinFlag,
			&cli.BoolFlag{Name: "all", Usage: "print the counters that are 0 too (not with --dpu)"},
		},
		Action: a.counters,
	})
}

func (a *app) counters(c *cli.Context) error {
	far, err := remote(c)
	if err != nil {
		return err
	}
	read := a.pinnedCounters
	if far {
		read = a.dpuCounters
	}
	all, err := read(c)
	if err != nil {
		return err
	}
	v := struct {
		Counters []counterView `json:"counters"`
	}{[]counterView{}}
	for _, x := range all {
		if x.Packets > 0 || c.Bool("all") {
			v.Counters = append(v.Counters, x)
		}
	}
	return a.print(c, v, func(w io.Writer) error {
		if len(v.Counters) == 0 {
			return lines("no packet has been judged")(w)
		}
		t := rows{{"HOOK", "VERDICT", "REASON", "PACKETS", "BYTES"}}
		for _, x := range v.Counters {
			t = append(t, []string{x.Hook, x.Verdict, x.Reason, decimal(x.Packets), decimal(x.Bytes)})
		}
		return t.write(w)
	})
}

func (a *app) pinnedCounters(c *cli.Context) ([]counterView, error) {
	m, _, err := a.open(c)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	counters, err := m.Counters()
	if err != nil {
		return nil, err
	}
	return views(counters, func(x maps.Counter) counterView {
		verdict := "pass"
		if x.Reason.Dropped() {
			verdict = "drop"
		}
		return counterView{x.Hook, verdict, x.Reason.Label(), x.Packets, x.Bytes}
	}), nil
}

func (a *app) dpuCounters(c *cli.Context) ([]counterView, error) {
	cl, err := a.dial(c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := within(c, answerTimeout)
	defer cancel()
	dpu := c.String("dpu")
	r, err := cl.Counters(ctx, connect.NewRequest(&dpudv1.ControllerCountersRequest{Dpu: dpu}))
	if err != nil {
		return nil, cl.callError(err, "counters of "+dpu, reads)
	}
	return views(r.Msg.GetCounters(), func(x *dpudv1.Counter) counterView {
		return counterView{x.GetHook(), x.GetVerdict(), x.GetReason(), x.GetPackets(), x.GetBytes()}
	}), nil
}
