package settings

import "time"

// KVEvents is how workers' KV events over NATS are followed.
type KVEvents struct {
	SilentAfter  time.Duration `setting:"kv-events-silent-after"`
	PredictAfter time.Duration `setting:"kv-events-predict-after"`
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
	}}
}
