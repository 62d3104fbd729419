package store

import (
	"context"
	"log/slog"

	"go.uber.org/zap/zapcore"
)

// core hands etcd's log lines to slog.
type core struct {
	zapcore.LevelEnabler
	log *slog.Logger
}

func newCore(log *slog.Logger, level zapcore.LevelEnabler) zapcore.Core {
	return &core{LevelEnabler: level, log: log.With("component", "etcd")}
}

func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{LevelEnabler: c.LevelEnabler, log: c.log.With(attrs(fields)...)}
}

// teething are complaints of a new store that etcd settles by itself within seconds.
var teething = map[string]bool{"Failed to detect schema version": true, "failed to update storage version": true}

func (c *core) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) && !teething[e.Message] {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c *core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	level := slog.LevelWarn
	if e.Level > zapcore.WarnLevel {
		level = slog.LevelError
	}
	c.log.Log(context.Background(), level, e.Message, attrs(fields)...)
	return nil
}

func (c *core) Sync() error { return nil }

func attrs(fields []zapcore.Field) []any {
	m := zapcore.NewMapObjectEncoder()
	a := make([]any, 0, len(fields))
	for _, f := range fields {
		f.AddTo(m)
	}
	for k, v := range m.Fields {
		// A slow request comes as a whole.
		if text, ok := v.(string); ok && len(text) > maxLogged {
			v = text[:maxLogged] + "…"
		}
		a = append(a, slog.Any(k, v))
	}
	return a
}

// maxLogged bounds a value in the log, in bytes.
const maxLogged = 200
