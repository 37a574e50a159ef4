package observe

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// written is a log of its own file, and what gives the file's lines.
func written(t *testing.T, format string) (*slog.Logger, func() []string) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	log, err := NewLogger(file, Logging{"info", format})
	require.NoError(t, err)
	return log, func() []string {
		raw, err := os.ReadFile(file.Name())
		require.NoError(t, err)
		return slices.Collect(strings.Lines(string(raw)))
	}
}

// request writes the line of a request.
func request(log *slog.Logger, level slog.Level, id string) {
	l := NewLine(log, level, time.Now(), "request")
	l.String("id", id)
	l.End()
}

// TestRequestsLinesAreWrittenTogether checks that lines of requests wait for others, for no longer than they should,
// and that every other line comes behind those that came before it.
func TestRequestsLinesAreWrittenTogether(t *testing.T) {
	for _, format := range []string{"json", "logfmt"} {
		synctest.Test(t, func(t *testing.T) {
			log, lines := written(t, format)
			for range 3 {
				had := len(lines())
				request(log, slog.LevelInfo, "a")
				time.Sleep(heldFor - time.Nanosecond)
				request(log, slog.LevelInfo, "b")
				assert.Len(t, lines()[had:], 0, "before their time")
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				assert.Len(t, lines()[had:], 2, "after %v", heldFor)
			}
			for _, at := range []func(){
				func() { log.Info("other") }, func() { request(log, slog.LevelWarn, "other") }, func() { Flush(log) },
			} {
				had := len(lines())
				request(log, slog.LevelInfo, "first")
				at()
				got := lines()[had:]
				assert.True(t, len(got) != 0 && strings.Contains(got[0], "first") && (len(got) != 2 || strings.Contains(got[1], "other")),
					"%s: %q", format, got)
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
		assert.True(t, most != 0 && most <= heldBytes/len(long), "%d lines waited", most)
		time.Sleep(heldFor)
		synctest.Wait()
		assert.Len(t, lines(), n)
		request(log, slog.LevelInfo, strings.Repeat("x", 4*heldBytes))
		assert.Len(t, lines(), n+1, "a line longer than all that may wait is written at once")
	})
}
