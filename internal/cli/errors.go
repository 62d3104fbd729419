package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"connectrpc.com/connect"

	"dpud/pkg/control/management"
)

// The exit codes.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2 // the command line is wrong; nothing was asked
	exitRefused     = 3 // by the guard or a precondition; nothing changed
	exitTimeout     = 4 // or interrupted; the request stands
	exitUnreachable = 5 // no controller answers
)

// codedError is an error with its exit code.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

func coded(code int, format string, args ...any) error {
	return &codedError{code, fmt.Errorf(format, args...)}
}

func usagef(format string, args ...any) error { return coded(exitUsage, format, args...) }

func exitCode(err error) int {
	var c *codedError
	if errors.As(err, &c) {
		return c.code
	}
	return exitFailed
}

// Whether a call that gets no answer may have changed something.
type effect bool

const (
	reads  effect = false
	writes effect = true
)

// callError says what a failed call of the controller means: what was asked, why not, and what to do.
func (c *client) callError(err error, what string, e effect) error {
	if err == nil {
		return nil
	}
	var ce *connect.Error
	if !errors.As(err, &ce) {
		ce = connect.NewError(connect.CodeUnknown, err)
	}
	text := answerText(ce)
	if !connect.IsWireError(err) {
		return c.noAnswer(ce, what, e)
	}
	switch ce.Code() {
	case connect.CodeFailedPrecondition:
		return coded(exitRefused, "%s: %s", what, text)
	case connect.CodeAborted:
		return coded(exitFailed, "%s: %s; another change came first: ask again", what, text)
	case connect.CodeUnavailable:
		return coded(exitFailed, "%s: the controller can't do it now: %s; ask again, and see `ctl status`", what, text)
	case connect.CodeDeadlineExceeded:
		return c.noAnswer(ce, what, e)
	case connect.CodeUnimplemented:
		return coded(exitFailed, "%s: %s does not know this call (%s); is it a dpud controller, and as new as this ctl? compare `ctl version`", what, c.url, text)
	}
	return coded(exitFailed, "%s: %s", what, text)
}

// answerText is the controller's sentence. What its code says already (": refused" behind each line) goes.
func answerText(ce *connect.Error) string {
	lines := strings.Split(strings.TrimSpace(ce.Message()), "\n")
	for i := range lines {
		for _, kind := range []error{management.ErrNotFound, management.ErrPrecondition, management.ErrInvalid} {
			lines[i] = strings.TrimSuffix(lines[i], ": "+kind.Error())
		}
	}
	return strings.Join(lines, "\n  ")
}

// noAnswer explains a call that no controller answered.
func (c *client) noAnswer(ce *connect.Error, what string, e effect) error {
	cause := rootCause(ce)
	switch {
	case ce.Code() == connect.CodeCanceled && e == writes:
		return coded(exitTimeout, "%s: interrupted before %s answered; the request may stand: look with `ctl status`", what, c.url)
	case ce.Code() == connect.CodeCanceled:
		return coded(exitFailed, "%s: interrupted", what)
	case ce.Code() == connect.CodeDeadlineExceeded && e == writes:
		return coded(exitTimeout, "%s: no answer from %s in time; the request may stand: look with `ctl status` before you ask again", what, c.url)
	case ce.Code() == connect.CodeDeadlineExceeded:
		return coded(exitUnreachable, "%s: no answer from %s in time; ask again, with a longer --timeout if need be", what, c.url)
	case errors.Is(ce, fs.ErrPermission):
		return coded(exitUnreachable, "%s: reach %s: %s; become root, or name another controller with --controller", what, c.url, cause)
	case ce.Code() == connect.CodeUnavailable:
		return coded(exitUnreachable, "%s: reach %s: %s; start it with `ctl controller`, or name another with --controller or DPUD_CONTROLLER", what, c.url, cause)
	}
	return coded(exitUnreachable, "%s: %s does not answer as a controller: %s; is the URL right?", what, c.url, cause)
}

// rootCause is the innermost error's text: what the system said, without the layers that carried it.
func rootCause(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}

// interrupted says whether ctx ended because the user stopped ctl, not because time ran out.
func interrupted(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }
