package decode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// engine is a Transport that answers with one canned stream.
type engine struct {
	status int
	body   io.Reader
	err    error
}

func (e *engine) Call(context.Context, upstream.Leg) (upstream.Stream, error) {
	if e.err != nil {
		return nil, e.err
	}
	return e, nil
}

func (e *engine) Status() int                { return e.status }
func (e *engine) ContentType() string        { return "text/event-stream" }
func (e *engine) Read(p []byte) (int, error) { return e.body.Read(p) }
func (e *engine) Close() error               { return nil }

// client is a Sink that remembers.
type client struct {
	contentType string
	writes      []string
	gone        bool
}

func (c *client) Start(contentType string) { c.contentType = contentType }

func (c *client) Write(p []byte) error {
	if c.gone {
		return errors.New("closed")
	}
	c.writes = append(c.writes, string(p))
	return nil
}

func (c *client) Last(p []byte) error { return c.Write(p) }

// room is a decode room with one worker of block size 2, and a lease on it.
func room(t testing.TB, e *engine) (*Room, *router.Lease, func() router.WorkerLoad) {
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
	r := New(Config{}, roster, e)
	lease, err := set.For("m", pools.Decode).Reserve(r.roster.Snapshot("m", pools.Decode), router.Request{ID: "x", ISL: 4}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return r, lease, func() router.WorkerLoad {
		return set.For("m", pools.Decode).Loads(r.roster.Snapshot("m", pools.Decode))[0]
	}
}

const (
	role  = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	one   = `data: {"choices":[{"index":0,"delta":{"content":" one"},"finish_reason":null}]}` + "\n\n"
	two   = `data: {"choices":[{"index":0,"delta":{"content":" two"},"finish_reason":null}]}` + "\n\n"
	end   = `data: {"choices":[{"index":0,"delta":{"content":" end"},"finish_reason":"length"}]}` + "\n\n"
	usage = `data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":3,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":4}}}` + "\n\n"
	abort = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}` + "\n\n"
	empty = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	bad   = `data: {"error":{"message":"no","code":500}}` + "\n\n"
	done  = "data: [DONE]\n\n"

	// what vLLM says of a request that its engine refuses after the head has left
	mistake  = `data: {"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}` + "\n\n"
	tooMany  = `data: {"error":{"message":"no","code":429}}` + "\n\n"
	noModel  = `data: {"error":{"message":"no","type":"NotFoundError"}}` + "\n\n"
	tooSlow  = `data: {"error":{"message":"no","code":408}}` + "\n\n"
	wordless = `data: {"error":"no"}` + "\n\n"
)

func TestStream(t *testing.T) {
	refused := &upstream.Error{Worker: "d1", Op: upstream.OpDial, Err: errors.New("refused")}
	for _, c := range []struct {
		name   string
		engine engine
		gone   bool
		want   fault.Class
		sent   string
		tokens int
	}{
		{"whole", engine{status: 200, body: strings.NewReader(role + one + two + end + done)}, false, fault.None, role + one + two + end + done, 3},
		{"in single bytes", engine{status: 200, body: iotest.OneByteReader(strings.NewReader(role + one + end + done))}, false, fault.None, role + one + end + done, 2},
		{"no content at all", engine{status: 200, body: strings.NewReader(role + done)}, false, fault.None, role + done, 0},
		{"events after the end marker", engine{status: 200, body: strings.NewReader(role + one + end + done + two + ": ping\n\n" + done)}, false, fault.None, role + one + end + done, 2},
		{"events after the end marker, one by one", engine{status: 200, body: iotest.OneByteReader(strings.NewReader(one + end + done + "data: #no#\n\n"))}, false, fault.None, one + end + done, 2},
		{"no blank line at the end", engine{status: 200, body: strings.NewReader(one + end + "data: [DONE]")}, false, fault.None, one + end + done, 2},
		{"given up before a token", engine{status: 200, body: strings.NewReader(role + abort + done)}, false, fault.EngineError, "", 0},
		{"given up after a token", engine{status: 200, body: strings.NewReader(role + one + abort + done)}, false, fault.None, role + one + abort + done, 1},
		{"an answer of nothing", engine{status: 200, body: strings.NewReader(role + empty + done)}, false, fault.None, role + empty + done, 0},
		{"refused", engine{err: refused}, false, fault.Refused, "", 0},
		{"engine's 500", engine{status: 500, body: strings.NewReader("boom")}, false, fault.EngineError, "", 0},
		{"engine's 400", engine{status: 400, body: strings.NewReader("{}")}, false, fault.Rejected, "", 0},
		{"an engine that failed and calls that a 400", engine{status: 400, body: strings.NewReader(`{"object":"error","message":"Error in kv cache transfer for generation requests","code":400}`)}, false, fault.EngineError, "", 0},
		{"no room", engine{status: 503, body: strings.NewReader("")}, false, fault.Overloaded, "", 0},
		{"error before the first token", engine{status: 200, body: strings.NewReader(role + bad + done)}, false, fault.EngineError, "", 0},
		{"client's mistake before the first token", engine{status: 200, body: strings.NewReader(role + mistake + done)}, false, fault.Rejected, "", 0},
		{"an adapter that the engine has not, by its type", engine{status: 200, body: strings.NewReader(noModel + done)}, false, fault.NotServed, "", 0},
		{"client's mistake in mid-stream", engine{status: 200, body: strings.NewReader(role + one + mistake + done)}, false, fault.Rejected, role + one, 1},
		{"no room, in an event", engine{status: 200, body: strings.NewReader(tooMany + done)}, false, fault.Overloaded, "", 0},
		{"a 408 in an event", engine{status: 200, body: strings.NewReader(tooSlow + done)}, false, fault.EngineError, "", 0},
		{"an error without a code", engine{status: 200, body: strings.NewReader(wordless + done)}, false, fault.EngineError, "", 0},
		{"error in mid-stream", engine{status: 200, body: strings.NewReader(role + one + bad + done)}, false, fault.EngineError, role + one, 1},
		{"ends without its marker", engine{status: 200, body: strings.NewReader(role + one)}, false, fault.Truncated, role + one, 1},
		{"ends before anything", engine{status: 200, body: strings.NewReader(role)}, false, fault.Truncated, "", 0},
		{"nonsense before the first token", engine{status: 200, body: strings.NewReader(role + "data: #no#\n\n" + done)}, false, fault.Garbled, "", 0},
		{"nonsense in mid-stream", engine{status: 200, body: strings.NewReader(role + one + "data: #no#\n\n" + two + done)}, false, fault.Garbled, role + one, 1},
		{"ends inside an event", engine{status: 200, body: strings.NewReader(role + one + "data: {")}, false, fault.Truncated, role + one, 1},
		{"no event stream", engine{status: 200, body: strings.NewReader(`{"object":"text_completion"}`)}, false, fault.Truncated, "", 0},
		{"one event without end", engine{status: 200, body: strings.NewReader(role + "data: " + strings.Repeat("x", 8<<20) + "\n\n" + done)}, false, fault.Garbled, "", 0},
		{"breaks", engine{status: 200, body: io.MultiReader(strings.NewReader(role+one), iotest.ErrReader(&upstream.Error{Op: upstream.OpBody, Err: io.ErrUnexpectedEOF}))}, false, fault.Reset, role + one, 1},
		{"client gone", engine{status: 200, body: strings.NewReader(role + one + end + done)}, true, fault.ClientGone, "", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, lease, _ := room(t, &c.engine)
			out := &client{gone: c.gone}
			tr, failed := runs(t, r, &Call{Lease: lease, Stream: true, Choices: 1}, out)
			class := fault.None
			if failed != nil {
				class = failed.Class
			}
			if class != c.want || strings.Join(out.writes, "") != c.sent || tr.Tokens != c.tokens {
				t.Errorf("class %s, %d tokens, sent %q; want %s, %d, %q", class, tr.Tokens, out.writes, c.want, c.tokens, c.sent)
			}
			if started := c.sent != "" || c.gone; tr.Started != started || (out.contentType != "") != started {
				t.Errorf("started %v with %q", tr.Started, out.contentType)
			}
			if !tr.Started && tr.Events != 0 {
				t.Errorf("%d events are counted as sent, and none was", tr.Events)
			}
		})
	}
}

