package realtest

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The sum is of all series, 0 before the first one; a metric that a server does not have is an error, and no 0.
func TestMetric(t *testing.T) {
	// The text format of https://prometheus.io/docs/instrumenting/exposition_formats/.
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("# TYPE run gauge\nrun{rank=\"0\"} 2\nrun{rank=\"1\"} 3\n# TYPE none counter\n"))
	}))
	defer server.Close()
	var err error
	assert.Equal(t, 5., Metric(t.Context(), server.URL, "run", &err))
	assert.Equal(t, 3., Metric(t.Context(), server.URL, `run{rank="1"}`, &err))
	assert.Zero(t, Metric(t.Context(), server.URL, `none{result="released"}`, &err))
	require.NoError(t, err)
	assert.Zero(t, Metric(t.Context(), server.URL, "running", &err))
	require.Error(t, err)
}
