package edge

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/handoff"
)

// packed returns text in a content coding.
func packed(t testing.TB, coding, text string) string {
	t.Helper()
	var b bytes.Buffer
	if coding == "zstd" {
		w, err := zstd.NewWriter(&b)
		require.NoError(t, err)
		_, err = w.Write([]byte(text))
		require.NoError(t, err)
		require.NoError(t, w.Close())
		return b.String()
	}
	w := gzip.NewWriter(&b)
	_, err := w.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.String()
}

// chunksOf returns a body in chunks of n bytes.
func chunksOf(body string, n int) string {
	var b strings.Builder
	for ; len(body) > 0; body = body[min(n, len(body)):] {
		p := body[:min(n, len(body))]
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(p), p)
	}
	return b.String() + "0\r\n\r\n"
}

// Bodies as Codex sends them: compressed by zstd or gzip, in one piece or in chunks. The limit counts plain bytes, a
// body that ends early or goes on is refused, and the connection serves the next request after a good one.
func TestCompressedBodies(t *testing.T) {
	const limit = 64 << 10
	calls := make(chan handoff.Call, 1)
	sv := serve(t, loopback(t), keeps(calls), func(c *Config) { c.MaxBodyBytes = limit })
	long := `{"model":"m","prompt":"` + strings.Repeat("the same ", 5000) + `"}`
	tooLong := `{"model":"m","prompt":"` + strings.Repeat("x", limit) + `"}`
	for _, coding := range []string{"gzip", "zstd"} {
		header := "Content-Encoding: " + coding
		c := sv.dial()
		for _, body := range []string{goodBody, long} {
			z := packed(t, coding, body)
			for _, request := range []string{post(z, header), get("POST /v1/completions", "Content-Type: application/json", header,
				"Transfer-Encoding: chunked") + chunksOf(z, 7)} {
				resp, answer := c.ask(request)
				require.Equal(t, 200, resp.StatusCode, answer)
				assert.Equal(t, body, string((<-calls).Request.Raw), "%s: other bytes arrived", coding)
			}
		}
		z := packed(t, coding, goodBody)
		for name, tc := range map[string]struct {
			body, code string
			status     int
		}{
			"too large":    {packed(t, coding, tooLong), "request_too_large", 413},
			"ends early":   {z[:len(z)-3], "invalid_encoding", 400},
			"goes on":      {z + "{}", "invalid_encoding", 400},
			"broken":       {strings.Repeat("\x00", 20), "invalid_encoding", 400},
			"one byte":     {"x", "invalid_encoding", 400},
			"empty":        {packed(t, coding, ""), "", 400},
			"not an upper": {packed(t, coding, "[1]"), "", 400},
		} {
			resp, body := sv.ask(post(tc.body, header))
			assert.Equal(t, tc.status, resp.StatusCode, "%s, %s: %s", coding, name, body)
			if tc.code != "" {
				wantError(t, resp, body, tc.status, tc.code)
			}
		}
	}
	assert.Zero(t, sv.bodies.used.Load(), "bytes are still counted")
}

// A zstd frame that needs a window over 8 MiB is refused before its memory is taken (RFC 8878, 3.1.1.1.2).
func TestZstdWindowIsBounded(t *testing.T) {
	sv := serve(t, loopback(t), answerJSON)
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b, zstd.WithWindowSize(64<<20), zstd.WithSingleSegment(false))
	require.NoError(t, err)
	for range 3 { // over one block, so that the frame has no length
		_, err = w.Write(bytes.Repeat([]byte(" "), 1<<20))
		require.NoError(t, err)
		require.NoError(t, w.Flush())
	}
	require.NoError(t, w.Close())
	resp, body := sv.ask(post(b.String(), "Content-Encoding: zstd"))
	wantError(t, resp, body, 400, "invalid_encoding")
}

// Clients that begin a compressed body and stall hold no decoder: what they hold follows the bytes that came, and others
// are served. Without room for a decoder a body is refused, and nothing is held.
func TestStalledCompressedBodies(t *testing.T) {
	sv := serve(t, loopback(t), answerJSON, func(c *Config) { c.MaxBodyBytes, c.BodyBudgetBytes = 64<<10, 16<<20 })
	z := packed(t, "zstd", goodBody)
	for range 20 {
		sv.dial().send(get("POST /v1/completions", "Content-Type: application/json", "Content-Encoding: zstd", "Content-Length: 20000"), z)
	}
	sv.serves(post(z, "Content-Encoding: zstd"))
	assert.Less(t, sv.bodies.used.Load(), int64(maxWindowBytes))
	small := serve(t, loopback(t), answerJSON, func(c *Config) { c.MaxBodyBytes, c.BodyBudgetBytes = 64<<10, maxWindowBytes })
	resp, body := small.ask(post(z, "Content-Encoding: zstd"))
	wantError(t, resp, body, 503, "body_budget_exhausted")
	assert.Zero(t, small.bodies.used.Load())
}
