package replay

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestFetchTrace: a trace is put where it was wanted, whole; one that is there is left alone.
func TestFetchTrace(t *testing.T) {
	const text = `{"timestamp":0,"input_length":1,"output_length":1}`
	sum := sha256.Sum256([]byte(text))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }))
	trace := PublicTrace{File: "t.jsonl", Bytes: int64(len(text)), SHA256: hex.EncodeToString(sum[:]), URL: s.URL}
	folder := filepath.Join(t.TempDir(), "a", "b")
	plain, zipped := filepath.Join(folder, "t.jsonl"), filepath.Join(folder, "t.jsonl.gz")
	for _, path := range []string{plain, zipped} {
		require.NoError(t, fetchTo(t.Context(), io.Discard, io.Discard, &trace, path))
		data, err := os.ReadFile(path)
		assert.True(t, err == nil && trace.Verify(data) == nil && strings.HasSuffix(path, ".gz") == (data[0] == 0x1f),
			"%s: %q, error %v", path, data, err)
	}
	s.Close()
	assert.NoError(t, fetchTo(t.Context(), io.Discard, io.Discard, &trace, plain), "it is there already")
	err := fetchTo(t.Context(), io.Discard, io.Discard, &trace, filepath.Join(folder, "u.jsonl"))
	for _, want := range []string{"by hand: get " + s.URL, trace.SHA256, "u.jsonl"} {
		assert.True(t, err != nil && strings.Contains(err.Error(), want), "error %v, want one with %q", err, want)
	}
	require.NoError(t, os.WriteFile(plain, []byte("mine"), 0o600))
	if err := fetchTo(t.Context(), io.Discard, io.Discard, &trace, plain); err == nil || !strings.Contains(err.Error(), "is another file") {
		t.Errorf("over another file: %v", err)
	}
	left, err := os.ReadDir(folder)
	assert.True(t, err == nil && len(left) == 2, "it left %v, error %v", left, err)
}
