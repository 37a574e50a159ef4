package contain

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAPanicEndsOneHandlingAlone, is counted by handler, and fills no log.
func TestAPanicEndsOneHandlingAlone(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	before, handled := Panics()["test"], 0
	for range 100 {
		var page []int
		require.False(t, Do(log, "test", func() { _ = page[len(page)-1] }), "a panic counts as returned")
		require.True(t, Do(log, "test", func() { handled++ }), "what returned counts as a panic")
	}
	if n := Panics()["test"] - before; n != 100 || handled != 100 {
		t.Errorf("%d panics counted, %d handled", n, handled)
	}
	if n := strings.Count(text.String(), "level=ERROR"); n != 3 || !strings.Contains(text.String(), "index out of range [-1]") {
		t.Errorf("%d lines: %.500s", n, &text)
	}
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
		if took := time.Since(began); !errors.Is(err, want) || runs != 5 || took != 1500*time.Millisecond {
			t.Errorf("%v after %d runs and %v", err, runs, took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		runs = 0
		if err := Run(ctx, log, "loop", func(context.Context) error { runs++; panic("on purpose") }); err != nil || runs < 60 || runs > 75 {
			t.Errorf("%v after %d runs in an hour", err, runs)
		}
	})
}
