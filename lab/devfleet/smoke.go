package devfleet

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
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
func smoke(ctx context.Context, url string, handsOver bool, out io.Writer) error {
	failed, checks := 0, smokeChecks(handsOver)
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

func smokeChecks(handsOver bool) []check {
	const text, finish, usage = `"(text|content)":"[^"]`, `"finish_reason":"[a-z]`, `"completion_tokens":[1-8][,}]`
	const done = `data: \[DONE\]\n`
	explained := []string{`"decode_worker_id":"decode-`, `"total_ms"`}
	if handsOver {
		explained = append(explained, `"prefill_worker_id":"prefill-`)
	}
	const chat, completions = "/v1/chat/completions", "/v1/completions"
	head := `{"model":"` + stack.SimModel + `","max_tokens":8,`
	prompt := `"prompt":"` + strings.Repeat("Once upon a midnight dreary. ", 40) + `"`
	messages := `"messages":[{"role":"user","content":"Say something."}]`
	return []check{
		{"chat", http.MethodPost, chat, head + messages + `}`, shows(200, text, finish, usage)},
		{"chat, streamed", http.MethodPost, chat, head + `"stream":true,"stream_options":{"include_usage":true},` + messages + `}`,
			shows(200, text, finish, usage, done)},
		{"completion", http.MethodPost, completions, head + prompt + `}`, shows(200, text, finish, usage)},
		{"completion, streamed", http.MethodPost, completions, head + `"stream":true,` + prompt + `}`, shows(200, text, finish, done)},
		{"completion of token ids", http.MethodPost, completions, head + `"prompt":[11,12,13,14,15]}`, shows(200, text, finish, usage)},
		{"two choices", http.MethodPost, completions, head + `"n":2,` + prompt + `}`, shows(200, text, finish)},
		{"explained", http.MethodPost, completions, head + `"nvext":{"extra_fields":["worker_id","timing"]},` + prompt + `}`,
			shows(200, explained...)},
		{"unknown model", http.MethodPost, completions, `{"model":"unknown","prompt":"x"}`, shows(404, `"model_not_found"`, `"request_id"`)},
		{"broken JSON", http.MethodPost, chat, `{"model":`, shows(400, `"invalid_request_error"`)},
		{"forged hand-off", http.MethodPost, completions, head + `"kv_transfer_params":{},` + prompt + `}`, shows(400, `kv_transfer_params`)},
		{"models", http.MethodGet, "/v1/models", "", shows(200, `"`+stack.SimModel+`"`)},
		{"workers", http.MethodGet, "/workers", "", shows(200, `"decode-1"`, `"active_blocks"`)},
		{"health", http.MethodGet, "/health", "", shows(200)},
		{"live", http.MethodGet, "/live", "", shows(200)},
		{"metrics", http.MethodGet, "/metrics", "", shows(200, "tandem_frontend_time_to_first_token_seconds")},
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

// shows accepts a status and a body in which every pattern is found.
func shows(status int, patterns ...string) func(int, []byte) error {
	return func(got int, body []byte) error {
		if got != status {
			return fmt.Errorf("status %d, not %d: %.200s", got, status, body)
		}
		for _, p := range patterns {
			if !regexp.MustCompile(p).Match(body) {
				return fmt.Errorf("the answer lacks %s", p)
			}
		}
		return nil
	}
}
