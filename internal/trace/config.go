// Package trace has the ids of W3C Trace Context and exports spans over the OpenTelemetry protocol. The standard OTEL_*
// variables configure it; without an endpoint it is off. Sampling is decided before any span exists ([Exporter.Sample]),
// and spans are made when the request has ended ([Exporter.Emit]): an unsampled request costs a random number.
package trace

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strconv"
	"strings"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// ExporterConfig is the exporter's endpoint. OpenTelemetry's environment variables set the rest.
type ExporterConfig struct {
	// Endpoint is OTEL_EXPORTER_OTLP_ENDPOINT where a test sets none.
	Endpoint string
	// Service names the program where OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES do not, and Version is its release.
	Service, Version string
	// Sampler is OTEL_TRACES_SAMPLER where that is not set; empty is parentbased_traceidratio.
	Sampler string
}

// defaultRatio is the share of traces sampled that no client decides on.
const defaultRatio = 0.01

// maxQueue is the most spans that may wait for the collector.
const maxQueue = 1 << 16

// environment is the variables' values.
type environment struct {
	endpoint string // base URL of [Config]; empty leaves it to the exporter's own variables
	grpc     bool
	sampler  sampler
	queue    int // spans
	batch    int // spans that leave together
}

// read returns the values of the variables and c; nil if no request is traced. Unknown values are logged and ignored,
// as the specification demands.
func (c ExporterConfig) read(log *slog.Logger) (*environment, error) {
	endpoint := cmp.Or(c.Endpoint, variable("ENDPOINT"))
	if endpoint == "" {
		return nil, nil
	}
	for name, off := range map[string]string{"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "none"} {
		if strings.EqualFold(strings.TrimSpace(os.Getenv(name)), off) {
			log.Info("no request is traced", name, off)
			return nil, nil
		}
	}
	if at, err := url.Parse(endpoint); err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT, the collector's address, is not http://HOST:PORT or https://HOST:PORT")
	}
	if err := checkSecrets(); err != nil {
		return nil, err
	}
	e := &environment{endpoint: c.Endpoint}
	switch protocol := variable("PROTOCOL"); protocol {
	case "", "http/protobuf":
	case "grpc":
		e.grpc = true
	default:
		ignore(log, "OTEL_EXPORTER_OTLP_PROTOCOL", protocol, "http/protobuf")
	}
	e.queue = count(log, "OTEL_BSP_MAX_QUEUE_SIZE", sdk.DefaultMaxQueueSize, maxQueue)
	e.batch = count(log, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", min(sdk.DefaultMaxExportBatchSize, e.queue), e.queue)
	e.sampler = c.readSampler(log)
	return e, nil
}

// count reads a variable of 1 to most; the SDK would fail on less than 1.
func count(log *slog.Logger, name string, def, most int) int {
	text := os.Getenv(name)
	if text == "" {
		return def
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		ignore(log, name, text, strconv.Itoa(def))
		return def
	}
	return n
}

func (c ExporterConfig) readSampler(log *slog.Logger) sampler {
	name := cmp.Or(os.Getenv("OTEL_TRACES_SAMPLER"), c.Sampler, "parentbased_traceidratio")
	ratio := defaultRatio
	if text := os.Getenv("OTEL_TRACES_SAMPLER_ARG"); text != "" {
		if x, err := strconv.ParseFloat(text, 64); err == nil && x >= 0 && x <= 1 {
			ratio = x
		} else {
			ignore(log, "OTEL_TRACES_SAMPLER_ARG", text, fmt.Sprint(ratio))
		}
	}
	s, ok := newSampler(name, ratio)
	if !ok {
		ignore(log, "OTEL_TRACES_SAMPLER", name, "parentbased_traceidratio")
	}
	return s
}

// variable is the value of an exporter's variable: that of traces alone, or that of all signals.
func variable(name string) string {
	return cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_"+name), os.Getenv("OTEL_EXPORTER_OTLP_"+name))
}

// checkSecrets rejects what the SDK would report together with its value, or drop.
func checkSecrets() error {
	for item := range strings.SplitSeq(variable("HEADERS"), ",") {
		name, value, ok := strings.Cut(item, "=")
		if _, err := url.PathUnescape(value); item != "" && (!ok || strings.TrimSpace(name) == "" || err != nil) {
			return fmt.Errorf("OTEL_EXPORTER_OTLP_HEADERS is not NAME=VALUE,NAME=VALUE with percent-encoded values") // not shown: they may be keys
		}
	}
	for _, name := range []string{"CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"} {
		if file := variable(name); file != "" {
			if _, err := os.ReadFile(file); err != nil {
				return fmt.Errorf("OTEL_EXPORTER_OTLP_%s: %w", name, err)
			}
		}
	}
	return nil
}

// ignore logs a value that is passed over.
func ignore(log *slog.Logger, name, value, used string) {
	log.Warn("unknown value of an OpenTelemetry variable ignored", "variable", name, "value", value, "used", used)
}
