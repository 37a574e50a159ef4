// Package telemetry makes the two things that every room is handed: a structured logger and a metrics registry. Only
// cmd/gateway knows it; rooms take a *slog.Logger and a prometheus.Registerer.
package telemetry

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tandem-pd/tandem/internal/setting"
)

// Logging is what is written to standard error.
type Logging struct {
	Level  string `flag:"log-level" default:"info" oneof:"debug=also every candidate's cost at every choice; several lines a request|info=one line a request, and what changes|warn=what needs a look|error=what failed" help:"Least severe message that is logged. No level logs prompts or answers." when:"asking why a worker was chosen: debug"`
	Format string `flag:"log-format" default:"text" oneof:"text=key=value, for people|json=an object a line, for collectors" help:"Form of a log line." when:"a collector reads it"`
}

// NewLogger makes a logger that writes to w.
func NewLogger(w io.Writer, l Logging) (*slog.Logger, error) {
	opts := &slog.HandlerOptions{}
	var level slog.Level
	if err := errors.Join(setting.Check(&l), level.UnmarshalText([]byte(l.Level))); err != nil {
		return nil, err
	}
	opts.Level = level
	out := &output{w: w}
	if l.Format == "json" {
		return slog.New(&handler{slog.NewJSONHandler(out, opts), out, true}), nil
	}
	return slog.New(&handler{slog.NewTextHandler(out, opts), out, false}), nil
}

// NewRegistry makes a registry that already counts the process and the Go runtime.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// Prefix is the default prefix of our own metrics' names.
const Prefix = "tandem_"

// Handler serves a registry to Prometheus, with the [Aliases], and more, of metrics
// whose names begin with the prefix.
func Handler(reg *prometheus.Registry, prefix string, more ...Alias) http.Handler {
	return promhttp.HandlerFor(withAliases(reg, prefix, slices.Concat(Aliases, more)), promhttp.HandlerOpts{})
}
