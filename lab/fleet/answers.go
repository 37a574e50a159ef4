package fleet

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/models"
)

const (
	ChatPath       = "/v1/chat/completions"
	CompletionPath = "/v1/completions"
)

// Expected is the undisturbed answer: the simulated engines' text is a pure function of all tokens so far.
func Expected(prompt []uint32, n int) string { return Generated(prompt, n, true) }

// Generated is Expected, past the end of the text if eos is false, as an engine with ignore_eos continues.
func Generated(prompt []uint32, n int, eos bool) string {
	vocab := engine.Vocabulary{Words: tokens.Words(), EOS: tokens.EOS()}
	state := engine.Begin(0).FoldAll(prompt)
	var out []byte
	for range n {
		next := vocab.Next(state, eos)
		if next == tokens.EOS() {
			break
		}
		out = tokens.Sim().Decode(out, []uint32{next})
		state = state.Fold(next)
	}
	return string(out)
}

// Answered is the undisturbed answer of n tokens to Ask.
func Answered(prompt string, n int) string { return Generated(TextPrompt(prompt), n, false) }

func ChatPrompt(content string) []uint32 {
	return tokens.Sim().EncodeChat(nil, []tokens.Message{{Role: "user", Content: content}})
}

func TextPrompt(text string) []uint32 { return tokens.Sim().Encode(nil, text) }

const Long = "The quick brown fox jumps over the lazy dog, and the dog, being lazy, lets it pass without a word of complaint. "

// CheckShape checks the guarantees of OpenAI's API for any answer.
func (f *Fleet) CheckShape(a Answer, path string, stream bool) {
	f.T.Helper()
	object, prefix := "text_completion", "cmpl-"
	if path == ChatPath {
		object, prefix = "chat.completion", "chatcmpl-"
		if stream {
			object += ".chunk"
		}
	}
	got := f.Read(a)
	for _, c := range f.chunks(a) {
		assert.True(f.T, c.Object == object && strings.HasPrefix(c.ID, prefix) && c.Model == "tandem-sim",
			"object %q, id %q, model %q", c.Object, c.ID, c.Model)
	}
	assert.True(f.T, got.Finish == "length" || got.Finish == "stop", "finish_reason %q", got.Finish)
	if stream != (a.Events != nil) || stream == (got.Usages > 0) || !stream && (got.Completion < 1 || got.Cached < 0) {
		f.T.Errorf("%d events, with the usage %+v, which a stream has where it is asked for", len(a.Events), got)
	}
	if path == ChatPath && stream {
		assert.Contains(f.T, a.Events[0], `"role":"assistant"`, "the first event")
	}
}

// Content is the content of an answer, streamed or whole.
type Content struct {
	Text, Reasoning, Tool, Arguments, Finish string
	Usages                                   int // events that have one
	Prompt, Completion, Cached               int // tokens of the usage; Cached is below 0 where the usage lacks it
}

// Read puts an answer together and checks its frame: one id, at most one role, the end marker of a stream, and nothing
// of the hand-off.
func (f *Fleet) Read(a Answer) (s Content) {
	f.T.Helper()
	if n := len(a.Events); a.Status != http.StatusOK || a.Events != nil && (n < 2 || a.Events[n-1] != "[DONE]") {
		f.T.Fatalf("status %d, %q ends with %q", a.Status, a.Body, a.Events[max(0, n-2):])
	}
	s.Cached = -1
	roles, id := 0, ""
	for i, c := range f.chunks(a) {
		has := func(field string) bool { return strings.Contains(c.raw, field) }
		if id = cmp.Or(id, c.ID); c.ID != id || c.Error != nil || has("kv_transfer_params") || has("disaggregated_params") || i > 0 &&
			has(`prompt_token_ids":[`) {
			f.T.Errorf("%s is no event of %s, or shows what it must not", c.raw, id)
		}
		for _, ch := range c.Choices {
			assert.Zero(f.T, ch.Index, "the choice's index in %s", c.raw)
			if ch.Delta.Role != "" {
				roles++
			}
			if ch.FinishReason != nil {
				s.Finish += *ch.FinishReason
			}
			s.Text += ch.Text + ch.Delta.Content + ch.Message.Content
			s.Reasoning += ch.Delta.Reasoning + ch.Message.Reasoning
			for _, call := range append(ch.Delta.ToolCalls, ch.Message.ToolCalls...) {
				s.Tool, s.Arguments = s.Tool+call.Function.Name, s.Arguments+call.Function.Arguments
			}
		}
		if u := c.Usage; u != nil {
			s.Usages, s.Prompt, s.Completion = s.Usages+1, u.Prompt, u.Completion
			if u.Details != nil {
				s.Cached = u.Details.Cached
			}
			assert.Equal(f.T, u.Prompt+u.Completion, u.Total, "usage %s does not add up", c.raw)
		}
	}
	assert.LessOrEqual(f.T, roles, 1, "roles")
	return s
}

// chunks returns an answer's events without the end marker, or the whole answer as one.
func (f *Fleet) chunks(a Answer) (all []Chunk) {
	f.T.Helper()
	if a.Events == nil {
		return []Chunk{f.Parse(a.Body)}
	}
	for _, e := range a.Events {
		if e != "[DONE]" {
			all = append(all, f.Parse([]byte(e)))
		}
	}
	return all
}

// Answer is the response to one request.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
	Events []string // data of a stream's events, in order
}

// Post sends a body and reads the whole answer.
func (f *Fleet) Post(path, body string, headers ...string) Answer {
	f.T.Helper()
	a, err := f.Try(context.Background(), path, body, nil, headers...)
	require.NoError(f.T, err)
	return a
}

