package service

import "github.com/tandem-pd/tandem/pools"

// Registration is a worker of a shared index, in POST /register and GET /workers.
type Registration struct {
	ID    string `json:"id"`
	Model string `json:"model"`
	// Role is the worker's pool; empty means both. With NATS it must match the worker's events.
	Role pools.Role `json:"role"`
	// BlockSize is in tokens, the same for all workers of a model, 1 to [pools.MaxBlockSize].
	BlockSize int `json:"block_size"`
	// Ranks is the number of data-parallel ranks, 0 meaning 1.
	Ranks int `json:"data_parallel_ranks"`
	// KVEvents is "nats", "zmq" or "post"; empty means post.
	KVEvents string `json:"kv_events"`
	// Endpoint, Replay and Topic are where rank 0's engine publishes and replays events over ZMQ, as in
	// [pools.Worker]. TotalBlocks is the cache of one rank in blocks, 0 if unknown.
	Endpoint    string `json:"kv_events_endpoint,omitempty"`
	Replay      string `json:"kv_events_replay_endpoint,omitempty"`
	Topic       string `json:"kv_events_topic,omitempty"`
	TotalBlocks int    `json:"total_kv_blocks,omitempty"`
}

// Removal unregisters a worker.
type Removal struct {
	ID string `json:"id"`
}

// List is every registered worker.
type List struct {
	Workers []Registration `json:"workers"`
}

// registrationOf returns a worker's registration; not ok for one whose events an index cannot follow, or that is
// never looked up: decode workers are chosen by load alone.
func registrationOf(w *pools.Worker) (r Registration, ok bool) {
	r = Registration{ID: w.ID, Model: w.Model, Role: w.Role, BlockSize: w.BlockSize, Ranks: w.Ranks(), KVEvents: w.KVEvents}
	switch {
	case w.Role == pools.Decode, pools.Listens(w.KVEndpoint): // its engine connects to this gateway only
		return r, false
	case w.KVEvents == "zmq":
		r.Endpoint, r.Replay, r.Topic, r.TotalBlocks = w.KVEndpoint, w.KVReplay, w.KVTopic, w.TotalKVBlocks
		return r, true
	}
	return r, w.KVEvents == "nats"
}
