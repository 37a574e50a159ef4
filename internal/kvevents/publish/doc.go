// Package publish sends the KV events of an engine that has no publisher of its own: numbered, with a heartbeat, a ring of the
// last messages and snapshots for subscribers that missed some.
package publish
