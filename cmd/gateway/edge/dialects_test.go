package edge

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
)

// A model whose template takes a leading system message only gets one, in which later ones are.
func TestLaterSystemMessages(t *testing.T) {
	calls := make(chan handoff.Call, 1)
	sv := serve(t, loopback(t), keeps(calls))
	for model, want := range map[string]string{
		"m":          `"messages":[{"role":"user","content":"a"},{"role":"system","content":"late"},{"role":"user","content":"b"}]`,
		"one-system": `"messages":[{"role":"system","content":"late"},{"role":"user","content":"a"},{"role":"user","content":"b"}]`,
	} {
		body := `{"model":"` + model + `","max_tokens":4,"messages":[{"role":"user","content":"a"},` +
			`{"role":"system","content":"late"},{"role":"user","content":"b"}]}`
		sv.ask(strings.Replace(post(body), "/v1/completions", messagesPath+"?beta=true", 1))
		assert.Contains(t, string((<-calls).Request.Raw), want)
	}
}

// A silent stream of Messages gets Anthropic's ping events, in the queue too, and a failure after the first one is an
// event in Anthropic's form (docs.anthropic.com, streaming: "ping events", "error events").
func TestMessagesHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sv := serve(t, newPipes(), func(context.Context, *handoff.Call, handoff.Sink) error {
			time.Sleep(35 * time.Second)
			return openai.Overloaded(time.Second, "full")
		}, beats)
		body := `{"model":"m","max_tokens":4,"stream":true,"messages":[{"role":"user","content":"a"}]}`
		c := sv.dial()
		c.send(strings.Replace(post(body), "/v1/completions", messagesPath, 1))
		resp := c.head()
		assert.Equal(t, 200, resp.StatusCode)
		got, err := io.ReadAll(resp.Body)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF) // a client that ignores events sees an incomplete body
		const ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n"
		rest, pings := strings.CutPrefix(string(got), ping+ping)
		assert.True(t, pings, string(got))
		assert.True(t, strings.HasPrefix(rest, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\""), rest)
	})
}

// A silent stream of Responses repeats response.in_progress: Codex counts events, not comments (codex-rs/codex-api/src/sse/
// responses.rs of openai/codex@0a7fb0d7), and OpenAI's own keepalive events end streams in openai-node before 6.46.
func TestResponsesHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sv := serve(t, newPipes(), func(context.Context, *handoff.Call, handoff.Sink) error {
			time.Sleep(35 * time.Second)
			return openai.Overloaded(time.Second, "full")
		}, beats)
		c := sv.dial()
		c.send(strings.Replace(post(`{"model":"m","stream":true,"input":"a"}`), "/v1/completions", responsesPath, 1))
		resp := c.head()
		assert.Equal(t, 200, resp.StatusCode)
		got, err := io.ReadAll(resp.Body)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		var events []string
		for _, event := range strings.Split(strings.TrimSuffix(string(got), "\n\n"), "\n\n") {
			name, _, _ := strings.Cut(strings.TrimPrefix(event, "event: "), "\n")
			events = append(events, name)
		}
		assert.Equal(t, []string{"response.created", "response.in_progress", "response.in_progress", "error", "response.failed"}, events)
	})
}

// Ids that need escapes in JSON do not reach a dialect's ids.
func TestPlainIDs(t *testing.T) {
	assert.Equal(t, "a-B_9", plainID("a-B_9"))
	for _, id := range []string{`a"b`, `a\\b`, "a/b", "a<b", "é"} {
		plain := plainID(id)
		assert.Len(t, plain, 32)
		assert.Equal(t, plain, plainID(plain), id)
	}
}

// What the memory of a converted body takes is given back, also where its flow never runs.
func TestConvertedBodiesAreGivenBack(t *testing.T) {
	sv := serve(t, loopback(t), answerJSON)
	for _, body := range []string{
		`{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"` + strings.Repeat("long ", 9000) + `"}]}`,
		`{"model":"m","messages":[]}`, `{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"a"}],"nvext":{"bogus":1}}`, `{`,
	} {
		resp, _ := sv.ask(strings.Replace(post(body), "/v1/completions", messagesPath, 1))
		require.NotEqual(t, 500, resp.StatusCode)
		assert.Zero(t, sv.bodies.used.Load(), "%.20s", body)
	}
}
