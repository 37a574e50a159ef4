// Package router chooses the workers of a request, and books the load that the choice puts on them.
//
// A [Router] serves one pool. It filters the eligible workers, passes cached blocks (kv/overlap) and booked load
// (router/load) to its policy, and books the pick before the next request: a burst is spread by bookings a microsecond
// old. [ReservePair] books the two workers of a request in one step, both or neither.
//
// Policies are in policy_*.go, one a file. They are pure: the same query, candidates and seed make the same choice.
// So is all else but three files: router.go locks, set.go makes routers on demand, and log.go writes to a log.
//
// As a library: make a [Router] for each pool with [New], or a [Set]. Fill its index with the blocks that workers
// report (kv/index by hand, kv from an engine's messages); other workers are predicted. Call [Router.Reserve] or
// [ReservePair] for each request. The [Lease] has PrefillDone for the first token, Grow for generated blocks,
// Invalidate for a prompt that never arrived, and Release for the end. Waiting may help after [ErrBusy] and
// [ErrNoRoom]; not, or not soon, after [ErrNoWorkers], a [*TooBigError] or an [*OverloadedError].
// Example_routerBehindQueue in package handoff has the queue before the router.
//
// The package needs no server: it imports neither discovery, nor a message bus, nor
// HTTP, and takes the time as an argument.
package router
