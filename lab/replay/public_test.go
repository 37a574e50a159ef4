package replay

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBuiltInTrace(t *testing.T) {
	w := BuiltIn(0)
	shared := 0
	seen := map[uint64]bool{}
	for _, r := range w.Requests {
		for _, s := range r.Spans {
			if seen[s.ID] {
				shared++
			}
			seen[s.ID] = true
		}
	}
	if len(w.Requests) != 500 || shared == 0 || len(BuiltIn(20).Requests) != 20 {
		t.Errorf("%d requests with %d shared blocks, %d of 20", len(w.Requests), shared, len(BuiltIn(20).Requests))
	}
	notice, err := os.ReadFile("traces/NOTICE")
	require.NoError(t, err)
	contains(t, string(notice), "conversation_500.jsonl.gz", "kvcache-ai/Mooncake", "Apache License 2.0", "Ruoyu Qin")
}

// A public trace is taken by its checksum alone, whatever the server sends.
func TestFetchVerifies(t *testing.T) {
	text := strings.Repeat("{}\n", 100)
	sum := sha256.Sum256([]byte(text))
	for _, c := range []struct {
		status          int
		sends, contains string
	}{
		{http.StatusOK, text[1:] + "x", "has the SHA-256"}, {http.StatusOK, text + text, "has the SHA-256"},
		{http.StatusOK, text[:20], "has the SHA-256"}, {http.StatusNotFound, text, "answers 404"},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.sends)
		}))
		trace := PublicTrace{File: "t.jsonl", Bytes: int64(len(text)), SHA256: hex.EncodeToString(sum[:]), URL: s.URL}
		if _, err := trace.Fetch(t.Context(), http.DefaultClient, func(int64) {}); err == nil || !strings.Contains(err.Error(), c.contains) {
			t.Errorf("%d, %d bytes: %v, want an error with %q", c.status, len(c.sends), err, c.contains)
		}
		s.Close()
	}
}

func TestAbsentTraceExplains(t *testing.T) {
	for path, want := range map[string]string{
		"bench/traces/conversation_trace.jsonl": "bench/traces/conversation_trace.jsonl is absent; `gateway traces fetch bench/traces/conversation_trace.jsonl` downloads it (3.0 MB, Apache-2.0",
		"synthetic_trace.jsonl.gz":              "`gateway traces fetch synthetic_trace.jsonl.gz` downloads it (1.1 MB",
		"my.jsonl":                              "my.jsonl is absent; `gateway traces` lists published traces",
	} {
		_, err := os.Open(path)
		assert.Contains(t, Absent(path, err).Error(), want, "in it")
	}
	if err := Absent("x", fs.ErrPermission); err != fs.ErrPermission {
		t.Errorf("another error became %v", err)
	}
	for _, p := range PublicTraces() {
		if sum, err := hex.DecodeString(p.SHA256); err != nil || len(sum) != sha256.Size || !strings.HasPrefix(p.URL, "https://") ||
			!strings.HasSuffix(p.URL, "/"+p.File) {
			t.Errorf("%+v", p)
		}
	}
}
