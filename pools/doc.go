// Package pools knows who the workers are.
//
// A pool is a (model, role): every worker that serves one model in one role. The [Roster] is told
// about workers by discovery, and about their health by whoever called them, and hands out each pool as an
// immutable [Pool] that all requests share. Nothing here talks to a worker or to a registry.
//
// The decisions are in [Core], which has no lock, no goroutine and no clock; Roster is its shell.
package pools
