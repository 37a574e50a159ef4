package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// Each change is printed once, under its time; a gateway that is away is waited for; Ctrl-C is no failure.
func TestWatchPrintsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		answers := []string{"one", "one", "", "two", "two"}
		var out bytes.Buffer
		err := (&watch{out: &out}).run(ctx, func(context.Context) (string, error) {
			if len(answers) == 0 {
				cancel()
				return "", ctx.Err()
			}
			text := answers[0]
			answers = answers[1:]
			if text == "" {
				return "", errors.New("cannot reach the gateway")
			}
			return text + "\n", nil
		})
		assert.NoError(t, err)
		for want, n := range map[string]int{"\none\n": 1, "\ntwo\n": 1, "cannot reach the gateway\nretrying": 1, "00:00:0": 3} {
			assert.Equal(t, n, strings.Count(out.String(), want), "%q is not there N times:\n%s", want, out.String())
		}
	})
}

// A gateway that is not there at the beginning, and one that refuses, end the watch.
func TestWatchEndsWhereItCannotSucceed(t *testing.T) {
	absent := errors.New("cannot reach the gateway")
	if err := (&watch{out: new(bytes.Buffer)}).run(t.Context(), func(context.Context) (string, error) { return "", absent }); !errors.Is(err,
		absent) {
		t.Errorf("absent: %v", err)
	}
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		err := (&watch{out: new(bytes.Buffer)}).run(t.Context(), func(context.Context) (string, error) {
			if looks++; looks < 3 {
				return "one\n", nil
			}
			return "", fmt.Errorf("wants a key: %w", &refusal{"unauthorized", "no"})
		})
		assert.True(t, err != nil && looks == 3, "after %d looks: %v", looks, err)
	})
}

// On a terminal nothing is wider or higher than it.
func TestWatchFitsTheTerminal(t *testing.T) {
	var text strings.Builder
	for i := range 50 {
		fmt.Fprintf(&text, "worker %d %s\n", i, strings.Repeat("x", 200))
	}
	shown := screen(text.String(), time.Unix(0, 0).UTC(), 40, 10)
	lines := strings.Split(strings.TrimSuffix(shown, "\r\n"), "\r\n")
	assert.True(t, len(lines) == 9 && strings.HasPrefix(lines[8], "… and 43 lines more"),
		"%d lines, the last of them %q", len(lines), lines[len(lines)-1])
	for _, line := range lines {
		assert.LessOrEqual(t, len([]rune(strings.TrimSuffix(line, emptyLine))), 40, "columns: %q", line)
	}
}

// A table that is too wide does without addresses; its columns stay whole.
func TestWorkersTableByWidth(t *testing.T) {
	var r workersReport
	if err := json.Unmarshal([]byte(`{"pools":[{"model":"m","role":"decode","workers":[{"id":"d1","state":"up","address":"http://10.0.0.1:8000","circuit":"closed"},{"id":"d2","state":"lost","address":"http://10.0.0.1:8000","lost_seconds":3723.4},{"id":"d3","state":"down","address":"http://10.0.0.1:8000","circuit":"closed","cached_blocks":7}]}],"kv_events":{"m/decode":[{"worker":"d3","state":"live"}]},"cordoned":["gone"]}`), &r); err != nil {
		t.Fatal(err)
	}
	for addresses, columns := range map[bool]int{true: 12, false: 11} {
		text, err := r.table(addresses)
		if err != nil || strings.Contains(text, "10.0.0.1") != addresses || strings.Contains(text, "ADDRESS") != addresses {
			t.Errorf("%v\n%s", err, text)
		}
		if strings.Count(text, "live") != 0 || strings.Count(text, "closed") != 1 || !strings.Contains(text, "lost for 1h2m3s") {
			t.Errorf("stale text is shown:\n%s", text)
		}
		for line := range strings.Lines(text) {
			assert.Equal(t, columns, len(regexp.MustCompile(`\S( ?\S)*`).FindAllString(line, -1)), "columns: %s", line)
		}
	}
}