// The end of a streamed answer that shows no token is its first one: it has a time, proves the worker, and leaves, so that what fails
// after it is tried on no other.
func TestAnEndIsAFirstToken(t *testing.T) {
	for body, want := range map[string]fault.Class{role + empty + done: fault.None, role + empty: fault.Truncated} {
		r, lease, _ := room(t, &engine{status: 200, body: strings.NewReader(body)})
		first, class := 0, fault.None
		call := &Call{Lease: lease, Stream: true, Choices: 1, First: func() { first++ }}
		tr, failed := runs(t, r, call, &client{})
		if failed != nil {
			class = failed.Class
		}
		if class != want || first != 1 || !tr.Began || tr.First.IsZero() || tr.Last != tr.First || tr.Tokens != 0 {
			t.Errorf("%q: %v, %d first tokens, %+v", body, failed, first, tr)
		}
	}
}

// A decode worker that takes KV over and ends without any token, by its own count, has failed: nothing of it leaves. An end token counts
// as one, and an answer that was computed where it was decoded is the engine's own affair.
func TestAnswersOfNothing(t *testing.T) {
	const ends = `{"choices":[{"index":0,%s,"finish_reason":"stop"}],"usage":{"prompt_tokens":4,"completion_tokens":%d,"total_tokens":4}}`
	for _, c := range []struct {
		handedOff bool
		text      string
		tokens    int
		want      fault.Class
	}{
		{true, "", 0, fault.EngineError}, {true, "", 1, fault.None}, {false, "", 0, fault.None}, {true, "x", 0, fault.None},
	} {
		for _, stream := range []bool{false, true} {
			body := fmt.Sprintf(ends, fmt.Sprintf(`"message":{"content":%q}`, c.text), c.tokens)
			if stream {
				body = role + "data: " + fmt.Sprintf(ends, fmt.Sprintf(`"delta":{"content":%q}`, c.text), c.tokens) + "\n\n" + done
			}
			r, lease, _ := room(t, &engine{status: 200, body: strings.NewReader(body)})
			out, class := &client{}, fault.None
			if _, failed := runs(t, r, &Call{Lease: lease, Stream: stream, HideUsage: true, Choices: 1, HandedOff: c.handedOff}, out); failed != nil {
				class = failed.Class
			}
			if class != c.want || (len(out.writes) == 0) != (class != fault.None) {
				t.Errorf("%+v, stream %v: %s, sent %q", c, stream, class, out.writes)
			}
		}
	}
}

