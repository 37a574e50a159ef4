// Package bridge carries an engine's own KV events, which it publishes over ZeroMQ, on to NATS.
package bridge
