package settings

import "time"

// KVStream is whether, and how, KV events are kept in JetStream.
type KVStream struct {
	Durable  bool          `setting:"durable-kv-events"`
	MaxAge   time.Duration `setting:"kv-stream-max-age"`
	MaxBytes int64         `setting:"kv-stream-max-bytes"`
}

// KVStreamGroup is the table that fills [KVStream]. Gateways and workers have it.
func KVStreamGroup() Group {
	return Group{Title: "KV stream", Settings: []Setting{
		{
			Name: "durable-kv-events", Aliases: []string{"router-durable-kv-events"}, Kind: Bool, Default: "false",
			Help: "Keep KV events in a JetStream stream, TANDEM_KV. A gateway that was away goes on where it left off, and one that starts reads what it can of " +
				"each worker there instead of asking it. Costs disk and some latency of events. The NATS server needs JetStream; give it to gateways and workers alike.",
		},
		{
			Name: "kv-stream-max-age", Kind: Duration, Default: "1h", Min: "1m", Max: "8760h",
			Help: "How long the stream keeps events, where it is made here: the first gateway or worker makes it, and one that is there stays as it is. " +
				"Longer than a worker lives lets a gateway start without asking it; more is read then.",
		},
		{
			Name: "kv-stream-max-bytes", Kind: Bytes, Default: "1GiB", Min: "1MiB",
			Help: "How much the stream keeps, likewise; the oldest go first. 64 workers at 20,000 prompt tokens a second each write about 6 MB a second, which is three minutes of 1GiB.",
		},
	}}
}

// KVEvents is how workers' KV events are followed, and what is done about those that are lost or wrong.
type KVEvents struct {
	SilentAfter  time.Duration `setting:"kv-events-silent-after"`
	PredictAfter time.Duration `setting:"kv-events-predict-after"`
	Parity       bool          `setting:"kv-parity"`
	ReportMode   string        `setting:"kv-cache-report-mode"`
}

// KVEventsGroup is the table that fills [KVEvents].
func KVEventsGroup() Group {
	return Group{Title: "KV events", Settings: []Setting{
		{
			Name: "kv-events-silent-after", Kind: Duration, Default: "5s", Min: "2s", Max: "1h",
			Help: "How long nothing may come over NATS from a worker, which speaks every second, before /workers shows it as silent. It is routed to by what is " +
				"known. Shorter says so sooner, and also of workers that only paused.",
		},
		{
			Name: "kv-events-predict-after", Kind: Duration, Default: "1m", Min: "2s", Max: "24h",
			Help: "How long that may last, while NATS itself is connected, before the worker's cache is predicted instead. At least kv-events-silent-after. " +
				"Longer believes in what may have been evicted; shorter drops what may still be there. It begins anew when NATS was away.",
		},
		{
			Name: "kv-parity", Kind: Bool, Default: "true",
			Help: "Compare how many prompt tokens a worker says it had cached with what its KV events let the router believe. A rank of which too much is wrong, " +
				"more than a quarter of the last 32 answers, is predicted as though it had no events, until they agree again. Off compares nothing and believes every event.",
		},
		{
			Name: "kv-cache-report-mode", Kind: String, Default: "auto", OneOf: []Choice{
				{Name: "auto", Help: "requests to a vLLM rank whose events were lost ask for it"},
				{Name: "off", Help: "none does"},
			},
			Help: "Whether requests ask their engine to announce whole prefixes that it uses again (vllm_xargs.kv_cache_report_mode \"full\", vLLM from 0.26.0), which " +
				"heals a view that lost events. Each such announcement is as long as the prompt. A client's own value stands.",
		},
	}}
}
