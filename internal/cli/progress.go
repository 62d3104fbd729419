package cli

import (
	"fmt"
	"io"
	"time"
)

// progress tells on stderr how a wait goes: on a terminal one line, written again and again, else a line
// for each change.
type progress struct {
	out         io.Writer
	columns     int // 0: no terminal
	wait        wait
	now         func() time.Time
	began       time.Time
	tick        <-chan time.Time // nil: no terminal
	ticker      *time.Ticker
	last        string
	unreachable string // why the controller does not answer; empty when it does
}

func (a *app) newProgress(w wait) *progress {
	p := &progress{out: a.env.Stderr, columns: a.env.Columns, wait: w, now: a.env.Now, began: a.env.Now()}
	if p.columns > 0 {
		p.ticker = time.NewTicker(time.Second)
		p.tick = p.ticker.C
	}
	return p
}

// show writes where the node stands.
func (p *progress) show(n nodeView) {
	text := p.wait.what + ": "
	if done := n.confirmed(p.wait.state); len(done) > 0 {
		text += fmt.Sprintf("%s on %s, ", p.wait.state, some(done))
	}
	if len(n.WaitingFor) > 0 {
		text += "waiting for " + some(n.WaitingFor)
	} else {
		text += "waiting for the controller"
	}
	if p.unreachable != "" {
		text += fmt.Sprintf(" (no answer from the controller: %s; asking again)", p.unreachable)
	}
	if p.columns > 0 {
		text += fmt.Sprintf(" (%s)", p.now().Sub(p.began).Round(time.Second))
		fmt.Fprintf(p.out, "\r\x1b[K%s", cut(text, p.columns-1))
		p.last = text
		return
	}
	if text != p.last {
		fmt.Fprintln(p.out, text)
	}
	p.last = text
}

// end clears the line on a terminal. It may be called again.
func (p *progress) end() {
	if p.ticker == nil {
		return
	}
	p.ticker.Stop()
	if p.last != "" {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.last = ""
	}
}

// cut shortens a text to n runes.
func cut(s string, n int) string {
	r := []rune(s)
	if n <= 0 || len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}
