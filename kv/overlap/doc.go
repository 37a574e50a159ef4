// Package overlap finds how much of a prompt each slot of a pool has cached. A slot
// is one data-parallel rank of a worker.
//
// An overlap comes from a [Source]. Two of them report what workers hold: the workers' own KV events, and a remote
// index. Two assume it, because prompts were sent there: predictions, for workers whose events are missing or stale,
// and recent sends, for the moment until a worker's first event. [Sources] asks them in this order and merges their
// answers.
//
// An engine that publishes events and reports cached prompt tokens in its answers reports the same thing twice.
// [Sources.Compare] compares the two; a rank that disagrees too often is predicted instead: see [ParityConfig].
package overlap
