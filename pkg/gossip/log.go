package gossip

import (
	"bytes"
	"context"
	"log/slog"

	"golang.org/x/time/rate"
)

// logWriter turns memberlist's log lines into slog records, and counts from them what memberlist reports in no
// other way: traffic of strangers. Lines above debug are limited, since anyone can cause them with a packet.
type logWriter struct {
	log      *slog.Logger
	counters *counters
	limit    *rate.Limiter
}

func newLogWriter(log *slog.Logger, c *counters) *logWriter {
	return &logWriter{log: log, counters: c, limit: rate.NewLimiter(5, 50)}
}

// strangerMarks are memberlist's words for a wrong label or key.
var strangerMarks = [][]byte{
	[]byte("unacceptable label"),
	[]byte("Decrypt packet failed"),
	[]byte("encryption is configured but remote state is not encrypted"),
	[]byte("encryption is not configured"),
	[]byte("could decrypt"),
}

// memberlist's errors are about peers and repaired by the next attempt, so they are warnings here.
var logLevels = []struct {
	prefix []byte
	level  slog.Level
}{
	{[]byte("[DEBUG] "), slog.LevelDebug},
	{[]byte("[INFO] "), slog.LevelInfo},
	{[]byte("[WARN] "), slog.LevelWarn},
	{[]byte("[ERR] "), slog.LevelWarn},
	{[]byte("[ERROR] "), slog.LevelWarn},
}

// Write handles one line. It never fails.
func (w *logWriter) Write(line []byte) (int, error) {
	level, text := slog.LevelWarn, bytes.TrimSpace(line)
	for _, l := range logLevels {
		if rest, ok := bytes.CutPrefix(text, l.prefix); ok {
			level, text = l.level, rest
			break
		}
	}
	for _, m := range strangerMarks {
		if bytes.Contains(text, m) {
			w.counters.strangers.Add(1)
			break
		}
	}
	if !w.log.Enabled(context.Background(), level) {
		return len(line), nil
	}
	if level == slog.LevelDebug || w.limit.Allow() {
		w.log.Log(context.Background(), level, string(text))
	} else {
		w.counters.logsSuppressed.Add(1)
	}
	return len(line), nil
}
