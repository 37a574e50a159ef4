package decode

import (
	"context"
	"io"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// beat is one part of an answer and the silence before it.
type beat struct {
	after time.Duration
	data  string
}

// forever is a silence that nobody waits out.
const forever = 1 << 60

// timed is a Transport whose worker keeps to a script and then closes.
type timed struct {
	head   time.Duration
	script []beat
	ctx    context.Context
	closed bool
	err    error // what ended the read
}

func (e *timed) Call(ctx context.Context, leg upstream.Leg) (upstream.Stream, error) {
	e.ctx = ctx
	if err := e.wait(e.head); err != nil {
		return nil, &upstream.Error{Worker: leg.Worker, Op: upstream.OpHead, Err: err}
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
		return 0, &upstream.Error{Op: upstream.OpBody, Err: err}
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

// timedRoom is a room in which one worker keeps to a script.
func timedRoom(t *testing.T, cfg Config, e upstream.Transport) (*Room, *router.Lease) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	roster := pools.NewRoster(pools.Config{}, log)
	err := roster.Put(pools.Worker{ID: "d1", Incarnation: "i", Model: "m", Role: pools.Decode, Engine: "vllm", Address: "http://h:1", BlockSize: 2})
	if err != nil {
		t.Fatal(err)
	}
	set, err := router.NewSet(map[pools.Role]router.Config{pools.Decode: router.DefaultConfig().For(pools.Decode)}, log)
	if err != nil {
		t.Fatal(err)
	}
	r := New(cfg, roster, e)
	lease, err := set.For("m", pools.Decode).Reserve(r.roster.Snapshot("m", pools.Decode), router.Request{ID: "x", ISL: 4}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return r, lease
}

// pings are n of an engine's keep-alives, one every 5 s.
func pings(n int) []beat {
	script := make([]beat, n)
	for i := range script {
		script[i] = beat{5 * time.Second, ": ping\n\n"}
	}
	return script
}

func TestSilentWorkersAreLeft(t *testing.T) {
	const s = time.Second
	ms := time.Millisecond
	many := make([]beat, 50)
	for i := range many {
		many[i] = beat{0, one}
	}
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
		{"events before the first token", Config{}, s, []beat{{28 * s, role}, {299 * s, role}, {299 * s, one}, {s, end}, {0, done}}, 0, fault.None, 628 * s, 2},
		{"a role, and a limit that was set", Config{FirstTokenTimeout: 20 * s}, 0, []beat{{s, role}, {forever, ""}}, 0, fault.Timeout, 20 * s, 0},
		{"keep-alives before the first token", Config{}, 0, pings(100), 0, fault.Timeout, 30 * s, 0},
		{"a first token just in time", Config{}, 0, []beat{{29 * s, one}, {s, end}, {0, done}}, 0, fault.None, 30 * s, 2},
		{"a limit that was set", Config{FirstTokenTimeout: 2 * s}, s, []beat{{2 * s, one}}, 0, fault.Timeout, 2 * s, 0},
		{"between tokens", Config{}, 0, []beat{{s, one}, {9 * s, two}, {forever, ""}}, 0, fault.Stalled, 20 * s, 2},
		{"between tokens, as set", Config{StreamIdleTimeout: 20 * ms}, 0, []beat{{s, one}, {19 * ms, two}, {21 * ms, end}}, 0, fault.Stalled, 1039 * ms, 2},
		{"keep-alives between tokens", Config{}, 0, append([]beat{{0, one}}, pings(100)...), 0, fault.Stalled, 10 * s, 1},
		{"half an event", Config{}, 0, []beat{{0, one}, {6 * s, two[:9]}, {forever, ""}}, 0, fault.Stalled, 10 * s, 1},
		{"an event in two halves", Config{}, 0, []beat{{0, one}, {4 * s, two[:9]}, {5 * s, two[9:]}, {9 * s, end}, {0, done}}, 0, fault.None, 18 * s, 3},
		{"events without a token", Config{}, 0, []beat{{0, one}, {9 * s, role}, {9 * s, role}, {9 * s, end}, {0, done}}, 0, fault.None, 27 * s, 2},
		{"after the last token", Config{}, 0, []beat{{0, one}, {0, end}, {forever, ""}}, 0, fault.Stalled, 10 * s, 2},
		{"a late usage", Config{}, 0, []beat{{0, one}, {0, end}, {9 * s, usage}, {9 * s, done}}, 0, fault.None, 18 * s, 3},
		{"a usage that is too late", Config{}, 0, []beat{{0, one}, {0, end}, {11 * s, usage}, {0, done}}, 0, fault.Stalled, 10 * s, 2},
		{"a connection that stays open after its end", Config{}, 0, []beat{{0, one}, {0, end}, {0, done}, {forever, ""}}, 0, fault.None, closing, 2},
		{"a slow client", Config{}, 0, append(many, beat{9 * s, end}, beat{0, done}), 60 * s, fault.None, (52*60 + 9) * s, 51},
		{"a slow client of a worker that stalls", Config{}, 0, []beat{{0, one}, {0, two}, {forever, ""}}, 60 * s, fault.Stalled, 130 * s, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &timed{head: c.head, script: c.script}
				r, lease := timedRoom(t, c.cfg, e)
				out, start := &slowly{takes: c.client}, time.Now()
				tr, failed := runs(t, r, &Call{Lease: lease, Stream: true, Choices: 1, PromptTokens: 4}, out)
				took := time.Since(start).Round(time.Microsecond)
				class := fault.None
				if failed != nil {
					class = failed.Class
				}
				if class != c.want || took != c.after || tr.Tokens != c.tokens {
					t.Errorf("%s after %v with %d tokens (%v); want %s after %v with %d", class, took, tr.Tokens, failed, c.want, c.after, c.tokens)
				}
				if started := c.tokens > 0; tr.Started != started {
					t.Errorf("started: %v", tr.Started)
				}
				if c.head == 0 && !e.closed {
					t.Error("the worker's answer was not closed")
				}
				if class.Blames() && e.err == nil {
					t.Error("the call was not cut")
				}
			})
		})
	}
}

