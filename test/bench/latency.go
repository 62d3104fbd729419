package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"dpud/pkg/api/dpudv1"
	"dpud/pkg/api/dpudv1/dpudv1connect"
	"dpud/test/rack"
)

// latency times the main job on real processes: two DPUs in network namespaces, the controller's store on disk.
func latency(b *strings.Builder, bin string, cycles int) (err error) {
	r, err := rack.New(rack.Options{Name: "bench", Bin: bin})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, r.Logs(10))
		}
		if closeErr := r.Close(); err == nil {
			err = closeErr
		}
	}()
	if err := r.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		return r.Namespace("ctrl").Dial(ctx, network, address)
	}
	client := dpudv1connect.NewControllerServiceClient(&http.Client{Transport: &http.Transport{DialContext: dial}}, rack.ControllerURL)
	watch, err := client.WatchNode(ctx, connect.NewRequest(&dpudv1.WatchNodeRequest{Node: "n1"}))
	if err != nil {
		return err
	}
	defer watch.Close()

	// Each is timed from the request until the watch says that it is done.
	await := func(phase dpudv1.Phase) error {
		for watch.Receive() {
			if n := watch.Msg().GetNode(); n.GetPhase() == phase && len(n.GetWaitingFor()) == 0 {
				return nil
			}
		}
		return watch.Err()
	}
	var assigns, reclaims []time.Duration
	for range cycles {
		began := time.Now()
		if _, err := client.Assign(ctx, connect.NewRequest(&dpudv1.AssignRequest{Node: "n1", Tenant: "t1"})); err != nil {
			return err
		}
		if err := await(dpudv1.Phase_PHASE_GRANTED); err != nil {
			return err
		}
		assigns = append(assigns, time.Since(began))
		began = time.Now()
		if _, err := client.Reclaim(ctx, connect.NewRequest(&dpudv1.ReclaimRequest{Node: "n1"})); err != nil {
			return err
		}
		if err := await(dpudv1.Phase_PHASE_FREE); err != nil {
			return err
		}
		reclaims = append(reclaims, time.Since(began))
	}
	fmt.Fprintf(b, `
## The main job

Real processes in network namespaces, 2 DPUs, embedded etcd on disk, %d cycles of one node; from the request until a
watcher sees that it is done. A reclaim contains one barrier of the kernel.

| | p50 ms | p99 ms | aim (p99) |
|---|---|---|---|
| assign to programmed on both DPUs | %s | %s | 10 |
| reclaim to free | %s | %s | 25 |
`, cycles, ms(quantile(assigns, .5)), ms(quantile(assigns, .99)), ms(quantile(reclaims, .5)), ms(quantile(reclaims, .99)))
	return nil
}
