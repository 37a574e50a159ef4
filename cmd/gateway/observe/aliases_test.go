package observe

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
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
	got := w.Body.String()
	assert.Equal(t, 6, strings.Count(got, "# TYPE "), got)
	for _, series := range []string{
		`p_repaired_total{method="ring",pool="m"} 2`, `p_healed_total{way="ring",pool="m"} 2`, `p_size{pool="m"} 3`, `p_size{pool="n"} 4`,
		`p_all_size 7`,
		`p_new_seconds_count 1`, `p_old_seconds_count 1`,
	} {
		assert.Contains(t, got, "\n"+series+"\n")
	}
}