// Where tools are offered, a parser may hold a call back until it is whole, which
// takes as long as the rest of the answer may.
func TestToolCallsMayBeSilent(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name   string
		cfg    Config
		tools  bool
		tokens int
		script []beat
		want   fault.Class
		after  time.Duration
	}{
		{"a call that a parser holds back", Config{}, true, 1000, []beat{{s, one}, {11 * s, two}, {s, end}, {0, done}}, fault.None, 13 * s},
		{"a stuck worker", Config{}, true, 100_000, []beat{{s, one}, {forever, ""}}, fault.Stalled, 301 * s},
		{"a stuck worker and a short answer", Config{}, true, 100, []beat{{s, one}, {forever, ""}}, fault.Stalled, 51 * s},
		{"a limit that was set", Config{StreamIdleTimeout: 5 * s}, true, 1000, []beat{{s, one}, {forever, ""}}, fault.Stalled, 6 * s},
		{"no tools", Config{}, false, 1000, []beat{{s, one}, {11 * s, two}}, fault.Stalled, 11 * s},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, lease := timedRoom(t, c.cfg, &timed{script: c.script})
				start, class := time.Now(), fault.None
				_, failed := runs(t, r, &Call{Lease: lease, Stream: true, Choices: 1, PromptTokens: 4, MaxTokens: c.tokens, Tools: c.tools}, &client{})
				if failed != nil {
					class = failed.Class
				}
				if took := time.Since(start).Round(time.Microsecond); class != c.want || took != c.after {
					t.Errorf("%s after %v (%v); want %s after %v", class, took, failed, c.want, c.after)
				}
			})
		})
	}
}

// An answer that is not streamed may take as long as its longest form, within
// an hour.
func TestSilentWorkersWithoutStream(t *testing.T) {
	const answer = `{"choices":[{"text":"hi","finish_reason":"stop"}]}`
	for _, c := range []struct {
		name   string
		cfg    Config
		tokens int
		after  time.Duration // of the answer
		limit  time.Duration
	}{
		{"a short one", Config{}, 1, forever, 40 * time.Second},
		{"a long one", Config{}, 1000, forever, (30 + 500) * time.Second},
		{"a long one in time", Config{}, 1000, 529 * time.Second, 0},
		{"no known length", Config{}, 0, forever, time.Hour + 30*time.Second},
		{"an absurd length", Config{}, 1 << 40, forever, time.Hour + 30*time.Second},
		{"limits near the end of time", Config{FirstTokenTimeout: math.MaxInt64 - 1, StreamIdleTimeout: math.MaxInt64 - 1}, 1, time.Hour, 0},
		{"a short idle limit", Config{StreamIdleTimeout: 500 * time.Millisecond}, 12, forever, 31_500 * time.Millisecond},
		{"as set", Config{FirstTokenTimeout: time.Second, StreamIdleTimeout: time.Minute}, 1, forever, 61 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, lease := timedRoom(t, c.cfg, &timed{script: []beat{{c.after, answer}}})
				start := time.Now()
				_, failed := runs(t, r, &Call{Lease: lease, PromptTokens: 4, MaxTokens: c.tokens}, &client{})
				switch {
				case c.limit == 0 && failed != nil:
					t.Error(failed)
				case c.limit != 0 && (failed == nil || failed.Class != fault.Timeout || time.Since(start) != c.limit):
					t.Errorf("%v after %v, want a timeout after %v", failed, time.Since(start), c.limit)
				}
			})
		})
	}
}

