package decode

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/pools"
)

// beat is one part of an answer and the silence before it.
type beat struct {
	after time.Duration
	data  string
}

// forever is a silence beyond every limit.
const forever = 1 << 60

// timed is a Transport whose worker keeps to a script and then closes.
type timed struct {
	head   time.Duration
	script []beat
	ctx    context.Context
	closed bool
	err    error // what ended the read
}

func (e *timed) Call(ctx context.Context, leg http1.Leg) (http1.Stream, error) {
	e.ctx = ctx
	if err := e.wait(e.head); err != nil {
		return nil, &http1.Error{Worker: leg.Worker, Op: http1.OpHead, Err: err}
	}
	return e, nil
}

func (e *timed) wait(d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-e.ctx.Done():
		e.err = context.Cause(e.ctx)
		return e.err
	}
}

func (e *timed) Read(p []byte) (int, error) {
	if len(e.script) == 0 {
		return 0, io.EOF
	}
	next := e.script[0]
	if err := e.wait(next.after); err != nil {
		return 0, &http1.Error{Op: http1.OpBody, Err: err}
	}
	e.script = e.script[1:]
	return copy(p, next.data), nil
}

func (e *timed) Status() int         { return 200 }
func (e *timed) ContentType() string { return "text/event-stream" }
func (e *timed) Close() error        { e.closed = true; return nil }

// slowly is a client that takes its time for each write.
type slowly struct {
	client
	takes time.Duration
}

func (c *slowly) Write(p []byte) error {
	time.Sleep(c.takes)
	return c.client.Write(p)
}

func (c *slowly) Last(p []byte) error { return c.Write(p) }

// pings are n of an engine's keep-alives, one every 5 s.
func pings(n int) []beat { return slices.Repeat([]beat{{5 * time.Second, ": ping\n\n"}}, n) }

func TestSilentWorkersAreLeft(t *testing.T) {
	const s = time.Second
	ms := time.Millisecond
	many := slices.Repeat([]beat{{0, one}}, 50)
	for _, c := range []struct {
		name   string
		cfg    Config
		head   time.Duration
		script []beat
		client time.Duration // each write takes
		want   fault.Class
		after  time.Duration
		tokens int
	}{
		{"no head", Config{}, forever, nil, 0, fault.Timeout, 30 * s, 0},
		{"a head and nothing else", Config{}, s, []beat{{forever, ""}}, 0, fault.Timeout, 30 * s, 0},
		{"a role and nothing else", Config{}, s, []beat{{s, role}, {forever, ""}}, 0, fault.Timeout, 302 * s, 0},
		{"reasoning that is hidden", Config{}, s, []beat{{s, role}, {32 * s, one}, {s, end}, {0, done}}, 0, fault.None, 35 * s, 2},
		{"events before the first token", Config{}, s, []beat{{28 * s, role}, {299 * s, role}, {299 * s, one}, {s, end}, {0, done}}, 0,
			fault.None, 628 * s, 2},
		{"a role, and a limit that was set", Config{FirstTokenTimeout: 20 * s}, 0, []beat{{s, role}, {forever, ""}}, 0, fault.Timeout, 20 * s, 0},
		{"keep-alives before the first token", Config{}, 0, pings(100), 0, fault.Timeout, 30 * s, 0},
		{"a first token just in time", Config{}, 0, []beat{{29 * s, one}, {s, end}, {0, done}}, 0, fault.None, 30 * s, 2},
		{"a limit that was set", Config{FirstTokenTimeout: 2 * s}, s, []beat{{2 * s, one}}, 0, fault.Timeout, 2 * s, 0},
		{"between tokens", Config{}, 0, []beat{{s, one}, {9 * s, two}, {forever, ""}}, 0, fault.Stalled, 20 * s, 2},
		{"between tokens, as set", Config{StreamIdleTimeout: 20 * ms}, 0, []beat{{s, one}, {19 * ms, two}, {21 * ms, end}}, 0, fault.Stalled,
			1039 * ms, 2},
		{"keep-alives between tokens", Config{}, 0, append([]beat{{0, one}}, pings(100)...), 0, fault.Stalled, 10 * s, 1},
		{"half an event", Config{}, 0, []beat{{0, one}, {6 * s, two[:9]}, {forever, ""}}, 0, fault.Stalled, 10 * s, 1},
		{"an event in two halves", Config{}, 0, []beat{{0, one}, {4 * s, two[:9]}, {5 * s, two[9:]}, {9 * s, end}, {0, done}}, 0, fault.None,
			18 * s, 3},
		{"events without a token", Config{}, 0, []beat{{0, one}, {9 * s, role}, {9 * s, role}, {9 * s, end}, {0, done}}, 0, fault.None,
			27 * s, 2},
		{"after the last token", Config{}, 0, []beat{{0, one}, {0, end}, {forever, ""}}, 0, fault.Stalled, 10 * s, 2},
		{"a late usage", Config{}, 0, []beat{{0, one}, {0, end}, {9 * s, usage}, {9 * s, done}}, 0, fault.None, 18 * s, 3},
		{"a usage that is too late", Config{}, 0, []beat{{0, one}, {0, end}, {11 * s, usage}, {0, done}}, 0, fault.Stalled, 10 * s, 2},
		{"a connection that stays open after its end", Config{}, 0, []beat{{0, one}, {0, end}, {0, done}, {forever, ""}}, 0, fault.None,
			closing, 2},
		{"a slow client", Config{}, 0, append(many, beat{9 * s, end}, beat{0, done}), 60 * s, fault.None, (52*60 + 9) * s, 51},
		{"a slow client of a worker that stalls", Config{}, 0, []beat{{0, one}, {0, two}, {forever, ""}}, 60 * s, fault.Stalled, 130 * s, 2},
	} {
		bubble(t, c.name, func(t *testing.T) {
			e := &timed{head: c.head, script: c.script}
			r, lease, _ := room(t, c.cfg, e)
			call := &Call{Client: asker{}, Lease: lease, Stream: true, Choices: 1, PromptTokens: 4}
			took, failed := lasts(t, r, call, &slowly{takes: c.client})
			assert.Equal(t, []any{c.want, c.after, c.tokens, c.tokens > 0}, []any{classOf(failed), took, call.Sent.Tokens, call.Sent.Started},
				"%v", failed)
			assert.True(t, c.head != 0 || e.closed, "the worker's answer was not closed")
			assert.True(t, !c.want.Blames() || e.err != nil, "the call was not cut")
		})
	}
}

