// Package kvevents holds tests of what its folders do together, and DESIGN.md, which says why losses are certain to be found.
//
// KV events report which blocks of a KV cache an engine has stored and removed. Nothing here is needed for an answer to be
// right: an index that is behind costs cache hits, never correctness. From the bottom up:
//
//	wire           the events, their encodings, subjects and headers
//	view           what is known of an engine's blocks; feeds an index
//	zmq            engines' own publishers, over ZeroMQ (zmq/zmtp is its protocol)
//	publish        Tandem's publisher: numbers, ring, snapshots
//	follow         the subscriber: order, gaps, repair, silence
//	natsbus        NATS Core and JetStream, which publish and follow use
//	bridge         from an engine's own publisher to NATS
package kvevents
