package replay

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Requests go out at their times to the nanosecond, however slow the answers.
func TestOpenLoopSendsAtTheTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := Generator{Rate: 100, InputTokens: 20, OutputTokens: 3, Requests: 300, Seed: 1}.Workload()
		require.NoError(t, err)
		rt := &transport{answer: served(3, 20*time.Second, time.Second)}
		r := newReplay(t, Config{Speed: 2}, w, endpointTo(t, rt))
		start := time.Now()
		samples := r.Run(t.Context())
		require.Len(t, samples, 300, "samples")
		for i, at := range rt.times {
			require.Equal(t, w.Requests[i].At/2, at.Sub(start), "request %d was sent after", i)
		}
		for _, s := range samples {
			if s.Outcome != Answered || s.Late != 0 || s.TTFT != Millis(20*time.Second) || s.E2E != Millis(22*time.Second) ||
				s.ITL != Millis(time.Second) {
				t.Fatalf("%+v", s)
			}
		}
		summary := Summarize(samples)
		assert.Equal(t, 300, summary.InFlight, "in flight at most, want all: none waits for another")
		if p := r.Progress(); p != (Progress{Total: 300, Sent: 300, Answered: 300, OutputTokens: 900}) {
			t.Errorf("%+v", p)
		}
	})
}

func TestSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &transport{answer: served(3, 100*ms, 10*ms)}
		got := newReplay(t, Config{}, oneRequest(), endpointTo(t, rt)).Run(t.Context())
		want := []Sample{{
			Outcome: Answered, Status: 200, TTFT: Millis(100 * ms), ITL: Millis(10 * ms), E2E: Millis(120 * ms),
			Gaps:        []Millis{Millis(10 * ms), Millis(10 * ms)},
			InputTokens: 4, AskedTokens: 3, OutputTokens: 3, PromptTokens: 100, CachedTokens: 60, PrefillWorker: "p1", DecodeWorker: "d1",
		}}
		assert.Equal(t, want, got)
		var body map[string]any
		require.NoError(t, json.Unmarshal(rt.bodies[0], &body))
		ids := body["prompt"].([]any)
		delete(body, "prompt")
		asked := map[string]any{
			"model": "m", "stream": true, "stream_options": map[string]any{"include_usage": true}, "max_tokens": 3.0, "ignore_eos": true,
			"nvext": map[string]any{"extra_fields": []any{"worker_id", "timing"}},
		}
		assert.True(t, len(ids) == 4 && reflect.DeepEqual(body, asked), "%d ids in %v", len(ids), body)
	})
}

// A session's requests wait for the answer before them and then for the delay; no other request does.
func TestSessionsRunOneAfterAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := readTrace(t, `{"session_id":"a","timestamp":0,"input_length":1,"output_length":1}
			{"session_id":"a","delay":1000,"input_length":1,"output_length":1}
			{"timestamp":500,"input_length":1,"output_length":1}
			{"session_id":"a","delay":0,"input_length":1,"output_length":1}`)
		rt := &transport{answer: served(1, 4*time.Second, 0)}
		start := time.Now()
		samples := newReplay(t, Config{Speed: 2}, w, endpointTo(t, rt)).Run(t.Context())
		var sent []time.Duration
		for _, at := range rt.times {
			sent = append(sent, at.Sub(start))
		}
		// 0; alone at 500/2; 4 s of answer and 1000/2; another 4 s.
		if want := []time.Duration{0, 250 * ms, 4500 * ms, 8500 * ms}; !slices.Equal(sent, want) {
			t.Errorf("sent at %v, want %v", sent, want)
		}
		for _, s := range samples {
			assert.True(t, s.TTFT == Millis(4*time.Second) && s.Late == 0,
				"a session's time counts from when its turn was due: %+v", s)
		}
	})
}

