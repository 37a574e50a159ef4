package guard

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAPanicEndsOneHandlingAlone, is counted by handler, and fills no log.
func TestAPanicEndsOneHandlingAlone(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	lines = LogLimiter{Burst: 3, Window: time.Minute}
	before, handled := Panics()["test"], 0
	for range 100 {
		var page []int
		require.False(t, Do(log, "test", func() { _ = page[len(page)-1] }), "a panic counts as returned")
		require.True(t, Do(log, "test", func() { handled++ }), "what returned counts as a panic")
	}
	assert.EqualValues(t, 100, Panics()["test"]-before)
	assert.Equal(t, 100, handled)
	assert.Equal(t, 3, strings.Count(text.String(), "level=ERROR"), "lines")
	assert.Contains(t, text.String(), "index out of range [-1]")
}

// TestALoopThatPanicsBeginsAgain, more and more slowly, and ends with its context or by itself.
func TestALoopThatPanicsBeginsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, began, runs := slog.New(slog.DiscardHandler), time.Now(), 0
		want := errors.New("ended")
		err := Run(t.Context(), log, "loop", func(context.Context) error {
			if runs++; runs < 5 {
				panic("on purpose")
			}
			return want
		})
		assert.ErrorIs(t, err, want)
		assert.Equal(t, 5, runs)
		assert.Equal(t, 1500*time.Millisecond, time.Since(began))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		runs = 0
		err = Run(ctx, log, "loop", func(context.Context) error { runs++; panic("on purpose") })
		assert.True(t, err == nil && runs >= 60 && runs <= 75, "%v after %d runs in an hour", err, runs)
	})
}
