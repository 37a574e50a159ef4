package telemetry

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// written is a log of its own file, and what gives the file's lines.
func written(t *testing.T, format string) (*slog.Logger, func() []string) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	log, err := NewLogger(file, Logging{"info", format})
	if err != nil {
		t.Fatal(err)
	}
	return log, func() []string {
		raw, err := os.ReadFile(file.Name())
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n")[:strings.Count(string(raw), "\n")]
	}
}

// request writes the line of a request.
func request(log *slog.Logger, level slog.Level, id string) {
	l := NewLine(log, level, time.Now(), "request")
	l.String("id", id)
	l.End()
}

// TestRequestsLinesAreWrittenTogether checks that lines of requests wait for others, for no longer than they should, and that every other
// line comes behind those that came before it.
func TestRequestsLinesAreWrittenTogether(t *testing.T) {
	for _, format := range []string{"json", "logfmt"} {
		synctest.Test(t, func(t *testing.T) {
			log, lines := written(t, format)
			for round := range 3 {
				had := len(lines())
				request(log, slog.LevelInfo, "a")
				time.Sleep(heldFor - time.Nanosecond)
				request(log, slog.LevelInfo, "b")
				if n := len(lines()) - had; n != 0 {
					t.Errorf("%s, round %d: %d lines before their time", format, round, n)
				}
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				if n := len(lines()) - had; n != 2 {
					t.Errorf("%s, round %d: %d lines after %v, want 2", format, round, n, heldFor)
				}
			}
			for _, at := range []func(){
				func() { log.Info("other") }, func() { request(log, slog.LevelWarn, "other") }, func() { Flush(log) },
			} {
				had := len(lines())
				request(log, slog.LevelInfo, "first")
				at()
				if got := lines()[had:]; len(got) == 0 || !strings.Contains(got[0], "first") || len(got) == 2 && !strings.Contains(got[1], "other") {
					t.Errorf("%s: %q", format, got)
				}
			}
		})
	}
}

// TestFewLinesWait checks that what waits is bounded, and that nothing of it is lost or written twice.
func TestFewLinesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, lines := written(t, "json")
		const n = 5000
		long := strings.Repeat("x", 100)
		most := 0
		for i := range n {
			request(log, slog.LevelInfo, long)
			if i%100 == 0 {
				most = max(most, i+1-len(lines()))
			}
		}
		if most == 0 || most > heldBytes/len(long) {
			t.Errorf("%d lines waited", most)
		}
		time.Sleep(heldFor)
		synctest.Wait()
		if got := len(lines()); got != n {
			t.Errorf("%d lines of %d", got, n)
		}
		request(log, slog.LevelInfo, strings.Repeat("x", 4*heldBytes))
		if got := len(lines()); got != n+1 {
			t.Error("a line longer than all that may wait was not written at once")
		}
	})
}