func TestOutcomes(t *testing.T) {
	tests := []struct {
		name            string
		status          int
		answer          []part
		outcome, detail string
		tokens          int
	}{
		{"no usage", 200, []part{{0, chunk("a") + chunk("b") + event("[DONE]")}}, Answered, "", 2},
		{"overloaded", 529, []part{{0, `{"error":{"message":"the queue is full","code":"overloaded"}}`}}, "http_529", "the queue is full", 0},
		{"not JSON", 502, []part{{0, "<html>Bad Gateway</html>"}}, "http_502", "<html>Bad Gateway</html>", 0},
		{"a long error", 500, []part{{0, strings.Repeat("é", 500)}}, "http_500", strings.Repeat("é", 100) + "…", 0},
		{"no connection", 0, []part{}, Unreachable, "unexpected EOF", 0},
		{"an error event", 200, []part{{0, chunk("a") + event(`{"error":{"message":"decode worker lost"}}`)}}, ErrorEvent,
			"decode worker lost", 1},
		{"no [DONE]", 200, []part{{0, chunk("a")}}, Cut, "the stream ended without [DONE]", 1},
		{"a reset", 200, []part{{0, chunk("a")}, {ms, reset}}, Cut, "unexpected EOF", 1},
		{"a reset after [DONE]", 200, []part{{0, chunk("a") + event("[DONE]")}, {ms, reset}}, Answered, "", 1},
		{"no JSON in an event", 200, []part{{0, event("hello")}}, Malformed, "an event is not a JSON object", 0},
		{"silence", 200, []part{{time.Hour, chunk("a")}}, TimedOut, "", 0},
		{"silence after a token", 200, []part{{0, chunk("a")}, {time.Hour, chunk("a")}}, TimedOut, "", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt := &transport{answer: func(int, []byte) (int, []part) { return tt.status, tt.answer }}
				got := newReplay(t, Config{}, oneRequest(), endpointTo(t, rt)).Run(t.Context())
				require.Len(t, got, 1, "samples")
				s := got[0]
				assert.Equal(t, []any{tt.outcome, tt.detail, tt.status, tt.tokens}, []any{s.Outcome, s.Detail, s.Status, s.OutputTokens})
			})
		})
	}
}

// A limit of connections is not a place to wait: what is due beyond it is not sent, with all that would have followed.
func TestBoundOfRequestsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := readTrace(t, `{"timestamp":0,"input_length":1,"output_length":1}
			{"timestamp":1,"input_length":1,"output_length":1}
			{"session_id":"a","timestamp":2,"input_length":1,"output_length":1}
			{"session_id":"a","delay":3,"input_length":1,"output_length":1}
			{"timestamp":2000,"input_length":1,"output_length":1}`)
		samples := newReplay(t, Config{MaxInFlight: 2}, w, endpointTo(t, &transport{answer: served(1, time.Second, 0)})).Run(t.Context())
		report := &Report{Samples: samples}
		report.Finish()
		if s := report.Summary; s.Answered != 3 || s.Failures[NotSent] != 2 || s.InFlight != 2 || s.Failed() != 2 {
			t.Errorf("%+v", s)
		}
		contains(t, strings.Join(report.Notes, "\n"), "not sent: 2")
	})
}

// When the context ends, what is in flight ends as cancelled, what was not due
// is not reported, and nothing is left running (the bubble would not end).
func TestCancelEndsCleanly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := Generator{Rate: 10, InputTokens: 8, OutputTokens: 1, Requests: 2000}.Workload()
		require.NoError(t, err)
		w.Requests[5].Session, w.Requests[6].Session = "a", "a"
		w.Requests[6].Delay = time.Hour
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		r := newReplay(t, Config{}, w, endpointTo(t, &transport{answer: served(1, 2*time.Second, 0)}))
		s := Summarize(r.Run(ctx))
		if s.Requests < 50 || s.Requests > 150 || s.Failures[Cancelled] == 0 || s.Answered+s.Failures[Cancelled] != s.Requests {
			t.Errorf("%+v", s)
		}
		assert.Zero(t, r.Progress().InFlight, "%+v", r.Progress())
	})
}

func TestNvextIsDroppedWhereItIsRefused(t *testing.T) {
	asks := func(body []byte) bool { return bytes.Contains(body, []byte(`"nvext"`)) }
	ok := served(3, ms, ms)
	tests := []struct {
		name    string
		answer  func(n int, body []byte) (int, []part)
		sent    []bool // whether each call asked
		refused bool
		outcome string
	}{
		{"refused", func(n int, body []byte) (int, []part) {
			if asks(body) {
				return http.StatusBadRequest, nil
			}
			return ok(n, body)
		}, []bool{true, false, false, false}, true, Answered},
		{"taken", ok, []bool{true, true, true}, false, Answered},
		{"something else is wrong", func(int, []byte) (int, []part) { return http.StatusBadRequest, nil },
			[]bool{true, false, true, false, true, false}, false, "http_400"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt := &transport{answer: tt.answer}
				e := endpointTo(t, rt)
				w := readTrace(t, strings.Repeat(`{"timestamp":0,"session_id":"a","input_length":1,"output_length":3}`+"\n", 3))
				for _, s := range newReplay(t, Config{}, w, e).Run(t.Context()) {
					assert.Equal(t, tt.outcome, s.Outcome, "%+v", s)
				}
				var sent []bool
				for _, b := range rt.bodies {
					sent = append(sent, asks(b))
					assert.True(t, json.Valid(b), "no JSON: %s", b)
				}
				assert.True(t, slices.Equal(sent, tt.sent) && e.NvextRefused() == tt.refused,
					"asked %v, refused %t", sent, e.NvextRefused())
			})
		})
	}
}

func TestConfigRefuses(t *testing.T) {
	for _, bad := range []Config{{0, 1, 1}, {1, 0, 1}, {1, 1, 0}} {
		_, err := New(bad, oneRequest(), nil)
		assert.Error(t, err, bad)
	}
}
