package telemetry

import (
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A scrape shows a renamed metric under both names, whatever else was renamed of it.
func TestAliases(t *testing.T) {
	reg := prometheus.NewRegistry()
	own := prometheus.WrapRegistererWithPrefix("p_", reg)
	counter := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "repaired_total"}, []string{"pool", "method"})
	gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "size"}, []string{"pool"})
	seconds := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "new_seconds"})
	own.MustRegister(counter, gauge, seconds)
	counter.WithLabelValues("m", "ring").Add(2)
	gauge.WithLabelValues("m").Set(3)
	gauge.WithLabelValues("n").Set(4)
	seconds.Observe(1)
	w := httptest.NewRecorder()
	Handler(reg, "p_",
		Alias{Old: "healed_total", Name: "repaired_total", Labels: map[string]string{"method": "way"}},
		Alias{Old: "all_size", Name: "size", Sum: true},
		Alias{Old: "old_seconds", Name: "new_seconds"},
		Alias{Old: "gone", Name: "not_there"},
	).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	parser := expfmt.NewTextParser(model.UTF8Validation)
	got, err := parser.TextToMetricFamilies(w.Body)
	require.NoError(t, err)
	assert.True(t, len(got) == 6 && got["p_repaired_total"] != nil && got["p_size"] != nil && got["p_new_seconds"] != nil,
		"%d metrics: %v", len(got), got)
	healed := got["p_healed_total"].GetMetric()
	labels := map[string]string{}
	for _, l := range healed[0].GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	assert.True(t, len(healed) == 1 && healed[0].GetCounter().GetValue() == 2 && labels["pool"] == "m" && labels["way"] == "ring" && len(labels) == 2,
		"a renamed label: %v", healed)
	m := got["p_all_size"].GetMetric()
	assert.True(t, len(m) == 1 && len(m[0].GetLabel()) == 0 && m[0].GetGauge().GetValue() == 7, "a sum: %v", m)
	assert.EqualValues(t, 1, got["p_old_seconds"].GetMetric()[0].GetHistogram().GetSampleCount(), "a histogram of N samples")
}
