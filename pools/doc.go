// Package pools tracks the workers and their pools.
//
// A pool is a (model, role): every worker that serves one model in one role. The [Roster] gets workers from discovery
// and failures from callers, and publishes each pool as an immutable, shared [Pool]. Nothing here connects to a worker
// or a registry.
//
// The decisions are in [Core], which has no lock, no goroutine and no clock; Roster is its shell.
package pools