// Where tools are offered, a parser may hold a call back until it is whole, which takes as long as the rest of the answer may. An
// answer that is not streamed may take as long as its longest form, within an hour.
func TestLongSilences(t *testing.T) {
	const s, none = time.Second, time.Hour + 30*time.Second
	tools := func(tokens int) Call {
		return Call{Client: asker{}, Stream: true, Choices: 1, PromptTokens: 4, MaxTokens: tokens, Tools: true}
	}
	whole := func(tokens int) Call { return Call{Client: asker{}, PromptTokens: 4, MaxTokens: tokens} }
	answer := func(after time.Duration) []beat {
		return []beat{{after, `{"choices":[{"text":"hi","finish_reason":"stop"}]}`}}
	}
	stuck, held := []beat{{s, one}, {forever, ""}}, []beat{{s, one}, {11 * s, two}, {s, end}, {0, done}}
	for _, c := range []struct {
		name   string
		cfg    Config
		call   Call
		script []beat
		want   fault.Class
		after  time.Duration
	}{
		{"a call that a parser holds back", Config{}, tools(1000), held, fault.None, 13 * s},
		{"a stuck worker", Config{}, tools(100_000), stuck, fault.Stalled, 301 * s},
		{"a stuck worker and a short answer", Config{}, tools(100), stuck, fault.Stalled, 51 * s},
		{"a limit that was set", Config{StreamIdleTimeout: 5 * s}, tools(1000), stuck, fault.Stalled, 6 * s},
		{"no tools", Config{}, Call{Client: asker{}, Stream: true, Choices: 1, PromptTokens: 4, MaxTokens: 1000}, held, fault.Stalled, 11 * s},
		{"a short one, whole", Config{}, whole(1), answer(forever), fault.Timeout, 40 * s},
		{"a long one", Config{}, whole(1000), answer(forever), fault.Timeout, (30 + 500) * s},
		{"a long one in time", Config{}, whole(1000), answer(529 * s), fault.None, 529 * s},
		{"no known length", Config{}, whole(0), answer(forever), fault.Timeout, none},
		{"an absurd length", Config{}, whole(1 << 40), answer(forever), fault.Timeout, none},
		{"limits near the end of time", Config{math.MaxInt64 - 1, math.MaxInt64 - 1}, whole(1), answer(time.Hour), fault.None, time.Hour},
		{"a short idle limit", Config{StreamIdleTimeout: 500 * time.Millisecond}, whole(12), answer(forever), fault.Timeout,
			31_500 * time.Millisecond},
		{"as set", Config{FirstTokenTimeout: s, StreamIdleTimeout: time.Minute}, whole(1), answer(forever), fault.Timeout, 61 * s},
	} {
		bubble(t, c.name, func(t *testing.T) {
			r, lease, _ := room(t, c.cfg, &timed{script: c.script})
			c.call.Lease = lease
			took, failed := lasts(t, r, &c.call, &client{})
			assert.Equal(t, []any{c.want, c.after}, []any{classOf(failed), took}, "%v", failed)
		})
	}
}

