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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/lab/testkit"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// engine is a Transport that answers with one canned stream.
type engine struct {
	status int
	body   io.Reader
	err    error
}

func (e *engine) Call(context.Context, http1.Leg) (http1.Stream, error) {
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
	testkit.Waits
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

// asker is the Client of the tests: nil is nothing, no count, and nothing to do.
type asker struct {
	cached func() int
	first  func()
	gap    func(time.Duration)
	leave  func() error
	prompt func(ids []byte)
}

func (asker) MayResume() bool { return false }
func (a asker) ComputedPrompt(ids []byte) {
	if a.prompt != nil {
		a.prompt(ids)
	}
}
func (a asker) CachedTokens() int {
	if a.cached == nil {
		return -1
	}
	return a.cached()
}
func (asker) Nvext(*Transcript) []byte { return []byte(`{"x":1}`) }
func (a asker) FirstToken() {
	if a.first != nil {
		a.first()
	}
}
func (a asker) NextToken(gap time.Duration) {
	if a.gap != nil {
		a.gap(gap)
	}
}
func (a asker) Leave() error { return a.leave() }

// room is a decode room with one worker of block size 2, and a lease on it.
func room(t testing.TB, cfg Config, e http1.Transport) (*Room, *router.Lease, func() router.WorkerLoad) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	roster := pools.NewRoster(pools.Config{}, log)
	require.NoError(t, roster.Put(pools.Worker{
		ID: "d1", Incarnation: "i", Model: "m", Role: pools.Decode, Engine: "vllm", Address: "http://h:1", BlockSize: 2,
	}))
	set, err := router.NewSet(map[pools.Role]router.Config{pools.Decode: router.DefaultConfig().For(pools.Decode)}, log)
	require.NoError(t, err)
	r, pool := New(cfg, roster, e), roster.Snapshot("m", pools.Decode)
	lease, err := set.For("m", pools.Decode).Reserve(pool, router.Request{ID: "x", ISL: 4}, time.Now())
	require.NoError(t, err)
	return r, lease, func() router.WorkerLoad { return set.For("m", pools.Decode).Loads(pool)[0] }
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

	// vLLM's error for a request that its engine refuses after the head has left
	mistake  = `data: {"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}` + "\n\n"
	noModel  = `data: {"error":{"message":"no","type":"NotFoundError"}}` + "\n\n"
	wordless = `data: {"error":"no"}` + "\n\n"
)

func TestStream(t *testing.T) {
	refused := &http1.Error{Worker: "d1", Op: http1.OpDial, Err: errors.New("refused")}
	for _, c := range []struct {
		name   string
		engine *engine
		gone   bool
		want   fault.Class
		sent   string
		tokens int
	}{
		{"whole", stream(role + one + two + end + done), false, fault.None, role + one + two + end + done, 3},
		{"no content at all", stream(role + done), false, fault.None, role + done, 0},
		{"events after the end marker", stream(role + one + end + done + two + ": ping\n\n" + done), false, fault.None,
			role + one + end + done, 2},
		{"events after the end marker, one by one",
			&engine{status: 200, body: iotest.OneByteReader(strings.NewReader(one + end + done + "data: #no#\n\n"))}, false, fault.None, one +
				end + done, 2},
		{"no blank line at the end", stream(one + end + "data: [DONE]"), false, fault.None, one + end + done, 2},
		{"given up before a token", stream(role + abort + done), false, fault.EngineError, "", 0},
		{"given up after a token", stream(role + one + abort + done), false, fault.None, role + one + abort + done, 1},
		{"an answer of nothing", stream(role + empty + done), false, fault.None, role + empty + done, 0},
		{"refused", &engine{err: refused}, false, fault.Refused, "", 0},
		{"engine's 500", &engine{status: 500, body: strings.NewReader("boom")}, false, fault.EngineError, "", 0},
		{"engine's 400", &engine{status: 400, body: strings.NewReader("{}")}, false, fault.Rejected, "", 0},
		{"an engine that failed and calls that a 400",
			&engine{status: 400, body: strings.NewReader(`{"object":"error","message":"Error in kv cache transfer for generation requests","code":400}`)}, false, fault.EngineError, "", 0},
		{"error before the first token", stream(role + bad + done), false, fault.EngineError, "", 0},
		{"client's mistake before the first token", stream(role + mistake + done), false, fault.Rejected, "", 0},
		{"an adapter that the engine has not, by its type", stream(noModel + done), false, fault.NotServed, "", 0},
		{"client's mistake in mid-stream", stream(role + one + mistake + done), false, fault.Rejected, role + one, 1},
		{"an error without a code", stream(wordless + done), false, fault.EngineError, "", 0},
		{"error in mid-stream", stream(role + one + bad + done), false, fault.EngineError, role + one, 1},
		{"ends without its marker", stream(role + one), false, fault.Truncated, role + one, 1},
		{"ends before anything", stream(role), false, fault.Truncated, "", 0},
		{"nonsense before the first token", stream(role + "data: #no#\n\n" + done), false, fault.Garbled, "", 0},
		{"nonsense in mid-stream", stream(role + one + "data: #no#\n\n" + two + done), false, fault.Garbled, role + one, 1},
		{"ends inside an event", stream(role + one + "data: {"), false, fault.Truncated, role + one, 1},
		{"no event stream", stream(`{"object":"text_completion"}`), false, fault.Truncated, "", 0},
		{"one event without end", stream(role + "data: " + strings.Repeat("x", 8<<20) + "\n\n" + done), false, fault.Garbled, "", 0},
		{"breaks", &engine{status: 200, body: io.MultiReader(strings.NewReader(role+one),
			iotest.ErrReader(&http1.Error{Op: http1.OpBody, Err: io.ErrUnexpectedEOF}))}, false, fault.Reset, role + one, 1},
		{"client gone", stream(role + one + end + done), true, fault.ClientGone, "", 2},
	} {
		r, lease, _ := room(t, Config{}, c.engine)
		out, call := &client{gone: c.gone}, &Call{Client: asker{}, Lease: lease, Stream: true, Choices: 1}
		failed := r.Run(t.Context(), call, out)
		tr := call.Sent
		assert.Equal(t, []any{c.want, c.sent, c.tokens}, []any{classOf(failed), strings.Join(out.writes, ""), tr.Tokens}, "%s: %v",
			c.name, failed)
		started := c.sent != "" || c.gone
		assert.Equal(t, [2]bool{started, started}, [2]bool{tr.Started, out.contentType != ""}, "%s: started, with a type", c.name)
		assert.True(t, tr.Started || tr.Events == 0, "%s: %d events are counted as sent, and none was", c.name, tr.Events)
		eligible := r.roster.Snapshot("m", pools.Decode).Members[0].Eligible(time.Now())
		assert.Equal(t, c.want != fault.Refused, eligible, "%s: out of the choice is who refuses the connection", c.name)
	}
}

