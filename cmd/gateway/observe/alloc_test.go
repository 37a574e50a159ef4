//go:build !race

package observe

import (
	"bytes"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Lines that are not wanted are not begun, and those that are cost no allocation.
func TestLineAllocations(t *testing.T) {
	log, err := NewLogger(new(bytes.Buffer), Logging{"warn", "json"})
	require.NoError(t, err)
	assert.Nil(t, NewLine(log, slog.LevelInfo, time.Time{}, "a"), "a line of a level that is not logged")
	sink := slog.New(&handler{log.Handler(), &output{w: io.Discard}, asJSON})
	at := time.Unix(1e9, 1)
	assert.Less(t, testing.AllocsPerRun(100, func() {
		l := NewLine(sink, slog.LevelWarn, at, "request")
		l.String("id", "1")
		l.Open("why")
		l.Float("cost", 1.5)
		l.Close()
		l.End()
	}), 1., "allocations a line")
}
