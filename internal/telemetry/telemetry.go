// Package telemetry makes the two things that every room is handed: a
// structured logger and a metrics registry. Only cmd/gateway knows it; rooms
// take a *slog.Logger and a prometheus.Registerer.
package telemetry

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// NewLogger makes a logger that writes to w. level is debug, info, warn or
// error; format is text or json. The error names the setting.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log-level: %q is not debug, info, warn or error", level)
	}
	opts := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, fmt.Errorf("log-format: %q is not text or json", format)
}

// NewRegistry makes a registry that already counts the process and the Go
// runtime.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// BuildInfo is the metric build_info: always 1, with the program's version, the
// revision that it was built from and the Go release as labels. What the build
// did not record is "unknown".
func BuildInfo(version string) prometheus.Collector {
	revision := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				revision = s.Value
			}
		}
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "build_info", Help: "1; the labels say what is running.",
		ConstLabels: prometheus.Labels{
			"version": cmp.Or(version, unknown), "revision": cmp.Or(revision, unknown), "goversion": runtime.Version(),
		},
	})
	info.Set(1)
	return info
}

const unknown = "unknown"

// Handler serves a registry to Prometheus.
func Handler(reg *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
}