// The end of a streamed answer that shows no token is its first one: it has a time, proves the worker, and leaves, so
// that what fails after it is tried on no other.
func TestAnEndIsAFirstToken(t *testing.T) {
	for body, want := range map[string]fault.Class{role + empty + done: fault.None, role + empty: fault.Truncated} {
		first := 0
		call := &Call{Client: asker{first: func() { first++ }}, Stream: true, Choices: 1}
		_, failed := served(t, stream(body), call)
		tr := call.Sent
		assert.True(t, classOf(failed) == want && first == 1 && tr.HasToken && !tr.First.IsZero() && tr.Last == tr.First && tr.Tokens == 0,
			"%q: %v, %d first tokens, %+v", body, failed, first, tr)
	}
}

// A decode worker that takes KV over and ends without any token, by its own count, has failed: nothing of it leaves. An
// end token counts as one, and an answer that was computed where it was decoded is the engine's own affair.
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
		for _, streams := range []bool{false, true} {
			body := fmt.Sprintf(ends, fmt.Sprintf(`"message":{"content":%q}`, c.text), c.tokens)
			if streams {
				body = role + "data: " + fmt.Sprintf(ends, fmt.Sprintf(`"delta":{"content":%q}`, c.text), c.tokens) + "\n\n" + done
			}
			sent, failed := served(t, stream(body), &Call{Client: asker{}, Stream: streams, HideUsage: true, Choices: 1, HandedOff: c.handedOff})
			assert.True(t, classOf(failed) == c.want && (sent == "") == (c.want != fault.None),
				"%+v, stream %v: %v, sent %q", c, streams, failed, sent)
		}
	}
}

// An event with running usage counts its tokens by that, whatever its text; the client gets it without the usage.
func TestCountedStreams(t *testing.T) {
	counted := func(event string, n int) string {
		return strings.Replace(event, "]}", fmt.Sprintf(`],"usage":{"prompt_tokens":4,"total_tokens":%d,"completion_tokens":%d}}`, 4+n, n), 1)
	}
	r, lease, load := room(t, Config{}, stream(counted(role, 1)+counted(one, 4)+counted(two, 4)+counted(two, 9)+counted(end, 12)+done))
	out, gaps, most := &client{}, 0, 0
	gap := func(time.Duration) { gaps++; most = max(most, load().ActiveBlocks) }
	call := &Call{Client: asker{gap: gap}, Lease: lease, Stream: true, HideUsage: true, Choices: 1}
	failed := r.Run(t.Context(), call, out)
	assert.Nil(t, failed)
	assert.Equal(t, role+one+two+two+end+done, strings.Join(out.writes, ""))
	assert.Equal(t, [3]int{12, 9, 8}, [3]int{call.Sent.Tokens, call.Sent.Streamed, gaps}, "tokens, those streamed, and gaps")
	assert.NotZero(t, most, "blocks")
}

