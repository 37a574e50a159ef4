package handoff

import (
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
)

// Action is what to do after a leg failed.
type Action uint8

// The actions. Each but Fail is another round of the same loop; they differ in what the round keeps.
const (
	// Fail ends the request with the failure.
	Fail Action = iota
	// OtherPrefill keeps decode's booking and prefills on another worker.
	OtherPrefill
	// LocalPrefill keeps decode's booking and lets decode prefill itself.
	LocalPrefill
	// OtherDecode keeps the prefilled KV and binds it to another decode worker.
	OtherDecode
	// Again drops the KV and runs both legs again, decode elsewhere.
	Again
	// Resume runs both legs for the prompt and what was generated of the answer, which goes on.
	Resume
)

var actionNames = [...]string{
	Fail: "fail", OtherPrefill: "other_prefill", LocalPrefill: "local_prefill",
	OtherDecode: "other_decode", Again: "again", Resume: "resume",
}

// String names the action for logs and metrics.
func (a Action) String() string { return actionNames[a] }

// MaxAttempts bounds the rounds of one request, from the latest token that it had. Each round excludes the worker that failed before, so a small pool
// ends it sooner.
const MaxAttempts = 5

// MaxDeaths is how many workers may die under one request, on either leg. One is bad luck; after two the request is
// suspected of killing them and gets no third.
const MaxDeaths = 2

// Decide says what to do after failure c of a leg in round attempt (from 1) when the round has begun to answer, or not,
// another worker could go on with that, or not, and deaths rounds, this one among them, have ended with a connection that broke (fault.Reset) or a stream that
// ended too early (fault.Truncated). It is pure; the flow carries the answer out and turns OtherPrefill into
// LocalPrefill where no other prefill worker is left.
//
//   - A client that left, a stop of our own and the client's own error end the
//     request: no other worker would answer otherwise.
//   - An answer that the round has begun is resumed, or fails where it cannot be.
//   - At MaxDeaths it fails: no request may take a fleet down.
//   - A prefill worker's failure costs only the prefill.
//   - A decode worker that refused the connection, or to which the gateway could
//     not make one, has not touched the KV: it is still pinned at prefill and goes to the next decode worker. After any
//     other failure the engine may have consumed it, so both legs run again;
//     the prefill worker's prefix cache makes that cheap.
func Decide(leg pools.Role, c fault.Class, attempt, deaths int, begun, resumable bool) Action {
	switch {
	case c == fault.None, !c.Blames() && c != fault.GatewayError && c != fault.Moved, begun && !resumable, deaths >= MaxDeaths:
		return Fail
	case begun:
		return Resume
	case leg == pools.Prefill && attempt >= MaxAttempts:
		return LocalPrefill
	case leg == pools.Prefill:
		return OtherPrefill
	case attempt >= MaxAttempts:
		return Fail
	case c == fault.Refused, c == fault.GatewayError:
		return OtherDecode
	default:
		return Again
	}
}
