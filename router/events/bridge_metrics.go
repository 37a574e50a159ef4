package events

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// bridgeCollector exports what is known of each rank, at the scrape.
type bridgeCollector func() []BridgeStatus

// bridgeDescs are a Bridge's metrics, each with its value.
var bridgeDescs = []struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(s *BridgeStatus) float64
}{
	{bridgeDesc("messages_total", "Messages told on to NATS, heartbeats and snapshots included."), prometheus.CounterValue, func(s *BridgeStatus) float64 { return float64(s.Messages) }},
	{bridgeDesc("failed_total", "Messages that NATS did not take: gaps to the subscribers."), prometheus.CounterValue, func(s *BridgeStatus) float64 { return float64(s.Failed) }},
	{bridgeDesc("blocks", "The engine's KV blocks in the snapshot that subscribers are given."), prometheus.GaugeValue, func(s *BridgeStatus) float64 { return float64(s.Blocks) }},
	{bridgeDesc("losses_total", "Times that events of the engine were lost for good."), prometheus.CounterValue, func(s *BridgeStatus) float64 { return float64(s.From.Losses) }},
	{bridgeDesc("restarts_total", "Times that the engine was found to have begun anew."), prometheus.CounterValue, func(s *BridgeStatus) float64 { return float64(s.Restarts) }},
	{bridgeDesc("partial", "1 while subscribers are told not to rely on what they hear."), prometheus.GaugeValue, func(s *BridgeStatus) float64 {
		if s.Partial {
			return 1
		}
		return 0
	}},
}

func bridgeDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("kv_bridge_"+name, help, sourceLabels, nil)
}

// Describe implements prometheus.Collector.
func (bridgeCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range bridgeDescs {
		ch <- d.desc
	}
}

// Collect implements prometheus.Collector.
func (c bridgeCollector) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c() {
		of := s.From.Source
		for _, d := range bridgeDescs {
			ch <- prometheus.MustNewConstMetric(d.desc, d.kind, d.value(&s), of.Pool, of.Worker, strconv.Itoa(of.Rank))
		}
	}
}
