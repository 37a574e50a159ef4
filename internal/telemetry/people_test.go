package telemetry

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// A line for people has the time of day, the level unless it is INFO, the message and the fields. Nothing of a field
// reaches the terminal that it would obey.
func TestLinesForPeople(t *testing.T) {
	var b bytes.Buffer
	log, err := NewLogger(&b, Logging{"debug", "text"})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 5, 1, 10, 20, 30, 4e6, time.UTC)
	write := func(log *slog.Logger, level slog.Level, message string, fields ...any) {
		r := slog.NewRecord(at, level, message, 0)
		r.Add(fields...)
		if err := log.Handler().Handle(context.Background(), r); err != nil {
			t.Fatal(err)
		}
	}
	write(log, slog.LevelInfo, "gateway is up", "address", "127.0.0.1:8000", "n", 3)
	write(log.With("w", 1).WithGroup("g").With("v", "two words"), slog.LevelWarn, "leg failed", "error", errors.New("x\x1b[31m\n"), slog.Group("in", "k", true))
	write(log, slog.LevelError, "bad")
	want := "10:20:30.004 gateway is up address=127.0.0.1:8000 n=3\n" +
		"10:20:30.004 WARN leg failed w=1 g.v=\"two words\" g.error=\"x\\x1b[31m\\n\" g.in.k=true\n" +
		"10:20:30.004 ERROR bad\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", &b, want)
	}
	b.Reset()
	l := NewLine(log, slog.LevelInfo, at, "request")
	if !l.Text() {
		t.Fatal("a line for people is none")
	}
	l.Phrase("%s %d", Plain("a b"), 7)
	l.End()
	if want := "10:20:30.004 \"a b\" 7\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
	coloured := (&output{colours: true}).appendHead(nil, at, slog.LevelError, "m")
	if want := "10:20:30.004 \x1b[31mERROR\x1b[0m m"; string(coloured) != want {
		t.Errorf("%q, want %q", coloured, want)
	}
}

// Collectors get durations as milliseconds under a key that says so, and no struct by its fields' names in Go.
func TestFieldsForPrograms(t *testing.T) {
	type source struct{ Worker, Pool string }
	for format, want := range map[string]string{
		"json":   `"grace_ms":1500,"from":"{w m}","error":"gone","role":"both","with_ms":0.25,"ids":["a","b"]}`,
		"logfmt": `grace_ms=1500 from="{w m}" error=gone role=both with_ms=0.25 ids="[a b]"`,
		"text":   `grace=1.5s from="{w m}" error=gone role=both with=250µs ids="[a b]"`,
	} {
		var b bytes.Buffer
		log, err := NewLogger(&b, Logging{"info", format})
		if err != nil {
			t.Fatal(err)
		}
		type role string
		log.Info("stopping", "grace", 1500*time.Millisecond, "from", source{"w", "m"}, "error", error(&gone{1}), "role", role("both"),
			"with", 250*time.Microsecond, "ids", []string{"a", "b"})
		if !strings.HasSuffix(b.String(), want+"\n") {
			t.Errorf("%s: %s, want …%s", format, &b, want)
		}
	}
}

type gone struct{ Count int }

func (*gone) Error() string { return "gone" }

// What is no terminal is for machines.
func TestAutoIsJSONForMachines(t *testing.T) {
	var b bytes.Buffer
	log, err := NewLogger(&b, Logging{"info", "auto"})
	if err != nil {
		t.Fatal(err)
	}
	log.Info("m", "k", 1)
	if !strings.HasPrefix(b.String(), `{"time":"`) || !strings.HasSuffix(b.String(), `"msg":"m","k":1}`+"\n") {
		t.Error(b.String())
	}
}