// An event that says how many tokens there are brings as many as it says, whatever its text, and is the client's without that number.
func TestCountedStreams(t *testing.T) {
	counted := func(event string, n int) string {
		return strings.Replace(event, "]}", fmt.Sprintf(`],"usage":{"prompt_tokens":4,"total_tokens":%d,"completion_tokens":%d}}`, 4+n, n), 1)
	}
	r, lease, load := room(t, &engine{status: 200, body: strings.NewReader(counted(role, 1) + counted(one, 4) + counted(two, 4) + counted(two, 9) + counted(end, 12) + done)})
	out, gaps, most := &client{}, 0, 0
	call := &Call{Lease: lease, Stream: true, HideUsage: true, Choices: 1, Gap: func(time.Duration) { gaps++; most = max(most, load().ActiveBlocks) }}
	tr, failed := runs(t, r, call, out)
	if want := role + one + two + two + end + done; failed != nil || strings.Join(out.writes, "") != want {
		t.Errorf("%v\n got %q\nwant %q", failed, out.writes, want)
	}
	if tr.Tokens != 12 || tr.Streamed != 9 || gaps != 8 || most == 0 {
		t.Errorf("%d tokens, %d streamed, %d gaps, %d blocks", tr.Tokens, tr.Streamed, gaps, most)
	}
}

