package handoff

import (
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
)

// Action is what to do after a leg failed.
type Action uint8

// The actions. Each but Fail starts another round; they differ in what it keeps.
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
	// Resume runs both legs for the prompt and the generated part of the answer.
	Resume
)

var actionNames = [...]string{
	Fail: "fail", OtherPrefill: "other_prefill", LocalPrefill: "local_prefill",
	OtherDecode: "other_decode", Again: "again", Resume: "resume",
}

// String names the action for logs and metrics.
func (a Action) String() string { return actionNames[a] }

// MaxAttempts bounds the rounds of one request since its latest token. Each round excludes the worker that failed, so
// a small pool ends it sooner.
const MaxAttempts = 5

// MaxDeaths is how many workers may die under one request, on either leg. After two the request is suspected of
// killing them and is not tried again.
const MaxDeaths = 2

// Decide returns what follows failure c of a leg in a round (from 1). hasToken reports whether the round had its first
// token, resumable whether another worker could resume it, and deaths how many rounds ended with fault.Reset or
// fault.Truncated. It is pure; placement has decode prefill where OtherPrefill finds no other prefill worker.
//
//   - A departed client, a shutdown and the client's own error end the request.
//   - An answer with a token is resumed, or fails where it cannot be.
//   - At MaxDeaths it fails: no request may take a fleet down.
//   - A prefill worker's failure costs only the prefill.
//   - A decode worker that refused the connection, or that the gateway could not
//     connect to, has not touched the KV: it stays pinned at prefill for the next decode
//     worker. After any other failure the engine may have consumed it, so both legs run
//     again; the prefill worker's prefix cache makes that cheap.
func Decide(leg pools.Role, c fault.Class, round, deaths int, hasToken, resumable bool) Action {
	switch {
	case c == fault.None, !c.Blames() && c != fault.GatewayError && c != fault.Moved, hasToken && !resumable,
		deaths >= MaxDeaths:
		return Fail
	case hasToken:
		return Resume
	case leg == pools.Prefill && round >= MaxAttempts:
		return LocalPrefill
	case leg == pools.Prefill:
		return OtherPrefill
	case round >= MaxAttempts:
		return Fail
	case c == fault.Refused, c == fault.GatewayError:
		return OtherDecode
	default:
		return Again
	}
}
