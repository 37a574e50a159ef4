package observe

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Alias is the old name of a metric, which stays for one release. Names are without the prefix.
type Alias struct {
	Old, Name string
	// Labels gives the old name of each label that was renamed.
	Labels map[string]string
	// Sum marks an old metric without labels: it is the sum of all series.
	Sum bool
}

// Aliases are those of every program. Each has a row in docs/reference/metrics.md.
var Aliases = []Alias{
	{Old: "kv_events_healed_total", Name: "kv_events_repaired_total", Labels: map[string]string{"method": "way"}},
}

// ServiceAliases are those of the index and select services alone.
var ServiceAliases = []Alias{
	{Old: "service_index_held_blocks", Name: "component_router_index_held_blocks", Sum: true},
	{Old: "service_index_evicted_blocks_total", Name: "component_router_index_evicted_blocks_total", Sum: true},
}

// withAliases returns a gatherer of g's metrics that repeats some under old names.
func withAliases(g prometheus.Gatherer, prefix string, aliases []Alias) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := g.Gather()
		for _, a := range aliases {
			for _, f := range families {
				if f.GetName() == prefix+a.Name {
					families = append(families, a.of(f, prefix))
					break
				}
			}
		}
		slices.SortFunc(families, func(a, b *dto.MetricFamily) int { return cmp.Compare(a.GetName(), b.GetName()) })
		return families, err
	})
}

// of is the family under its old name.
func (a Alias) of(f *dto.MetricFamily, prefix string) *dto.MetricFamily {
	name, help := prefix+a.Old, "Old name of "+f.GetName()+", for one release."
	out := &dto.MetricFamily{Name: &name, Help: &help, Type: f.Type}
	sum := 0.
	for _, m := range f.Metric {
		sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		old := &dto.Metric{Gauge: m.Gauge, Counter: m.Counter, Histogram: m.Histogram}
		for _, l := range m.Label {
			label := cmp.Or(a.Labels[l.GetName()], l.GetName())
			old.Label = append(old.Label, &dto.LabelPair{Name: &label, Value: l.Value})
		}
		out.Metric = append(out.Metric, old)
	}
	if a.Sum && f.GetType() == dto.MetricType_COUNTER {
		out.Metric = []*dto.Metric{{Counter: &dto.Counter{Value: &sum}}}
	} else if a.Sum {
		out.Metric = []*dto.Metric{{Gauge: &dto.Gauge{Value: &sum}}}
	}
	return out
}