// Good is Post of a request that must be answered with status 200.
func (f *Fleet) Good(path, body string, headers ...string) Answer {
	f.T.Helper()
	a := f.Post(path, body, headers...)
	require.Equal(f.T, http.StatusOK, a.Status, "status: %s", a.Body)
	return a
}

// Exact requests n tokens in a stream, and checks for the undisturbed answer.
func (f *Fleet) Exact(prompt string, n int, headers ...string) Answer {
	f.T.Helper()
	a := f.Good(CompletionPath, Ask(prompt, n), headers...)
	if got, want := f.Text(a), Answered(prompt, n); got != want || a.Events[len(a.Events)-1] != "[DONE]" {
		f.T.Fatalf("the answer is %q and ends with %q, want %q", got, a.Events[len(a.Events)-1], want)
	}
	return a
}

// Try sends a body, with headers as name and value in turn; each is called with every event.
func (f *Fleet) Try(ctx context.Context, path, body string, each func(data string), headers ...string) (Answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.URL+path, strings.NewReader(body))
	if err != nil {
		return Answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := f.HTTP().Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer res.Body.Close()
	a := Answer{Status: res.StatusCode, Header: res.Header}
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		a.Body, err = io.ReadAll(res.Body)
		return a, err
	}
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			a.Events = append(a.Events, data)
			if each != nil {
				each(data)
			}
		}
	}
	// A stream that fails has no last chunk: who does not read events sees an incomplete body.
	if n := len(a.Events); n > 0 && strings.HasPrefix(a.Events[n-1], `{"error":`) {
		if err := lines.Err(); !errors.Is(err, io.ErrUnexpectedEOF) {
			return a, fmt.Errorf("after its error event the body ends with %w", cmp.Or(err, io.EOF))
		}
		return a, nil
	}
	return a, lines.Err()
}

// Chunk is the part of a stream's event, or of a whole answer, that the tests read, for both endpoints.
type Chunk struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Model   string `json:"model"`
	Choices []struct {
		Index        int     `json:"index"`
		Text         string  `json:"text"`
		FinishReason *string `json:"finish_reason"`
		Delta        message
		Message      message
	} `json:"choices"`
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
		Details    *struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Nvext *Nvext   `json:"nvext"`
	Error *Failure `json:"error"`
	raw   string
}

type message struct {
	Role, Content string
	Reasoning     string `json:"reasoning_content"`
	ToolCalls     []struct {
		Function struct{ Name, Arguments string }
	} `json:"tool_calls"`
}

// Nvext is an answer's nvext: its workers and their cached tokens.
type Nvext struct {
	WorkerID struct {
		Prefill string `json:"prefill_worker_id"`
		Decode  string `json:"decode_worker_id"`
	} `json:"worker_id"`
	Timing  map[string]float64 `json:"timing"`
	Routing struct {
		Predicted       int           `json:"predicted_cached_tokens"`
		Actual          *int          `json:"actual_cached_tokens"`
		Tokens          models.Source `json:"prompt_tokens_source"`
		Remote          string        `json:"remote_index"`
		OneLeg          string        `json:"one_leg"`
		Prefill, Decode struct {
			Worker  string `json:"worker_id"`
			Cost    float64
			Overlap int `json:"overlap_blocks"`
			Terms   []struct {
				Worker string `json:"worker_id"`
				Cost   float64
				Cached int `json:"cached_blocks"`
			}
		}
	} `json:"routing"`
}

// Nvext is that of an answer, which its last event has.
func (f *Fleet) Nvext(a Answer) *Nvext {
	f.T.Helper()
	all := f.chunks(a)
	require.True(f.T, len(all) != 0 && all[len(all)-1].Nvext != nil, "no nvext: status %d, %s %q", a.Status, a.Body, a.Events)
	return all[len(all)-1].Nvext
}

// Failure is the one shape of errors.
type Failure struct {
	Message   string  `json:"message"`
	Type      string  `json:"type"`
	Code      *string `json:"code"`
	Param     *string `json:"param"`
	RequestID string  `json:"request_id"`
}

// Parse reads one JSON object.
func (f *Fleet) Parse(data []byte) Chunk {
	f.T.Helper()
	c := Chunk{raw: string(data)}
	require.NoError(f.T, json.Unmarshal(data, &c), "in %q", data)
	return c
}

// Text puts a stream's or an answer's text together.
func (f *Fleet) Text(a Answer) string {
	f.T.Helper()
	var out strings.Builder
	for _, c := range f.chunks(a) {
		for _, ch := range c.Choices {
			out.WriteString(ch.Text + ch.Delta.Content + ch.Message.Content)
		}
	}
	return out.String()
}

// FailureIn finds an error in an answer that began well.
func FailureIn(a Answer) *Failure {
	for _, data := range append([]string{string(a.Body)}, a.Events...) {
		var c struct {
			Error *Failure `json:"error"`
		}
		if json.Unmarshal([]byte(data), &c) == nil && c.Error != nil {
			return c.Error
		}
	}
	return nil
}

// Refused checks an error answer.
func (f *Fleet) Refused(a Answer, status int, code, param string, words ...string) {
	f.T.Helper()
	e := f.Parse(a.Body).Error
	require.True(f.T, a.Status == status && e != nil && (e.Code != nil || code == "") && (code == "" || *e.Code == code),
		"status %d, want %d %s: %s", a.Status, status, code, a.Body)
	assert.True(f.T, param == "" || e.Param != nil && *e.Param == param, "param is not %q: %s", param, a.Body)
	for _, w := range words {
		assert.Contains(f.T, e.Message, w, "the message lacks")
	}
}
