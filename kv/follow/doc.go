// Package follow keeps indexes in sync with the KV events that workers publish over NATS or ZeroMQ, and repairs losses.
// A [Bridge] forwards an engine's own events from ZeroMQ to NATS. DESIGN.md, one folder up, explains why every loss is
// found.
package follow
