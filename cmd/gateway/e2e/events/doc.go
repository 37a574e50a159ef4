// Package events tests the way of KV events as a whole: an engine's publisher over ZeroMQ or NATS, the follower that
// repairs what was lost, the view of the engine's blocks, and the index.
package events
