// Package affinity stores which worker a session is bound to while the session is in use.
//
// A [Table] is a plain value without a lock, clock or goroutine. It is advisory: a session without a binding is placed
// like any other request, so a table may be bounded and messages may be lost.
package load
