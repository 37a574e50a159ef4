// Package queue holds requests back until there is room for them, and says who is next.
//
// A request waits before prefill and never after it. What "room" is, the queue does not know: each request brings a
// reserve func that books what it needs or asks to wait, and whoever gets out of the queue holds that booking.
// The decisions are in [Core], which has no lock, no goroutine and no clock; [Queue] is its shell, in which callers
// wait. Why it is as it is stands in DESIGN.md.
package queue
