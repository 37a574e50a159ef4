// Package router chooses the workers of a request, and books the load that the choice puts on them.
//
// A [Router] serves one pool. It filters the pool's workers for those that may be chosen, gives its [Policy] what of
// the prompt each has cached (from kv/overlap) and what is booked on it (from router/load), and books what the
// policy picked before another request can pick: a burst of requests is spread by what was booked a microsecond ago.
// A request that runs on two workers gets them in one step from [ReservePair], both or neither.
//
// Policies are in policy_*.go, one a file. They are pure: the same query, candidates and seed make the same choice.
// So is all else but three files: router.go locks, set.go makes routers on demand, and log.go writes to a log.
//
// To use it as a library, make a [Router] for each pool with [New], or a [Set] of them. Fill its index with what
// workers report that they hold (kv/index by hand, kv from an engine's messages); without an
// index, or for workers that report nothing, it predicts. Call [Router.Reserve] or [ReservePair] for each request,
// and keep the [Lease]: PrefillDone at the first token, Grow as output fills blocks, Invalidate where the prompt
// never got there, Release at the end. [ErrBusy] and [ErrNoRoom] say that waiting may help; [ErrNoWorkers], a
// [*TooBigError] and an [*OverloadedError] that it will not, or not soon. The examples show both calls; the one of
// package handoff, Example_routerBehindQueue, has the queue before the router.
//
// The package needs no server: it imports neither discovery, nor a message bus, nor
// HTTP, and takes the time as an argument.
package router
