// Package follow keeps indexes in step with the KV events that workers publish, over NATS or ZeroMQ, and repairs what was lost on
// the way. A [Bridge] forwards an engine's own events from ZeroMQ to NATS. DESIGN.md, one folder up, explains why every loss is
// found, and what is exact.
package follow
