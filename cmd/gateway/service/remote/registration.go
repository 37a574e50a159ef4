package remote

import "github.com/tandem-pd/tandem/pools"

// Registration is a worker of a shared index, as POST /register takes it and GET /workers lists it.
type Registration struct {
	ID    string `json:"id"`
	Model string `json:"model"`
	// Role is the worker's pool's; empty means both. With NATS it must be what the worker publishes under.
	Role pools.Role `json:"role"`
	// BlockSize is in tokens, the same for all workers of a model, 1 to [pools.MaxBlockSize].
	BlockSize int `json:"block_size"`
	// Ranks is the number of data-parallel ranks, 0 meaning 1.
	Ranks int `json:"data_parallel_ranks"`
	// KVEvents is "nats", "zmq" or "post"; empty means post.
	KVEvents string `json:"kv_events"`
	// Endpoint, Replay and Topic are, with zmq, where rank 0's engine publishes and repeats its events, as
	// [pools.Worker] has them, and TotalBlocks the cache of one rank in blocks, 0 unknown.
	Endpoint    string `json:"kv_events_endpoint,omitempty"`
	Replay      string `json:"kv_events_replay_endpoint,omitempty"`
	Topic       string `json:"kv_events_topic,omitempty"`
	TotalBlocks int    `json:"total_kv_blocks,omitempty"`
}

// Removal takes a worker out.
type Removal struct {
	ID string `json:"id"`
}

// List is every worker that is registered.
type List struct {
	Workers []Registration `json:"workers"`
}

// registrationOf is how a worker is registered; not ok for one that an index can know nothing about, or is never
// asked about: decode workers are chosen by load alone.
func registrationOf(w *pools.Worker) (r Registration, ok bool) {
	r = Registration{ID: w.ID, Model: w.Model, Role: w.Role, BlockSize: w.BlockSize, Ranks: w.Ranks(), KVEvents: w.KVEvents}
	switch {
	case w.Role == pools.Decode, pools.Listens(w.KVEndpoint): // its engine connects to this gateway alone
		return r, false
	case w.KVEvents == "zmq":
		r.Endpoint, r.Replay, r.Topic, r.TotalBlocks = w.KVEndpoint, w.KVReplay, w.KVTopic, w.TotalKVBlocks
		return r, true
	}
	return r, w.KVEvents == "nats"
}
