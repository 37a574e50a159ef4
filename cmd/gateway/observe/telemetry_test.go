package observe

import (
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
)

// The build's info goes under the prefix, beside metrics that keep their names.
func TestBuildInfo(t *testing.T) {
	for version, want := range map[string]string{"v1.2": `version="v1.2"`, "": `version="unknown"`} {
		reg := NewRegistry()
		prometheus.WrapRegistererWithPrefix("p_", reg).MustRegister(ReadBuild(version).Info())
		w := httptest.NewRecorder()
		Handler(reg, "p_").ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		assert.Contains(t, w.Body.String(), "\ngo_goroutines ")
		_, line, _ := strings.Cut(w.Body.String(), "\np_build_info{")
		line, _, _ = strings.Cut(line, "\n")
		for _, part := range []string{want, `goversion="` + runtime.Version() + `"`, `revision="`, "} 1"} {
			assert.Contains(t, line, part)
		}
	}
}

// What the linker was given wins; else what Go recorded of the repository counts.
func TestBuildOf(t *testing.T) {
	recorded := func(version string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: version}, Settings: settings}
	}
	commit := debug.BuildSetting{Key: "vcs.revision", Value: "1d03e0b"}
	for _, tt := range []struct {
		linked            string
		info              *debug.BuildInfo
		version, revision string
	}{
		{"", nil, "unknown", "unknown"},
		{"v2", nil, "v2", "unknown"},
		{"", recorded("(devel)"), "unknown", "unknown"},
		{"", recorded("v1.2.0"), "v1.2.0", "unknown"}, // go install …@v1.2.0
		{"", recorded("v1.2.0", commit, debug.BuildSetting{Key: "vcs.modified", Value: "false"}), "v1.2.0", "1d03e0b"},
		{"v2", recorded("v1.2.0+dirty", commit, debug.BuildSetting{Key: "vcs.modified", Value: "true"}), "v2", "1d03e0b-dirty"},
	} {
		b := buildOf(tt.linked, tt.info)
		assert.Equal(t, [3]string{tt.version, tt.revision, runtime.Version()}, [3]string{b.Version, b.Revision, b.Go}, "%q and %+v",
			tt.linked, tt.info)
	}
}