// Head and first token leave in one write, though the engine announced the
// role long before.
func TestNothingLeavesBeforeTheFirstToken(t *testing.T) {
	r, lease, _ := room(t, &engine{status: 200, body: io.MultiReader(strings.NewReader(role), strings.NewReader(": ping\n\n"), strings.NewReader(one), strings.NewReader(end+done))})
	out := &client{}
	if _, failed := runs(t, r, &Call{Lease: lease, Stream: true, Choices: 1}, out); failed != nil {
		t.Fatal(failed)
	}
	if want := role + ": ping\n\n" + one; len(out.writes) != 2 || out.writes[0] != want {
		t.Errorf("writes %q", out.writes)
	}
}

// The client is told prefill's cached tokens and, in the last event, what it
// asked about its own request; every other event passes as it came.
func TestLastEvent(t *testing.T) {
	tail := func(*Transcript) []byte { return []byte(`{"x":1}`) }
	for _, c := range []struct {
		name   string
		usage  bool
		engine string
		want   string
	}{
		{"usage asked for", true, one + end + usage + done, one + end +
			`data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":3,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":2}},"nvext":{"x":1}}` + "\n\n" + done},
		{"no usage", false, one + end + done, one +
			`data: {"choices":[{"index":0,"delta":{"content":" end"},"finish_reason":"length"}],"nvext":{"x":1}}` + "\n\n" + done},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, lease, _ := room(t, &engine{status: 200, body: strings.NewReader(c.engine)})
			out := &client{}
			tr, failed := runs(t, r, &Call{Lease: lease, Stream: true, IncludeUsage: c.usage, Choices: 1, CachedTokens: func() int { return 2 }, Tail: tail}, out)
			if failed != nil || strings.Join(out.writes, "") != c.want {
				t.Errorf("%v\n got %q\nwant %q", failed, strings.Join(out.writes, ""), c.want)
			}
			if c.usage && (tr.PromptTokens != 4 || tr.Tokens != 3) {
				t.Errorf("%+v", tr)
			}
		})
	}
}

// A chunk may end several choices: the last event is the one that ends the last
// of them.
func TestSeveralChoices(t *testing.T) {
	text := func(data string) string { return "data: " + data + "\n\n" }
	for _, c := range []struct {
		name         string
		engine, want string
	}{
		{"two end at once",
			text(`{"choices":[{"index":0,"text":"a"},{"index":1,"text":"b"}]}`) + text(`{"choices":[{"index":0,"text":"","finish_reason":"stop"},{"index":1,"text":"","finish_reason":"stop"}]}`) + done,
			text(`{"choices":[{"index":0,"text":"a"},{"index":1,"text":"b"}]}`) + text(`{"choices":[{"index":0,"text":"","finish_reason":"stop"},{"index":1,"text":"","finish_reason":"stop"}],"nvext":{"x":1}}`) + done},
	} {
		r, lease, _ := room(t, &engine{status: 200, body: strings.NewReader(c.engine)})
		out := &client{}
		_, failed := runs(t, r, &Call{Lease: lease, Stream: true, Choices: 2,
			Tail: func(*Transcript) []byte { return []byte(`{"x":1}`) }}, out)
		if got := strings.Join(out.writes, ""); failed != nil || got != c.want {
			t.Errorf("%s: %v\n got %q\nwant %q", c.name, failed, got, c.want)
		}
	}
}

// Bookings follow the stream: a block more for each two tokens here, and what
// is told of the first token comes once.
func TestBookingsGrow(t *testing.T) {
	r, lease, load := room(t, &engine{status: 200, body: strings.NewReader(one + two + one + two + end + done)})
	before, firsts := load().ActiveBlocks, 0
	if _, failed := runs(t, r, &Call{Lease: lease, Stream: true, Choices: 1, First: func() { firsts++ }}, &client{}); failed != nil {
		t.Fatal(failed)
	}
	if grown := load().ActiveBlocks - before; grown != 2 || firsts != 1 {
		t.Errorf("5 tokens grew %d blocks, first token told %d times", grown, firsts)
	}
	lease.Release(time.Now())
	if l := load(); l.ActiveBlocks != 0 || l.Requests != 0 {
		t.Errorf("%+v", l)
	}
}

