// Package engine is the simulated inference engine: a real scheduler and a real paged KV cache without the arithmetic.
// Where a GPU would compute a token, the engine waits for as long (see Latency) and then draws the token from a hash of
// all tokens before it (see State).
//
// Core is the engine proper: no goroutine, no I/O, no clock. Step(now) ends the step in progress and forms the next
// batch, so the same core runs in real time behind HTTP and in virtual time under a simulator. It schedules as vLLM
// does: running sequences first, then waiting ones in order of arrival, under one token budget. It has chunked
// prefill, prefix reuse, leaf-first LRU eviction and preemption by recomputation.
//
// A finished prefill's blocks reach a decode engine in two ways. Pulled by name: decode follows prefill and names the
// blocks of prefill's answer (NIXL). By rendezvous: both get an id, and the first one waits (Hold, Core.Meet).
//
// Server is its shell: an engine's HTTP, the side channel over which a decode engine reaches a prefill engine, metrics,
// and the books for tests. The differences between the imitated engines are dialects, one file each.
//
// Where the simulation is more lenient than vLLM, a comment in the code notes it.
package engine
