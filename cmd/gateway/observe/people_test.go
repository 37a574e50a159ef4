package observe

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A line for people has the time of day, the level unless it is INFO, the message and the fields. Nothing of a field
// reaches the terminal that it would obey.
func TestLinesForPeople(t *testing.T) {
	var b bytes.Buffer
	log, err := NewLogger(&b, Logging{"debug", "text"})
	require.NoError(t, err)
	at := time.Date(2026, 5, 1, 10, 20, 30, 4e6, time.UTC)
	write := func(log *slog.Logger, level slog.Level, message string, fields ...any) {
		r := slog.NewRecord(at, level, message, 0)
		r.Add(fields...)
		require.NoError(t, log.Handler().Handle(context.Background(), r))
	}
	write(log, slog.LevelInfo, "gateway is up", "address", "127.0.0.1:8000", "n", 3)
	write(log.With("w", 1).WithGroup("g").With("v", "two words"), slog.LevelWarn, "leg failed", "error", errors.New("x\x1b[31m\n"),
		slog.Group("in", "k", true))
	write(log, slog.LevelError, "bad")
	l := NewLine(log, slog.LevelInfo, at, "request")
	require.True(t, l.Text(), "a line for people")
	l.Phrase("%s %d", Plain("a b"), 7)
	l.End()
	assert.Equal(t, "10:20:30.004 gateway is up address=127.0.0.1:8000 n=3\n"+
		"10:20:30.004 WARN leg failed w=1 g.v=\"two words\" g.error=\"x\\x1b[31m\\n\" g.in.k=true\n"+
		"10:20:30.004 ERROR bad\n"+
		"10:20:30.004 \"a b\" 7\n", b.String())
	coloured := (&output{colours: true}).appendHead(nil, at, slog.LevelError, "m")
	assert.Equal(t, "10:20:30.004 \x1b[31mERROR\x1b[0m m", string(coloured))
}

// Collectors get durations as milliseconds under a key with the unit, and no struct by its fields' names in Go. What is
// no terminal is for machines.
func TestFieldsForPrograms(t *testing.T) {
	type source struct{ Worker, Pool string }
	type role string
	const json = `"msg":"stopping","grace_ms":1500,"from":"{w m}","error":"gone","role":"both","with_ms":0.25,"ids":["a","b"]}`
	for format, want := range map[string]string{
		"json": json, "auto": json,
		"logfmt": `grace_ms=1500 from="{w m}" error=gone role=both with_ms=0.25 ids="[a b]"`,
		"text":   `grace=1.5s from="{w m}" error=gone role=both with=250µs ids="[a b]"`,
	} {
		var b bytes.Buffer
		log, err := NewLogger(&b, Logging{"info", format})
		require.NoError(t, err)
		log.Info("stopping", "grace", 1500*time.Millisecond, "from", source{"w", "m"}, "error", error(&gone{1}), "role", role("both"),
			"with", 250*time.Microsecond, "ids", []string{"a", "b"})
		assert.True(t, strings.HasSuffix(b.String(), want+"\n"), "%s: %s", format, &b)
	}
}

type gone struct{ Count int }

func (*gone) Error() string { return "gone" }