func TestWholeAnswer(t *testing.T) {
	const answer = `{"id":"x","choices":[{"text":"hi","finish_reason":"stop"}],"usage":{"prompt_tokens":4,"completion_tokens":2,"total_tokens":6},"kv_transfer_params":null}`
	for _, c := range []struct {
		name, body string
		want       fault.Class
	}{
		{"well", answer, fault.None},
		{"not JSON", "<html>", fault.Garbled},
		{"an error with status 200", `{"error":{"message":"no"}}`, fault.EngineError},
		{"given up before a token", `{"choices":[{"text":"","finish_reason":"abort"}]}`, fault.EngineError},
		{"the client's error with status 200", `{"error":{"message":"no","code":422}}`, fault.Rejected},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, lease, _ := room(t, &engine{status: 200, body: strings.NewReader(c.body)})
			out := &client{}
			tr, failed := runs(t, r, &Call{Lease: lease, CachedTokens: func() int { return 3 }}, out)
			if (failed == nil) != (c.want == fault.None) || failed != nil && (failed.Class != c.want || tr.Started) {
				t.Fatalf("%v, started %v", failed, tr.Started)
			}
			if failed == nil && (out.contentType != "application/json" || !strings.Contains(out.writes[0], `"cached_tokens":3`) || tr.Tokens != 2) {
				t.Errorf("%s %q %+v", out.contentType, out.writes, tr)
			}
		})
	}
}

// A worker that refuses the connection is out of the choice at once.
func TestRefusedWorkerIsDown(t *testing.T) {
	r, lease, _ := room(t, &engine{err: &upstream.Error{Worker: "d1", Op: upstream.OpDial, Err: errors.New("refused")}})
	if _, failed := runs(t, r, &Call{Lease: lease, Stream: true}, &client{}); failed == nil {
		t.Fatal("no failure")
	}
	if m := r.roster.Snapshot("m", pools.Decode).Members[0]; m.Eligible(time.Now()) {
		t.Errorf("still eligible: %+v", m)
	}
}

// A worker that does not stop is ended a little past the longest answer, whatever
// its events hold; one that writes two events a token is not.
func TestRunawaysAreEnded(t *testing.T) {
	for _, c := range []struct {
		name             string
		longest, choices int
		body             string
		want             fault.Class
		events           int
	}{
		{"does not stop", 4, 1, strings.Repeat(one, 10_000), fault.EngineError, 2*4 + 64},
		{"does not stop, three choices", 4, 3, strings.Repeat(one, 10_000), fault.EngineError, 2*12 + 64},
		{"does not stop, and brings nothing", 4, 1, one + strings.Repeat(role, 10_000), fault.EngineError, 2*4 + 64},
		{"does not stop, and sends comments", 4, 1, one + strings.Repeat("\n", 10_000), fault.EngineError, 1},
		{"a comment a token", 5_000, 1, strings.Repeat(": ping\n\n"+one, 4_000) + end + done, fault.None, 4_001},
		{"two events a token", 500, 1, strings.Repeat(one+role, 500) + end + done, fault.None, 1001},
		{"of unknown length", 0, 1, strings.Repeat(one, 10_000) + end + done, fault.None, 10_001},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, lease, _ := room(t, &engine{status: 200, body: strings.NewReader(c.body)})
			out := &client{}
			tr, failed := runs(t, r, &Call{Lease: lease, Stream: true, Choices: c.choices, Longest: c.longest}, out)
			class := fault.None
			if failed != nil {
				class = failed.Class
			}
			if class != c.want || tr.Events != c.events || strings.Contains(strings.Join(out.writes, ""), "[DONE]") != (c.want == fault.None) {
				t.Errorf("%v after %d events, want %s after %d", failed, tr.Events, c.want, c.events)
			}
		})
	}
}

// runs makes the call and returns what left for the client.
func runs(t *testing.T, r *Room, call *Call, out Sink) (Transcript, *fault.Error) {
	t.Helper()
	failed := r.Run(t.Context(), call, out)
	return call.Sent, failed
}
