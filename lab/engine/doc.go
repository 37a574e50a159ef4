// Package engine is the simulated inference engine: a real scheduler and a real
// paged KV cache whose only lie is the arithmetic. Where a GPU would compute a
// token, the engine waits for as long as a GPU would have taken (see Latency)
// and then draws the token from a hash of all tokens before it (see State).
//
// Core is the engine proper: no goroutine, no I/O, no clock. Step(now) ends the
// step in progress and forms the next batch, so the same core runs in real time
// behind HTTP and in virtual time under a simulator. It schedules as vLLM does:
// running sequences first, then waiting ones in order of arrival, under one
// token budget, with chunked prefill, prefix reuse, leaf-first LRU eviction and
// preemption by recomputation.
//
// Server is its shell: vLLM's HTTP faces, the side channel over which a decode
// engine pulls the blocks of a prefill engine (NIXL's pull protocol), metrics
// under vLLM's names and the books that tests look into.
//
// Where the simulation is kinder than vLLM, a comment in the code says so.
package engine
