// Package edge is the gateway's HTTP server: routes, limits, statuses and the way an answer leaves. It is built on
// Fiber v2 and fasthttp and keeps their peculiarities to itself.
//
// # A request
//
// The edge checks what needs no knowledge of workers (framing, type, size, JSON), then runs [handoff.Flow.Serve] on the
// connection's goroutine, with a context of its own. The flow writes the answer to a [handoff.Sink]. Meanwhile a loop,
// or a watcher that reads instead of fasthttp, detects a client that leaves and ends the flow's context.
//
// Event streams are sent as they are produced; other answers with a Content-Length, unless they are long.
//
// # Heartbeats
//
// A call for an event stream without an answer within the heartbeat's interval gets its head and a line of one blank,
// since load balancers cut silent connections. A failure before that has its own status, a later one is the stream's
// last event.
//
// # Request ids
//
// x-request-id is taken from the client if it has 1 to 128 visible ASCII bytes; otherwise the gateway makes one of 32
// hexadecimal digits. It is in every answer's x-request-id header, every error's body and every log line.
//
// # Keys and administration
//
// With a file of clients' keys, /v1 needs one of them; with one of operators' keys, /metrics and /workers need one of
// those, which open /v1 too. /health and /live are open. Without operators' keys every client may look, and changes
// (POST /workers/ID/cordon, uncordon, drain, move) are accepted from this machine or on the admin address. Each change
// is logged. Keys are stored as digests and appear in no log or answer.
//
// # Errors
//
// Every error has the form {"error":{"message","type","code","param","request_id"}}, including those of fasthttp's
// parser. Retry-After is in whole seconds, at least 1. A client that left counts as status 499, which is never sent.
// When the edge closes a connection after an error, it drains what the client still sends, up to twice the body limit
// and for at most five seconds, because closing a socket with unread bytes loses the answer.
package edge
