package observe

import (
	"cmp"
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
)

// Build is the program's version. What the build did not record is "unknown".
type Build struct {
	Version string // "v1.2.0", or Go's pseudo-version
	// Revision is the commit's hash; it ends in "-dirty" where the tree had changes that were not committed.
	Revision string
	Go       string // the release of Go that built it: "go1.26.0"
}

const telemetryUnknown = "unknown"

// commit is set for a release, whose build hides the repository from Go, since Go records other values in a clone than
// in a worktree. -ldflags "-X github.com/tandem-pd/tandem/cmd/gateway/observe.commit=…"
var commit string

// ReadBuild returns this program's Build. version is the linker's, or empty for the one that Go recorded.
func ReadBuild(version string) Build {
	info, _ := debug.ReadBuildInfo()
	return buildOf(version, info)
}

// buildOf converts Go's build info; it may be nil.
func buildOf(version string, info *debug.BuildInfo) Build {
	revision, dirty := commit, ""
	if info != nil {
		if info.Main.Version != "(devel)" { // a build that did not look at the repository
			version = cmp.Or(version, info.Main.Version)
		}
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				revision = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				dirty = "-dirty"
			}
		}
	}
	b := Build{Version: cmp.Or(version, telemetryUnknown), Revision: telemetryUnknown, Go: runtime.Version()}
	if revision != "" {
		b.Revision = revision + dirty
	}
	return b
}

// Info is the metric build_info: always 1, with the build as labels.
func (b Build) Info() prometheus.Collector {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "build_info", Help: "1; the labels name version and build.",
		ConstLabels: prometheus.Labels{"version": b.Version, "revision": b.Revision, "goversion": b.Go},
	})
	info.Set(1)
	return info
}
