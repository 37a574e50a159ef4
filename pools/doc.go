// Package pools knows who the workers are.
//
// A pool is a (model, role): every worker that serves one model in one role. The [Roster] learns
// about workers from discovery and about their health from their callers, and gives out each pool as an
// immutable [Pool] that all requests share. Nothing here talks to a worker or to a registry.
//
// The decisions are in [Core], which has no lock, no goroutine and no clock; Roster is its shell.
package pools
