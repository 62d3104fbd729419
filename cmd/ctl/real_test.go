package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/rogpeppe/go-internal/testscript"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/api/dpudv1/dpudv1connect"
	"dpud/pkg/record"
	"dpud/pkg/wire"
)

// TestRealController runs ctl against `ctl controller` with its embedded store; only the DPUs are played.
func TestRealController(t *testing.T) {
	site, err := filepath.Abs("../../docs/examples/site.yaml")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/real",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE") != "",
		Setup: func(e *testscript.Env) error {
			socket := filepath.Join(e.WorkDir, "run", "controller.sock")
			e.Setenv("DPUD_CONTROLLER", "unix://"+socket)
			e.Setenv("SITE", site)
			e.Values[playersKey{}] = players{socket: socket, dpus: map[string]*player{}}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits,
			// ready waits until the controller says that it is.
			"ready": func(ts *testscript.TestScript, _ bool, _ []string) {
				ts.Check(ts.Value(playersKey{}).(players).ready(t.Context()))
			},
			// await FILE TEXT waits until a file holds a text.
			"await": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(poll(t.Context(), args[0]+" holds "+args[1], func() (bool, error) {
					b, err := os.ReadFile(ts.MkAbs(args[0]))
					return strings.Contains(string(b), args[1]), err
				}))
			},
			// dpu NAME programmed|cleared NODE waits until the node is granted or revoked, and confirms it.
			"dpu": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(ts.Value(playersKey{}).(players).confirm(t.Context(), args[0], args[1], args[2]))
			},
		},
	})
}

type playersKey struct{}

// players are the DPUs of a script: they speak the protocol and have no kernel.
type players struct {
	socket string
	dpus   map[string]*player
}

type player struct {
	site     record.SiteID
	epoch    record.Epoch
	boot     record.Boot
	sequence uint64
}

func (p players) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", p.socket)
	}}}
}

// poll calls until until it says true; its errors mean: not yet.
func poll(ctx context.Context, what string, until func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		ok, err := until()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w (last: %v)", what, ctx.Err(), err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (p players) ready(ctx context.Context) error {
	return poll(ctx, "the controller is ready", func() (bool, error) {
		r, err := p.client().Get("http://controller/readyz")
		if err != nil {
			return false, err
		}
		defer r.Body.Close()
		return r.StatusCode == http.StatusOK, nil
	})
}

func (p players) register(ctx context.Context, name string) (*player, error) {
	if d := p.dpus[name]; d != nil {
		return d, nil
	}
	plane := dpudv1connect.NewPlaneServiceClient(p.client(), "http://controller")
	e, err := wire.Seal("", 0, &record.LeaseRequest{DPU: record.DPU(name), Instance: "played", Nonce: 1, HardwareID: "hw-" + name})
	if err != nil {
		return nil, err
	}
	r, err := plane.Lease(ctx, connect.NewRequest(&dpudv1.LeaseCall{Request: e}))
	if err != nil {
		return nil, err
	}
	site := record.SiteID(r.Msg.GetLease().GetSiteId())
	rec, err := wire.Open(site, r.Msg.GetLease())
	if err != nil {
		return nil, err
	}
	l := rec.(*record.Lease)
	if l.Refused != "" {
		return nil, fmt.Errorf("lease of %s: %s", name, l.Refused)
	}
	p.dpus[name] = &player{site: site, epoch: l.Epoch, boot: l.Boot}
	return p.dpus[name], nil
}

func (p players) confirm(ctx context.Context, name, state, node string) error {
	d, err := p.register(ctx, name)
	if err != nil {
		return err
	}
	want, confirmed := dpudv1.Phase_PHASE_GRANTED, record.Programmed
	if state == "cleared" {
		want, confirmed = dpudv1.Phase_PHASE_REVOKED, record.Cleared
	}
	controller := dpudv1connect.NewControllerServiceClient(p.client(), "http://controller")
	var status *dpudv1.NodeStatus
	err = poll(ctx, node+" is "+want.String(), func() (bool, error) {
		r, err := controller.ListNodes(ctx, connect.NewRequest(&dpudv1.ListNodesRequest{}))
		if err != nil {
			return false, err
		}
		for _, n := range r.Msg.GetNodes() {
			if n.GetName() == node {
				status = n
			}
		}
		return status.GetPhase() == want, nil
	})
	if err != nil {
		return err
	}
	d.sequence++
	e, err := wire.Seal(d.site, d.epoch, &record.Confirmation{
		DPU: record.DPU(name), Node: record.NodeID(status.GetId()), Boot: d.boot, Sequence: d.sequence, State: confirmed,
		Epoch: record.Epoch(status.GetEpoch()), Generation: record.Generation(status.GetGeneration()), Revision: record.Revision(status.GetRevision()),
	})
	if err != nil {
		return err
	}
	plane := dpudv1connect.NewPlaneServiceClient(p.client(), "http://controller")
	_, err = plane.Confirm(ctx, connect.NewRequest(&dpudv1.ConfirmRequest{Confirmations: []*dpudv1.Envelope{e}}))
	return err
}
