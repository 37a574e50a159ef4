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

// A real process of each service answers only with the token; TestDocumentedExamples has its endpoints. A changed token file is read again on SIGHUP, and
// one with a mistake leaves the tokens as they were.
func TestServices(t *testing.T) {
	for _, name := range []string{"index", "select"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := written(t, "tokens", "# of both\nthe-first-token\n")
			s := startService(t, name, "the-first-token", "--token-file", file)
			code, _ := s.ask("GET", "/workers", "the-first-token", "")
			assert.Equal(t, http.StatusOK, code)
			for _, step := range []struct{ file, contains string }{
				{"the-second-token\n", "files reloaded"},
				{"short\n", "tokens:1: the key has 5 bytes; it must have at least 8"},
				{"", "tokens: there is no key in it"},
			} {
				require.NoError(t, os.WriteFile(file, []byte(step.file), 0o600))
				s.send(syscall.SIGHUP)
				s.logged(step.contains)
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
