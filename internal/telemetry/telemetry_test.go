package telemetry

import (
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// The build's info goes under the prefix, beside metrics that keep their names.
func TestBuildInfo(t *testing.T) {
	for version, want := range map[string]string{"v1.2": `version="v1.2"`, "": `version="unknown"`} {
		reg := NewRegistry()
		prometheus.WrapRegistererWithPrefix("p_", reg).MustRegister(BuildInfo(version))
		w := httptest.NewRecorder()
		Handler(reg).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		line := ""
		for l := range strings.Lines(w.Body.String()) {
			if strings.HasPrefix(l, "p_build_info{") {
				line = l
			}
		}
		for _, part := range []string{want, `goversion="` + runtime.Version() + `"`, `revision="`, "} 1\n"} {
			if !strings.Contains(line, part) {
				t.Errorf("%q lacks %s", line, part)
			}
		}
		if !strings.Contains(w.Body.String(), "\ngo_goroutines ") {
			t.Error("the runtime's metrics are gone")
		}
	}
}
