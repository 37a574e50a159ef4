// Package follow keeps indexes in step with the KV events that workers publish, over NATS or over ZeroMQ, and repairs what was
// lost on the way. DESIGN.md, one folder up, says why losses are certain to be found, and what is exact.
package follow