// The idle limit follows what was seen of the worker, and a slow client does
// not stretch it.
func TestIdleLimitIsLearnt(t *testing.T) {
	slow := make([]beat, 0, 202)
	for range 200 {
		slow = append(slow, beat{time.Second, one})
	}
	slow = append(slow, beat{0, end}, beat{0, done})
	for _, c := range []struct {
		name   string
		client time.Duration
		script []beat
		lo, hi time.Duration // of the next silence's limit
	}{
		{"a slow worker", 0, slow, 20 * time.Second, 26 * time.Second},
		{"a slow client", time.Second, func() []beat {
			quick := make([]beat, len(slow))
			copy(quick, slow)
			for i := range quick {
				quick[i].after = 20 * time.Millisecond
			}
			return quick
		}(), 10 * time.Second, 10 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &timed{script: c.script}
				r, lease := timedRoom(t, Config{}, e)
				call := Call{Lease: lease, Stream: true, Choices: 1, PromptTokens: 4}
				if _, failed := runs(t, r, &call, &slowly{takes: c.client}); failed != nil {
					t.Fatal(failed)
				}
				if r.known("d1").gap() == 0 {
					t.Error("nothing was learnt")
				}
				e.script = []beat{{0, one}, {forever, ""}}
				start := time.Now()
				_, failed := runs(t, r, &call, &client{})
				if took := time.Since(start).Round(time.Microsecond); failed == nil || failed.Class != fault.Stalled || took < c.lo || took > c.hi {
					t.Errorf("%v after %v, want from %v to %v", failed, took, c.lo, c.hi)
				}
				r.roster.Remove("d1")
				if r.Forget(); len(r.seen) != 0 {
					t.Error("what was seen of the worker outlives the worker")
				}
			})
		})
	}
}

// A prompt that is known to take long gets its time.
func TestFirstTokenLimitIsLearnt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &timed{script: []beat{{10 * time.Second, one}, {0, end}, {0, done}}}
		r, lease := timedRoom(t, Config{}, e)
		call := Call{Lease: lease, Stream: true, Choices: 1, PromptTokens: 1000, HandedOff: true}
		if _, failed := runs(t, r, &call, &client{}); failed != nil {
			t.Fatal(failed)
		}
		for _, c := range []struct {
			tokens    int
			handedOff bool
			want      time.Duration
		}{{100, true, 30 * time.Second}, {2000, true, 100 * time.Second}, {2000, false, 30 * time.Second}} {
			e.script = []beat{{forever, ""}}
			call.PromptTokens, call.HandedOff = c.tokens, c.handedOff
			start := time.Now()
			if _, failed := runs(t, r, &call, &client{}); failed == nil || failed.Class != fault.Timeout || time.Since(start).Round(time.Millisecond) != c.want {
				t.Errorf("%+v: %v after %v", c, failed, time.Since(start))
			}
		}
	})
}

// Workers that compute prompts themselves, and only ones that take longer than the
// first limit, come to be known: each prompt that ran into the limit gives the next
// one twice as long, until one is answered.
func TestAPoolOfLongPromptsLearnsItsSpeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &timed{}
		r, lease := timedRoom(t, Config{}, e)
		call := Call{Lease: lease, Stream: true, Choices: 1, PromptTokens: 1000}
		run := func(script ...beat) (time.Duration, *fault.Error) {
			e.script = script
			start := time.Now()
			_, failed := runs(t, r, &call, &client{})
			return time.Since(start).Round(time.Millisecond), failed
		}
		for _, limit := range []time.Duration{30 * time.Second, time.Minute} {
			if took, failed := run(beat{100 * time.Second, one}); failed == nil || failed.Class != fault.Timeout || took != limit {
				t.Fatalf("%v after %v, want the limit of %v", failed, took, limit)
			}
		}
		if took, failed := run(beat{100 * time.Second, one}, beat{0, end}, beat{0, done}); failed != nil {
			t.Fatalf("%v after %v", failed, took)
		}
		if took, failed := run(beat{forever, ""}); failed == nil || took != 500*time.Second {
			t.Errorf("%v after %v, want five times what the last one took", failed, took)
		}
		other := &pools.Worker{ID: "d2", Model: "m", Role: pools.Decode}
		if got := r.first(other, r.known("d2"), prompt{tokens: 1000}); got != 500*time.Second {
			t.Errorf("a worker that has not answered yet may take %v", got)
		}
	})
}

func TestConfigValidate(t *testing.T) {
	for name, c := range map[string]Config{
		"stream-idle-timeout": {StreamIdleTimeout: -1}, "decode-first-token-timeout": {FirstTokenTimeout: -1},
	} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v does not name %s", err, name)
		}
	}
	if err := (Config{}).Validate(); err != nil {
		t.Error(err)
	}
}
