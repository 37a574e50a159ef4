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
