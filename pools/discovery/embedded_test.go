package discovery

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A page in a browser on this machine may send any body as text/plain, whose answer it need not see: one that
// registers a worker would have prompts sent to it.
func TestEmbeddedEtcdTakesNothingFromWebPages(t *testing.T) {
	s := started(t)
	c := s.client(s.etcd.URL())
	_, err := c.Put(t.Context(), "b", "b")
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for path, body := range map[string]string{
		"/v3/kv/put":         `{"key":"YQ==","value":"YQ=="}`,
		"/v3/kv/deleterange": `{"key":"Yg=="}`,
		"/v3/kv/range":       `{"key":"Yg=="}`,
	} {
		resp, err := client.Post(s.etcd.URL()+path, "text/plain", strings.NewReader(body))
		require.NoError(t, err)
		resp.Body.Close()
		assert.GreaterOrEqual(t, resp.StatusCode, 400, "%s: status", path)
	}
	for key, want := range map[string]int64{"a": 0, "b": 1} {
		got, err := c.Get(t.Context(), key)
		require.NoError(t, err)
		assert.Equal(t, want, got.Count, "values of %q", key)
	}
}
