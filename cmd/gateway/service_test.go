package main

import (
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// startService starts one and waits until it is ready.
func startService(t *testing.T, name, token string, args ...string) *proc {
	t.Helper()
	s := start(t, asProcess(t, append([]string{name, "--" + name + "-port", "0"}, args...)...), name)
	s.eventually("it is ready", func() bool { code, _ := s.ask("GET", "/ready", token, ""); return code == http.StatusOK })
	return s
}

// ask makes a request with a token.
func (p *proc) ask(method, path, token, body string) (int, string) {
	p.t.Helper()
	req, err := http.NewRequest(method, p.url+path, strings.NewReader(body))
	require.NoError(p.t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	require.NoError(p.t, err)
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	require.NoError(p.t, err)
	return res.StatusCode, string(answer)
}

// A real process of each service answers who bears the token, and no others. A token file that has changed is read again on SIGHUP, and
// one with a mistake leaves the tokens as they were.
func TestServices(t *testing.T) {
	type call struct {
		method, path, body string
		status             int
		says               string
	}
	for name, calls := range map[string][]call{
		"index": {
			{"POST", "/register", `{"id": "w1", "model": "m", "block_size": 2}`, 201, ""},
			{"POST", "/events", `{"worker": "w1", "events": [{"type": "stored", "block_hashes": [1], "token_ids": [7, 8], "block_size": 2}]}`, 200, ""},
			{"POST", "/query", `{"model": "m", "token_ids": [7, 8, 9]}`, 200, `"device":1`},
		},
		"select": {
			{"POST", "/workers", `{"id": "w1", "model": "m", "role": "both", "engine": "vllm", "address": "http://10.0.0.1:8000", "block_size": 2}`, 201, ""},
			{"POST", "/select_and_reserve", `{"id": "r1", "model": "m", "token_ids": [7, 8, 9]}`, 201, `"worker":"w1"`},
			{"POST", "/reservations/r1/prefill_complete", ``, 204, ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := written(t, "tokens", "# of both\nthe-first-token\n")
			s := startService(t, name, "the-first-token", "--token-file", file)
			for _, c := range calls {
				code, body := s.ask(c.method, c.path, "the-first-token", c.body)
				assert.Equal(t, c.status, code, c.path)
				assert.Contains(t, body, c.says)
			}
			for _, step := range []struct{ file, says string }{
				{"the-second-token\n", "files reloaded"},
				{"short\n", "tokens:1: the key has 5 bytes; it must have at least 8"},
				{"", "tokens: there is no key in it"},
			} {
				require.NoError(t, os.WriteFile(file, []byte(step.file), 0o600))
				s.send(syscall.SIGHUP)
				s.logged(step.says)
				for token, want := range map[string]int{"the-first-token": http.StatusUnauthorized, "the-second-token": http.StatusOK} {
					code, _ := s.ask("GET", "/workers", token, "")
					assert.Equal(t, want, code, token)
				}
			}
			s.stop()
			for _, token := range []string{"the-first", "short", "the-second"} {
				assert.NotContains(t, s.logs.String(), token)
			}
		})
	}
}
