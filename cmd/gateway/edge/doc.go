// Package edge is the gateway's HTTP server: routes, limits, statuses and the way an answer leaves. It is built on
// Fiber v2 and fasthttp and keeps their peculiarities to itself.
//
// # A request
//
// The edge checks what can be checked without knowing workers (framing, type, size, JSON), then runs [Flow.Serve] on
// a goroutine of its own with its own context and the body it took over from fasthttp. The flow pushes the answer
// into a [handoff.Sink]; fasthttp pulls it after the handler has returned. A bounded ring lies between the two. While
// the flow runs, a watcher reads from the client's connection in fasthttp's place, so that a client that leaves is
// noticed at once and the flow's context ends.
//
// An event stream leaves as it comes: the head with the first bytes, then one write for each batch that lies ready.
// Any other answer leaves with its Content-Length, unless it is larger than the ring.
//
// # Heartbeats
//
// A call for an event stream that has no answer after the heartbeat's interval gets its head and a line of one blank then,
// wherever it is: balancers cut what is silent. A failure before that has a status of its own, one after it is the
// stream's last event.
//
// # Request ids
//
// x-request-id is taken from the client when it has 1 to 128 visible ASCII bytes; otherwise (absent, too long,
// spaces, control bytes) the request is served all the same under an id made here: 32 hexadecimal digits. The id in
// force is in every answer's x-request-id header, in every error's body and in every log line, so that a client can
// tell that its own was not taken.
//
// # Keys and administration
//
// With a file of clients' keys, /v1 needs one of them; with one of operators' keys, /metrics and /workers need one of
// those. Neither opens what needs the other; /health and /live are open. Without operators' keys every client may
// look, and changes (POST /workers/ID/cordon, uncordon, drain, move) are taken from this machine or on the address that
// administration has for itself. Each change is a line in the log. Keys live here as digests and appear in no log or
// answer.
//
// # Errors
//
// Every error answer has the one shape {"error":{"message","type","code","param","request_id"}}, those that fasthttp
// finds while it reads a request included. Retry-After is in whole seconds, at least 1. A client that left is counted
// under status 499, which is never sent. When the edge closes a connection after an error, it drains what the client
// still sends, up to twice the body limit and for at most five seconds, because a socket closed with unread bytes
// takes the answer with it.
package edge
