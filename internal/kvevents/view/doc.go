// Package view is what is known of an engine's blocks. A [View] turns the engine's events into changes of an index, in the
// index's own hashes. A [Record] keeps the blocks with their tokens, to describe them to those who missed the events.
//
// Both are cores: no goroutine, clock or I/O.
package view
