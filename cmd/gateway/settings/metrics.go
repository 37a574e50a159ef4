package settings

import (
	"errors"
	"regexp"
	"strings"
)

// Metrics is what /metrics says.
type Metrics struct {
	Prefix             string  `setting:"metrics-prefix"` // see [MetricsPrefix]
	DesiredUtilization float64 `setting:"desired-workers-utilization"`
}

// maxPrefixBytes keeps a prefix one, and not a text.
const maxPrefixBytes = 64

// prefixForm is the form of a Prometheus metric's name.
var prefixForm = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)

// MetricsGroup is the table that fills [Metrics].
func MetricsGroup() Group {
	return Group{Title: "Metrics", Settings: []Setting{
		{
			Name: "metrics-prefix", Kind: String, Default: "tandem_", Validate: validPrefix,
			Help: "What the names of the gateway's metrics begin with: letters, digits, _ and :, no digit first. A prefix that ends in neither _ nor : " +
				"gets an _. dynamo_ lets dashboards made for Dynamo find what means the same here; empty is no prefix. " +
				"The metrics of the Go runtime and the process keep their names.",
		},
		{
			Name: "desired-workers-utilization", Kind: Float, Default: "0.8", Min: "0.1", Max: "1",
			Help: "Share of a worker's capacity that the metric desired_workers plans with. Lower asks for workers earlier and leaves room for bursts; " +
				"higher runs them fuller, and requests wait sooner.",
		},
	}}
}

// MetricsPrefix is the prefix as it goes before names: text, ended by "_" where
// it ends in neither "_" nor ":". Empty stays empty.
func MetricsPrefix(text string) string {
	if text == "" || strings.HasSuffix(text, "_") || strings.HasSuffix(text, ":") {
		return text
	}
	return text + "_"
}

func validPrefix(value any) error {
	text := value.(string)
	switch {
	case text == "":
		return nil
	case len(text) > maxPrefixBytes:
		return errors.New("it is longer than 64 bytes")
	case !prefixForm.MatchString(text):
		return errors.New("a metric's name may hold letters, digits, _ and :, and not begin with a digit")
	}
	return nil
}
