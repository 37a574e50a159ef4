package service

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/router/index"
)

// indexSize collects, at the scrape, how much there is of what workers hold.
type indexSize func() index.Stats

var (
	heldBlocks    = prometheus.NewDesc("service_index_held_blocks", "Pairs of block and worker's rank in the index, each tier counted for itself; kv-index-max-blocks bounds them.", nil, nil)
	indexBlocks   = prometheus.NewDesc("service_index_blocks", "Distinct blocks in the index.", nil, nil)
	indexOwners   = prometheus.NewDesc("service_index_owners", "Ranks that the index knows.", nil, nil)
	indexHoled    = prometheus.NewDesc("service_index_holed", "Pairs of rank and tier whose blocks have gaps: they are looked up block by block.", nil, nil)
	indexBytes    = prometheus.NewDesc("service_index_bytes", "Memory of the index.", nil, nil)
	evictedBlocks = prometheus.NewDesc("service_index_evicted_blocks_total", "Pairs that kv-index-max-blocks had no room for.", nil, nil)
)

// Describe implements prometheus.Collector.
func (indexSize) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{heldBlocks, indexBlocks, indexOwners, indexHoled, indexBytes, evictedBlocks} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (of indexSize) Collect(ch chan<- prometheus.Metric) {
	s := of()
	gauge := func(d *prometheus.Desc, v int) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v))
	}
	gauge(heldBlocks, s.Held)
	gauge(indexBlocks, s.Blocks)
	gauge(indexOwners, s.Owners)
	gauge(indexHoled, s.Holed)
	gauge(indexBytes, s.Bytes)
	ch <- prometheus.MustNewConstMetric(evictedBlocks, prometheus.CounterValue, float64(s.Evicted))
}
