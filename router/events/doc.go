// Package events carries what workers say about their KV caches to the index that routes by it.
//
// An engine announces each block it stores or removes. A [Publisher] beside the engine numbers these events, sends
// them over NATS Core in vLLM's encoding, and keeps a mirror of what is stored. A [Subscriber] beside the router
// puts them into an [index.Index]; where a number is missing, it asks the publisher for it, who gives it out of a ring of
// its last messages, or gives a snapshot of its mirror.
//
// Nothing here is needed for an answer to be right: an index that is behind costs cache hits, never correctness.
// DESIGN.md says why losses are certain to be found, and what is exact.
//
// The layers, each of which a further engine or transport may replace:
//
//	bytes      [DecodeBatch], [AppendBatch]   every form that vLLM, SGLang and TensorRT-LLM send
//	order      [Flow]                         numbers: apply, stale, gap, new epoch; a core
//	meaning    [View]                         engine hashes to the router's own, of one rank; a core
//	transport  [Bus], [ZMQ]                   NATS, [Stream] or the in-memory one of tests; engines' own publishers
package events
