package follow

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/metrics"
)

// export registers the metrics of each rank, which status returns, with reg, which may be nil.
func export(reg prometheus.Registerer, status func() []BridgeStatus) {
	labels := []string{"pool", "worker", "rank"}
	scrape := metrics.In(reg).Snapshot()
	messages := scrape.Counter("kv_bridge_messages_total",
		"Messages forwarded to NATS, by pool, worker and rank; heartbeats and snapshots included.", labels...)
	failed := scrape.Counter("kv_bridge_failed_total",
		"Messages that NATS did not take, by pool, worker and rank: gaps for the subscribers.", labels...)
	blocks := scrape.Gauge("kv_bridge_blocks", "KV blocks of the engine in the snapshot for subscribers, by pool, worker and rank.", labels...)
	losses := scrape.Counter("kv_bridge_losses_total",
		"Times that events of the engine were lost for good, by pool, worker and rank.", labels...)
	restarts := scrape.Counter("kv_bridge_restarts_total",
		"Restarts of the engine that the bridge noticed, by pool, worker and rank.", labels...)
	partial := scrape.Gauge("kv_bridge_partial",
		"1 while the bridge marks its events as incomplete for subscribers, 0 otherwise, by pool, worker and rank.", labels...)
	scrape.Read(func() {
		for _, s := range status() {
			of := []string{s.From.Source.Pool, s.From.Source.Worker, strconv.Itoa(s.From.Source.Rank)}
			messages.Set(float64(s.Messages), of...)
			failed.Set(float64(s.Failed), of...)
			blocks.Set(float64(s.Blocks), of...)
			losses.Set(float64(s.From.Losses), of...)
			restarts.Set(float64(s.Restarts), of...)
			partial.Set(metrics.Bool(s.Partial), of...)
		}
	})
}
