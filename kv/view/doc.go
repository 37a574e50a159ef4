// Package view keeps the blocks of an engine. A [View] turns the engine's events into changes of an index, in the index's own
// hashes. A [Record] keeps the blocks with their tokens, for snapshots. Both are cores: no goroutine, clock or I/O.
//
// A [Publisher] sends the KV events of an engine that has no publisher of its own: numbered, with a heartbeat, a ring of the last
// messages and snapshots for subscribers that missed some.
package view