// The idle limit follows what was seen of the worker, and a slow client does
// not stretch it.
func TestIdleLimitIsLearnt(t *testing.T) {
	every := func(gap, last time.Duration) []beat {
		return append(slices.Repeat([]beat{{gap, one}}, 200), beat{last, end}, beat{last, done})
	}
	for _, c := range []struct {
		client time.Duration
		script []beat
		lo, hi time.Duration // of the next silence's limit
	}{
		{0, every(time.Second, 0), 20 * time.Second, 26 * time.Second},
		{time.Second, every(20*time.Millisecond, 20*time.Millisecond), 10 * time.Second, 10 * time.Second},
	} {
		bubble(t, fmt.Sprint("a client that takes ", c.client), func(t *testing.T) {
			e := &timed{script: c.script}
			r, lease, _ := room(t, Config{}, e)
			call := &Call{Client: asker{}, Lease: lease, Stream: true, Choices: 1, PromptTokens: 4}
			failed := r.Run(t.Context(), call, &slowly{takes: c.client})
			require.True(t, failed == nil && r.known("d1").gap() != 0, "%v, or nothing was learnt", failed)
			e.script = []beat{{0, one}, {forever, ""}}
			took, failed := lasts(t, r, call, &client{})
			assert.Equal(t, fault.Stalled, classOf(failed))
			assert.True(t, took >= c.lo && took <= c.hi, "after %v, want from %v to %v", took, c.lo, c.hi)
			r.roster.Remove("d1")
			r.Forget()
			assert.Empty(t, r.seen, "what was seen of the worker outlives the worker")
		})
	}
}

// A prompt that is known to take long gets its time.
func TestFirstTokenLimitIsLearnt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &timed{script: []beat{{10 * time.Second, one}, {0, end}, {0, done}}}
		r, lease, _ := room(t, Config{}, e)
		call := Call{Client: asker{}, Lease: lease, Stream: true, Choices: 1, PromptTokens: 1000, HandedOff: true}
		require.Nil(t, r.Run(t.Context(), &call, &client{}))
		for _, c := range []struct {
			tokens    int
			handedOff bool
			want      time.Duration
		}{{100, true, 30 * time.Second}, {2000, true, 100 * time.Second}, {2000, false, 30 * time.Second}} {
			e.script = []beat{{forever, ""}}
			call.PromptTokens, call.HandedOff = c.tokens, c.handedOff
			took, failed := lasts(t, r, &call, &client{})
			assert.True(t, classOf(failed) == fault.Timeout && took == c.want, "%+v: %v after %v", c, failed, took)
		}
	})
}

// Workers that compute prompts themselves, and only ones that take longer than the
// first limit, come to be known: each prompt that ran into the limit gives the next
// one twice as long, until one is answered.
func TestAPoolOfLongPromptsLearnsItsSpeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &timed{}
		r, lease, _ := room(t, Config{}, e)
		call := Call{Client: asker{}, Lease: lease, Stream: true, Choices: 1, PromptTokens: 1000}
		late, answered := beat{100 * time.Second, one}, []beat{{0, end}, {0, done}}
		for _, c := range []struct {
			script []beat
			want   fault.Class
			after  time.Duration
		}{
			{[]beat{late}, fault.Timeout, 30 * time.Second},
			{[]beat{late}, fault.Timeout, time.Minute},
			{append([]beat{late}, answered...), fault.None, 100 * time.Second},
			{[]beat{{forever, ""}}, fault.Timeout, 500 * time.Second}, // five times what the last one took
		} {
			e.script = c.script
			took, failed := lasts(t, r, &call, &client{})
			require.True(t, classOf(failed) == c.want && took == c.after, "%v after %v, want %v after %v", failed, took, c.want, c.after)
		}
		other := &pools.Worker{ID: "d2", Model: "m", Role: pools.Decode}
		assert.Equal(t, 500*time.Second, r.first(other, r.known("d2"), prompt{tokens: 1000}), "a worker that has not answered yet may take")
	})
}

// bubble runs a subtest in virtual time.
func bubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// lasts makes a call and returns how long it took.
func lasts(t *testing.T, r *Room, call *Call, out http1.Sink) (time.Duration, *fault.Error) {
	t.Helper()
	start := time.Now()
	failed := r.Run(t.Context(), call, out)
	return time.Since(start).Round(time.Microsecond), failed
}
