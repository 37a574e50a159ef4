package replay

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// part is what a server sends at a time after the request.
type part struct {
	at   time.Duration
	text string
}

// transport is an endpoint in memory: it answers each request with answer,
// and remembers when the request came and with what body.
type transport struct {
	answer func(n int, body []byte) (status int, parts []part)

	mu     sync.Mutex
	times  []time.Time
	bodies [][]byte
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	n := len(t.times)
	t.times = append(t.times, time.Now())
	t.bodies = append(t.bodies, body)
	t.mu.Unlock()
	status, parts := t.answer(n, body)
	if status == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	return &http.Response{StatusCode: status, Body: &stream{ctx: req.Context(), start: time.Now(), parts: parts}}, nil
}

// stream is a body whose parts come at their times.
type stream struct {
	ctx   context.Context
	start time.Time
	parts []part
	rest  bytes.Buffer
}

func (s *stream) Read(p []byte) (int, error) {
	if s.rest.Len() == 0 {
		if len(s.parts) == 0 {
			return 0, io.EOF
		}
		next := s.parts[0]
		s.parts = s.parts[1:]
		if !wait(s.ctx, s.start.Add(next.at)) {
			return 0, s.ctx.Err()
		}
		if next.text == reset {
			return 0, io.ErrUnexpectedEOF
		}
		s.rest.WriteString(next.text)
	}
	return s.rest.Read(p)
}

func (s *stream) Close() error { return nil }

// reset in a part's place breaks the connection.
const reset = "\x00"

func chunk(text string) string {
	return event(fmt.Sprintf(`{"choices":[{"index":0,"text":%q}]}`, text))
}

func event(data string) string { return "data: " + data + "\n\n" }

// usage is the last event of an answer.
func usage(prompt, completion, cached int) string {
	return event(fmt.Sprintf(`{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}},`+
		`"nvext":{"worker_id":{"prefill_worker_id":"p1","decode_worker_id":"d1"}}}`, prompt, completion, cached))
}

// served answers with n tokens: the first after ttft, the others itl apart.
func served(n int, ttft, itl time.Duration) func(int, []byte) (int, []part) {
	return func(int, []byte) (int, []part) {
		parts := []part{{0, ": a comment\n\n"}}
		for i := range n {
			parts = append(parts, part{ttft + time.Duration(i)*itl, chunk("x")})
		}
		return http.StatusOK, append(parts, part{ttft + time.Duration(n-1)*itl, usage(100, n, 60) + event("[DONE]")})
	}
}

func endpointTo(t testing.TB, rt http.RoundTripper) *Endpoint {
	return &Endpoint{URL: "http://endpoint", Model: "m", Prompter: prompter(t, 1), Nvext: true, IgnoreEOS: true, Transport: rt}
}

func newReplay(t testing.TB, cfg Config, w *Workload, e *Endpoint) *Replay {
	t.Helper()
	r, err := New(Config{cmp.Or(cfg.Speed, 1), cmp.Or(cfg.MaxInFlight, 1000), cmp.Or(cfg.Timeout, time.Minute)}, w, e)
	require.NoError(t, err)
	return r
}

// oneRequest is a workload of one request at once.
func oneRequest() *Workload {
	return &Workload{Requests: []Request{{OutputTokens: 3, Spans: []Span{{1, 4}}}}}
}

func contains(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		assert.Contains(t, text, want, "it does not say X")
	}
}
