package clients

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/fleet"
)

const messagesPath = "/v1/messages"

// question is a request of Messages for n tokens.
func question(n int, more string) string {
	return fmt.Sprintf(`{"model":"tandem-sim","max_tokens":%d,"messages":[{"role":"user","content":"Hello"}]%s}`, n, more)
}

// messageStream is the content of a stream of Messages.
type messageStream struct {
	text, stop       string
	input, output    int
	blocks           int
	failed, complete bool
}

// readMessages reads a stream of Messages as Anthropic's libraries do (anthropic-sdk-python, lib/streaming/_messages.py):
// the message begins first, blocks come one at a time with indexes in order, nothing follows the end.
func readMessages(t *testing.T, a fleet.Answer) (s messageStream) {
	t.Helper()
	open, begun := false, false
	for _, data := range a.Events {
		var e struct {
			Type    string
			Index   int
			Message struct {
				Usage struct {
					Input int `json:"input_tokens"`
				}
			}
			Delta struct {
				Type, Text string
				Stop       string `json:"stop_reason"`
			}
			Usage struct {
				Input  int `json:"input_tokens"`
				Output int `json:"output_tokens"`
			}
		}
		require.NoError(t, json.Unmarshal([]byte(data), &e), data)
		require.False(t, s.complete || s.failed, "after the end: %s", data)
		require.True(t, begun || e.Type == "message_start" || e.Type == "ping" || e.Type == "error", "before the message: %s", data)
		switch e.Type {
		case "message_start":
			begun, s.input = true, e.Message.Usage.Input
		case "content_block_start":
			require.True(t, !open && e.Index == s.blocks, data)
			open = true
			s.blocks++
		case "content_block_delta":
			require.True(t, open && e.Index == s.blocks-1, data)
			s.text += e.Delta.Text
		case "content_block_stop":
			require.True(t, open && e.Index == s.blocks-1, data)
			open = false
		case "message_delta":
			assert.Equal(t, s.input, e.Usage.Input, "the prompt's tokens were known before the answer")
			s.stop, s.output = e.Delta.Stop, e.Usage.Output
		case "message_stop":
			s.complete = true
		case "error":
			s.failed = true
		default:
			require.Equal(t, "ping", e.Type, data)
		}
	}
	assert.False(t, open, "a block is open at the end")
	return s
}

// A decode worker dies in the middle of an answer: the client of Messages gets the text, the end and the usage of the
// undisturbed answer.
func TestMessagesGoOn(t *testing.T) {
	for _, engine := range []string{"sim", "vllm"} {
		fleet.VirtualRun(t, engine, func(t *testing.T) {
			o := fleet.Of(engine)
			o.Prefill, o.Decode, o.Speedup = 1, 2, 2
			f := fleet.New(t, o)
			body := question(120, `,"stream":true,"temperature":0`)
			undisturbed := readMessages(t, f.Good(messagesPath, body))
			a, _ := f.Cut(messagesPath, body, 30)
			got := readMessages(t, a)
			assert.Equal(t, undisturbed, got)
			assert.True(t, got.complete && got.output > 40 && got.stop != "", "%+v", got)
			assert.Contains(t, f.Logs.String(), "action=resume", "nothing was resumed")
			f.Idle()
		})
	}
}

// A stream that cannot go on ends with Anthropic's error event after its open block, a refusal with Anthropic's body and
// status, and nothing is held.
func TestMessagesFail(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		o := fleet.Options{Prefill: 1, Decode: 2, Speedup: 2, Gateway: func(c *stack.GatewayConfig) { c.Flow.Resume.Limit = 0 }}
		f := fleet.New(t, o)
		a, err := f.Try(context.Background(), messagesPath, question(120, `,"stream":true`), func() func(string) {
			n := 0
			return func(string) {
				if n++; n == 30 {
					f.Workers[f.Generating()].Kill()
				}
			}
		}())
		assert.Error(t, err, "who does not read events sees an incomplete body")
		got := readMessages(t, a)
		assert.True(t, got.failed && !got.complete, "%+v", got)
		for body, want := range map[string]struct {
			status      int
			kind, words string
		}{
			`{"model":"none","max_tokens":4,"messages":[{"role":"user","content":"x"}]}`: {404, "not_found_error", "none"},
			question(10_000_000, ""): {400, "invalid_request_error", "input length and `max_tokens` exceed context limit: "},
			`{"model":"tandem-sim","messages":[{"role":"user","content":"x"}]}`: {400, "invalid_request_error", "max_tokens"},
			`[]`: {400, "invalid_request_error", "object"},
		} {
			a := f.Post(messagesPath, body)
			var e struct {
				Type  string
				Error struct{ Type, Message string }
			}
			require.NoError(t, json.Unmarshal(a.Body, &e), string(a.Body))
			assert.Equal(t, []any{want.status, "error", want.kind}, []any{a.Status, e.Type, e.Error.Type}, string(a.Body))
			assert.Contains(t, e.Error.Message, want.words)
			assert.Equal(t, a.Header.Get("X-Request-Id"), a.Header.Get("Request-Id"))
		}
		f.Idle()
	})
}

