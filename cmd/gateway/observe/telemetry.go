package observe

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"reflect"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/internal/terminal"
)

// Logging configures the log on standard error.
type Logging struct {
	Level  string `flag:"log-level" default:"info" oneof:"debug=also every candidate's cost|info=one line a request, and changes|warn=what needs a look|error=what failed" help:"Least severe message that is logged."`
	Format string `flag:"log-format" default:"auto" oneof:"auto=text at a terminal, else json|text=short lines without most fields|logfmt=key=value, all fields|json=objects, all fields" help:"Form of a log line."`
}

// NewLogger makes a logger that writes to w.
func NewLogger(w io.Writer, l Logging) (*slog.Logger, error) {
	opts := &slog.HandlerOptions{ReplaceAttr: forPrograms}
	var level slog.Level
	if err := errors.Join(setting.Check(&l), level.UnmarshalText([]byte(l.Level))); err != nil {
		return nil, err
	}
	if l.Format == "auto" {
		if l.Format = "json"; terminal.Is(w) {
			l.Format = "text"
		}
	}
	_, file := w.(*os.File)
	out := &output{w: w, holds: file && l.Format != "text", level: new(slog.LevelVar)}
	out.level.Set(level)
	opts.Level = out.level
	switch l.Format {
	case "json":
		return slog.New(&handler{slog.NewJSONHandler(out, opts), out, asJSON}), nil
	case "logfmt":
		return slog.New(&handler{slog.NewTextHandler(out, opts), out, asPairs}), nil
	}
	out.colours = terminal.Rewrites(w) && os.Getenv("NO_COLOR") == ""
	return slog.New(&handler{&people{out: out}, out, asText}), nil
}

// Raise has a log that NewLogger made write no line below the level, until restore is called. A journal still stores
// them.
func Raise(log *slog.Logger, level slog.Level) (restore func()) {
	h, ok := log.Handler().(*handler)
	if !ok {
		return func() {}
	}
	before := h.out.level.Level()
	h.out.level.Set(max(before, level))
	return func() { h.out.level.Set(before) }
}

// forPrograms formats a field for collectors: a duration is a number of milliseconds under a key with the unit, and a
// struct is its text instead of its Go fields.
func forPrograms(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindDuration:
		return slog.Float64(a.Key+"_ms", float64(a.Value.Duration().Microseconds())/1e3)
	case slog.KindAny:
		switch v := a.Value.Any(); reflect.ValueOf(v).Kind() {
		case reflect.Struct, reflect.Pointer, reflect.Map:
			return slog.String(a.Key, fmt.Sprint(v))
		}
	}
	return a
}

// NewRegistry makes a registry that already counts the process and the Go runtime.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// Prefix is the default prefix of our own metrics' names.
const Prefix = "tandem_"

// Handler serves a registry to Prometheus, with the [Aliases], and more, of metrics whose names begin with the prefix.
func Handler(reg *prometheus.Registry, prefix string, more ...Alias) http.Handler {
	return promhttp.HandlerFor(withAliases(reg, prefix, slices.Concat(Aliases, more)), promhttp.HandlerOpts{})
}

// ExemplarHandler is a Handler that answers in OpenMetrics on request: the one format with exemplars. It writes integer
// bucket bounds differently (le="1.0"), so it is not the default.
func ExemplarHandler(reg *prometheus.Registry, prefix string) http.Handler {
	return promhttp.HandlerFor(withAliases(reg, prefix, Aliases), promhttp.HandlerOpts{EnableOpenMetrics: true})
}