// Head and first token leave in one write, though the engine announced the
// role long before.
func TestNothingLeavesBeforeTheFirstToken(t *testing.T) {
	r, lease, _ := room(t, Config{}, &engine{status: 200, body: io.MultiReader(
		strings.NewReader(role), strings.NewReader(": ping\n\n"), strings.NewReader(one), strings.NewReader(end+done))})
	out := &client{}
	failed := r.Run(t.Context(), &Call{Client: asker{}, Lease: lease, Stream: true, Choices: 1}, out)
	assert.Nil(t, failed)
	assert.Equal(t, []string{role + ": ping\n\n" + one, end + done}, out.writes)
}

// The client gets prefill's cached tokens and, in the event that ends the last choice, what it asked about its own
// request; every other event passes as it came.
func TestLastEvent(t *testing.T) {
	const ended = `{"index":0,"delta":{"content":" end"},"finish_reason":"length"}`
	const both = `data: {"choices":[{"index":0,"text":"","finish_reason":"stop"},{"index":1,"text":"","finish_reason":"stop"}]`
	for _, c := range []struct {
		name         string
		call         Call
		engine, want string
	}{
		{"usage asked for", Call{Client: asker{}, Choices: 1, IncludeUsage: true}, one + end + usage + done, one + end +
			`data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":3,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":2}},"nvext":{"x":1}}` + "\n\n" + done},
		{"no usage", Call{Client: asker{}, Choices: 1}, one + end + done,
			one + `data: {"choices":[` + ended + `],"nvext":{"x":1}}` + "\n\n" + done},
		{"two end at once", Call{Client: asker{}, Choices: 2}, one + both + "}\n\n" + done, one + both + `,"nvext":{"x":1}}` + "\n\n" + done},
	} {
		c.call.Stream, c.call.HasNvext, c.call.Client = true, true, asker{cached: func() int { return 2 }}
		sent, failed := served(t, stream(c.engine), &c.call)
		assert.True(t, failed == nil && sent == c.want, "%s: %v\n got %q\nwant %q", c.name, failed, sent, c.want)
		tr := c.call.Sent
		assert.True(t, !c.call.IncludeUsage || tr.PromptTokens == 4 && tr.Tokens == 3, "%s: %+v", c.name, tr)
	}
}

// Bookings follow the stream: a block more for each two tokens here, and what
// is notified of the first token comes once.
func TestBookingsGrow(t *testing.T) {
	r, lease, load := room(t, Config{}, stream(one+two+one+two+end+done))
	before, firsts := load().ActiveBlocks, 0
	failed := r.Run(t.Context(), &Call{Client: asker{first: func() { firsts++ }}, Lease: lease, Stream: true, Choices: 1}, &client{})
	assert.Nil(t, failed)
	assert.Equal(t, [2]int{2, 1}, [2]int{load().ActiveBlocks - before, firsts}, "blocks that 5 tokens grew, and first tokens reported")
	lease.Release(time.Now())
	assert.Equal(t, [2]int{}, [2]int{load().ActiveBlocks, load().Requests})
}

func TestWholeAnswer(t *testing.T) {
	const answer = `{"id":"x","choices":[{"text":"hi","finish_reason":"stop"}],"usage":{"prompt_tokens":4,"completion_tokens":2,"total_tokens":6},"kv_transfer_params":null}`
	for body, want := range map[string]fault.Class{
		answer:                       fault.None,
		"<html>":                     fault.Garbled,
		`{"error":{"message":"no"}}`: fault.EngineError,
		`{"choices":[{"text":"","finish_reason":"abort"}]}`: fault.EngineError,
		`{"error":{"message":"no","code":422}}`:             fault.Rejected,
	} {
		r, lease, _ := room(t, Config{}, stream(body))
		out, call := &client{}, &Call{Client: asker{cached: func() int { return 3 }}, Lease: lease}
		failed := r.Run(t.Context(), call, out)
		assert.True(t, classOf(failed) == want && (failed == nil || !call.Sent.Started),
			"%s: %v, started %v", body, failed, call.Sent.Started)
		if failed == nil {
			assert.Equal(t, "application/json", out.contentType)
			assert.Contains(t, out.writes[0], `"cached_tokens":3`)
			assert.Equal(t, 2, call.Sent.Tokens)
		}
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
		call := &Call{Client: asker{}, Stream: true, Choices: c.choices, Longest: c.longest}
		sent, failed := served(t, stream(c.body), call)
		assert.Equal(t, c.want, classOf(failed), c.name)
		assert.Equal(t, c.events, call.Sent.Events, c.name)
		assert.Equal(t, c.want == fault.None, strings.Contains(sent, "[DONE]"), c.name)
	}
}

// served has a worker answer a call, and returns what the client has then.
func served(t *testing.T, e http1.Transport, call *Call) (string, *fault.Error) {
	t.Helper()
	r, lease, _ := room(t, Config{}, e)
	out := &client{}
	call.Lease = lease
	failed := r.Run(t.Context(), call, out)
	return strings.Join(out.writes, ""), failed
}

// classOf is a failure's class, None where nothing failed.
func classOf(failed *fault.Error) fault.Class {
	if failed == nil {
		return fault.None
	}
	return failed.Class
}

// stream is a worker that answers with these bytes.
func stream(body string) *engine { return &engine{status: 200, body: strings.NewReader(body)} }