// The count of a request's tokens is what its answer reports.
func TestMessagesAreCounted(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1})
		for _, more := range []string{"", `,"system":"be brief"`, `,"tools":[{"name":"f","input_schema":{"type":"object","properties":{"a":{"type":"string"}}}}]`} {
			var whole struct {
				Usage struct {
					Input int `json:"input_tokens"`
				}
			}
			var counted struct {
				Input int `json:"input_tokens"`
			}
			require.NoError(t, json.Unmarshal(f.Good(messagesPath, question(4, more)).Body, &whole))
			a := f.Good(messagesPath+"/count_tokens", strings.Replace(question(4, more), `"max_tokens":4,`, "", 1))
			require.NoError(t, json.Unmarshal(a.Body, &counted), string(a.Body))
			assert.Equal(t, whole.Usage.Input, counted.Input, more)
			assert.Positive(t, counted.Input)
		}
		f.Idle()
	})
}

// responseStream is the content of a stream of Responses.
type responseStream struct {
	text, status  string
	input, output int
}

// readResponses reads a stream of Responses as openai-python does (lib/streaming/responses/_responses.py): it begins with
// response.created, numbers count up, and the last event holds the whole response.
func readResponses(t *testing.T, a fleet.Answer) (s responseStream) {
	t.Helper()
	var last string
	for i, data := range a.Events {
		var e struct {
			Type     string
			Number   *int `json:"sequence_number"`
			Delta    string
			Response *struct {
				Status string
				Model  string
				Output []struct {
					Content []struct{ Text string }
				}
				Usage *struct {
					Input  int `json:"input_tokens"`
					Output int `json:"output_tokens"`
				}
			}
		}
		require.NoError(t, json.Unmarshal([]byte(data), &e), data)
		require.True(t, e.Number != nil && *e.Number == i, data)
		require.True(t, i > 0 || e.Type == "response.created", data)
		if last = e.Type; last == "response.output_text.delta" {
			s.text += e.Delta
		}
		if last == "response.completed" || last == "response.incomplete" {
			s.status, s.input, s.output = e.Response.Status, e.Response.Usage.Input, e.Response.Usage.Output
			assert.Equal(t, s.text, e.Response.Output[0].Content[0].Text, "the whole answer is that of the deltas")
		}
		if last == "response.failed" {
			s.status = e.Response.Status
		}
	}
	return s
}

// A decode worker dies in the middle of an answer, with and without resume: the client of Responses gets the undisturbed
// answer, or a response that has failed. What is not stored is refused.
func TestResponsesGoOn(t *testing.T) {
	for limit, status := range []string{"failed", "incomplete"} {
		fleet.VirtualRun(t, status, func(t *testing.T) {
			o := fleet.Options{Prefill: 1, Decode: 2, Speedup: 2, Gateway: func(c *stack.GatewayConfig) { c.Flow.Resume.Limit = limit }}
			f := fleet.New(t, o)
			body := `{"model":"tandem-sim","input":"Hello","stream":true,"store":false,"max_output_tokens":40}`
			undisturbed := readResponses(t, f.Good("/v1/responses", body))
			assert.Equal(t, "incomplete", undisturbed.status)
			assert.Equal(t, 40, undisturbed.output)
			n := 0
			a, _ := f.Try(context.Background(), "/v1/responses", body, func(string) {
				if n++; n == 20 {
					f.Workers[f.Generating()].Kill()
				}
			})
			got := readResponses(t, a)
			assert.Equal(t, status, got.status)
			if status != "failed" {
				assert.Equal(t, undisturbed, got)
			}
			for body, param := range map[string]string{
				`{"model":"tandem-sim","input":"x","previous_response_id":"resp_1"}`: "previous_response_id",
				`{"model":"tandem-sim","input":"x","background":true}`:               "background",
			} {
				a := f.Post("/v1/responses", body)
				assert.Contains(t, []int{400, 501}, a.Status)
				assert.Contains(t, string(a.Body), `"param":"`+param+`"`)
			}
			f.Idle()
		})
	}
}
