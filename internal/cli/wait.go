package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"dpud/pkg/api/dpudv1"
)

// wait is a request whose DPUs are waited for.
type wait struct {
	what  string // the request, for messages
	node  string
	state string // what each DPU shall confirm: programmed or cleared
	limit time.Duration
	start nodeView // as the controller answered
}

// done says whether the node is where the request wants it; an error: it never will be.
func (w wait) done(n nodeView) (bool, error) {
	if w.state == "cleared" {
		return n.Phase == "free" || w.start.olderThan(n), nil
	}
	if n.Phase != "granted" || w.start.olderThan(n) {
		return false, fmt.Errorf("%s: the node was reclaimed meanwhile: it is %s", w.what, describe(n))
	}
	return len(n.WaitingFor) == 0, nil
}

// update is one message of a watch, or why there is none.
type update struct {
	node nodeView
	err  error
}

// follow waits until the request is done, ctx ends, or it can't be done any more.
func (a *app) follow(ctx context.Context, cl *client, w wait) (nodeView, error) {
	last := w.start
	if done, err := w.done(last); done || err != nil {
		return last, err
	}
	p := a.newProgress(w)
	defer p.end()
	p.show(last)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	updates := cl.watch(watching, w.node)
	for {
		select {
		case <-ctx.Done():
			p.end()
			return last, w.unfinished(ctx, last)
		case <-p.tick:
			p.show(last)
		case u := <-updates:
			switch {
			case ctx.Err() != nil || connect.CodeOf(u.err) == connect.CodeDeadlineExceeded: // seen first by the controller
			case u.err == nil:
				last = u.node
				p.unreachable = ""
				if done, err := w.done(last); done || err != nil {
					return last, err
				}
				p.show(last)
			case passing(u.err):
				p.unreachable = rootCause(u.err)
				p.show(last)
			default:
				return last, cl.callError(u.err, w.what+": the request was taken, but waiting for it failed", writes)
			}
		}
	}
}

// unfinished is the error of a wait that ended before its request was done.
func (w wait) unfinished(ctx context.Context, last nodeView) error {
	stands := fmt.Sprintf("the request stands; look with `ctl status node %s`", w.node)
	if interrupted(ctx) {
		return coded(exitTimeout, "%s: stopped waiting for %s; %s", w.what, some(last.WaitingFor), stands)
	}
	return coded(exitTimeout, "%s: not %s on %s within %s; %s", w.what, w.state, some(last.WaitingFor), w.limit, stands)
}

// watch sends the node's status now and at each change, until ctx ends. When the stream breaks it sends the
// error and, if that may pass, watches again.
func (c *client) watch(ctx context.Context, node string) <-chan update {
	updates := make(chan update)
	send := func(u update) {
		select {
		case updates <- u:
		case <-ctx.Done():
		}
	}
	go func() {
		const least, most = 100 * time.Millisecond, 2 * time.Second
		pause := least
		for ctx.Err() == nil {
			err := c.watchOnce(ctx, node, func(n nodeView) {
				pause = least
				send(update{node: n})
			})
			send(update{err: err})
			if !passing(err) {
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			pause = min(2*pause, most)
		}
	}()
	return updates
}

// watchOnce reads one stream to its end, which is always an error.
func (c *client) watchOnce(ctx context.Context, node string, each func(nodeView)) error {
	stream, err := c.WatchNode(ctx, connect.NewRequest(&dpudv1.WatchNodeRequest{Node: node}))
	if err != nil {
		return err
	}
	defer stream.Close()
	for stream.Receive() {
		each(viewNode(stream.Msg().GetNode()))
	}
	if err := stream.Err(); err != nil {
		return err
	}
	return connect.NewError(connect.CodeUnavailable, errors.New("the controller ended the watch"))
}

// passing says whether a failed watch is worth another try: the controller is away or restarting.
func passing(err error) bool {
	switch connect.CodeOf(err) {
	case connect.CodeNotFound, connect.CodeInvalidArgument, connect.CodeUnimplemented, connect.CodeFailedPrecondition, connect.CodePermissionDenied:
		return false
	}
	return true
}
