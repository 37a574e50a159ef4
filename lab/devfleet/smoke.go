package devfleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/openai"
)

// check is one request of a smoke test and what its answer must show.
type check struct {
	name   string
	method string
	path   string
	body   string
	accept func(status int, body []byte) error
}

// smokeLimit bounds one request of the smoke test.
const smokeLimit = 30 * time.Second

// smoke sends one request of each kind and writes how each went. Where the fleet has prefill workers, one of them must
// have handed over. The error has the number that failed.
func smoke(ctx context.Context, url, engine string, handsOver bool, out io.Writer) error {
	failed, checks := 0, smokeChecks(engine, handsOver)
	for _, c := range checks {
		start := time.Now()
		err := c.run(ctx, url)
		verdict := "ok"
		if err != nil {
			failed++
			verdict = "FAILED: " + err.Error()
		}
		fmt.Fprintf(out, "  %-36s %7.1f ms  %s\n", c.name, float64(time.Since(start).Microseconds())/1e3, verdict)
	}
	if failed > 0 {
		return fmt.Errorf("smoke: %d of %d requests failed", failed, len(checks))
	}
	fmt.Fprintf(out, "smoke: %d requests, all well\n", len(checks))
	return nil
}

func smokeChecks(engine string, handsOver bool) []check {
	twice := answered(false, 0)
	if engine == "sglang" { // whose pairs never serve several choices, and whose decode workers never serve alone
		twice = contains(400, `"param":"n"`)
	}
	explained := []string{`"decode_worker_id":"decode-`, `"total_ms"`}
	if handsOver {
		explained = append(explained, `"prefill_worker_id":"prefill-`)
	}
	const chat, completions = "/v1/chat/completions", "/v1/completions"
	head := `{"model":"` + stack.SimModel + `","max_tokens":8,`
	prompt := `"prompt":"` + strings.Repeat("Once upon a midnight dreary. ", 40) + `"`
	messages := `"messages":[{"role":"user","content":"Say something."}]`
	return []check{
		{"chat", http.MethodPost, chat, head + messages + `}`, answered(false, 8)},
		{"chat, streamed", http.MethodPost, chat, head + `"stream":true,"stream_options":{"include_usage":true},` + messages + `}`,
			answered(true, 8)},
		{"completion", http.MethodPost, completions, head + prompt + `}`, answered(false, 8)},
		{"completion, streamed", http.MethodPost, completions, head + `"stream":true,` + prompt + `}`, answered(true, 0)},
		{"completion of token ids", http.MethodPost, completions, head + `"prompt":[11,12,13,14,15]}`, answered(false, 8)},
		{"two choices", http.MethodPost, completions, head + `"n":2,` + prompt + `}`, twice},
		{"explained", http.MethodPost, completions, head + `"nvext":{"extra_fields":["worker_id","timing"]},` + prompt + `}`,
			contains(200, explained...)},
		{"unknown model", http.MethodPost, completions, `{"model":"unknown","prompt":"x"}`, contains(404, `"model_not_found"`, `"request_id"`)},
		{"broken JSON", http.MethodPost, chat, `{"model":`, contains(400, `"invalid_request_error"`)},
		{"forged hand-off", http.MethodPost, completions, head + `"kv_transfer_params":{},` + prompt + `}`, contains(400, `kv_transfer_params`)},
		{"models", http.MethodGet, "/v1/models", "", contains(200, `"`+stack.SimModel+`"`)},
		{"workers", http.MethodGet, "/workers", "", contains(200, `"decode-1"`, `"active_blocks"`)},
		{"health", http.MethodGet, "/health", "", contains(200)},
		{"live", http.MethodGet, "/live", "", contains(200)},
		{"metrics", http.MethodGet, "/metrics", "", contains(200, "tandem_frontend_time_to_first_token_seconds")},
	}
}

func (c check) run(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, smokeLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, c.method, url+c.path, strings.NewReader(c.body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	return c.accept(res.StatusCode, body)
}

// contains accepts a status and a body that holds every one of texts.
func contains(status int, texts ...string) func(int, []byte) error {
	return func(got int, body []byte) error {
		if got != status {
			return fmt.Errorf("status %d, not %d: %.200s", got, status, body)
		}
		for _, t := range texts {
			if !bytes.Contains(body, []byte(t)) {
				return fmt.Errorf("the answer lacks %s", t)
			}
		}
		return nil
	}
}

// answered accepts a whole answer with text and a finish reason; its usage must have tokens, unless 0.
func answered(stream bool, tokens int) func(int, []byte) error {
	return func(status int, body []byte) error {
		if status != http.StatusOK {
			return fmt.Errorf("status %d: %.200s", status, body)
		}
		objects, err := objectsOf(body, stream)
		if err != nil {
			return err
		}
		text, finish, used := "", "", 0
		for _, o := range objects {
			for _, c := range o.Choices {
				text += c.Text + c.Delta.Content + c.Message.Content
				if c.FinishReason != "" {
					finish = c.FinishReason
				}
			}
			used = max(used, o.Usage.CompletionTokens)
		}
		switch {
		case text == "" || finish == "":
			return fmt.Errorf("text %q, finish_reason %q", text, finish)
		case tokens > 0 && (used == 0 || used > tokens):
			return fmt.Errorf("usage has %d tokens, max_tokens was %d", used, tokens)
		}
		return nil
	}
}

// object is the part of an answer or a stream's event that the smoke test reads.
type object struct {
	Choices []struct {
		Text         string                   `json:"text"`
		Delta        struct{ Content string } `json:"delta"`
		Message      struct{ Content string } `json:"message"`
		FinishReason string                   `json:"finish_reason"`
	} `json:"choices"`
	Usage struct {
		CompletionTokens int `json:"completion_tokens"`
	} `json:"usage"`
}

// maxEventBytes bounds an event of a stream.
const maxEventBytes = 1 << 20

// objectsOf reads an answer, or every event of a stream, which must end in [DONE].
func objectsOf(body []byte, stream bool) ([]object, error) {
	if !stream {
		all := make([]object, 1)
		return all, json.Unmarshal(body, &all[0])
	}
	var all []object
	for data, err := range openai.Events(bytes.NewReader(body), maxEventBytes) {
		switch {
		case err != nil:
			return nil, err
		case string(data) == openai.Done:
			return all, nil
		}
		var o object
		if err := json.Unmarshal(data, &o); err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	return nil, errors.New("the stream did not end in [DONE]")
}
