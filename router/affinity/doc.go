// Package affinity keeps to which worker a session is bound, for as long as the session is used.
//
// A [Table] is a plain value without a lock, a clock or a goroutine. It is advisory: a session without a binding is placed as any
// other request, so a table may be bounded, and messages between gateways may be lost.
package affinity
