package handoff

import (
	"errors"
	"net/http"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
)

// answerTo turns a leg's failure into the client's error. An engine's own text is passed on only for client errors:
// other texts may name hosts and paths of the fleet.
func answerTo(failed *fault.Error) *openai.Error {
	var answer *openai.Error
	if errors.As(failed.Err, &answer) {
		return answer
	}
	switch failed.Class {
	case fault.Rejected:
		return rejected(failed)
	case fault.TooLarge:
		e := openai.BadRequest("", "the answer is larger than the gateway relays: ask for fewer log probabilities, choices or tokens")
		e.Code = failed.Class.String()
		return e
	case fault.GatewayError:
		return openai.Unavailable("gateway_error",
			"the gateway could not connect to a worker: its own machine lacks descriptors, ports or memory, or its resolver fails")
	}
	message := messages[failed.Class]
	if errors.Is(failed.Err, fault.ErrRunaway) {
		message = "it did not stop at the requested length"
	}
	e := &openai.Error{
		Status:  failed.Class.Status(),
		Type:    "server_error",
		Code:    failed.Class.String(),
		Message: "the " + string(failed.Leg) + " worker failed: " + message,
	}
	if e.Status == http.StatusServiceUnavailable {
		e.RetryAfter = openai.UnavailableRetry
	}
	return e
}

// answerTo is answerTo for r: a request for an adapter that no worker serves gets 404.
func (r *request) answerTo(failed *fault.Error) *openai.Error {
	if failed.Class == fault.NotServed && r.Call.Request.Adapter != "" {
		return openai.NotFoundModel(r.Call.Request.Adapter)
	}
	return answerTo(failed)
}

// messages describe each class to the client.
var messages = map[fault.Class]string{
	fault.Shutdown:    "the gateway is shutting down",
	fault.Refused:     "it refused the connection",
	fault.Reset:       "the connection broke",
	fault.Timeout:     "it did not answer in time",
	fault.Stalled:     "its stream stood still",
	fault.Overloaded:  "it has no room",
	fault.NotServed:   "it has no such model",
	fault.EngineError: "it reported an error",
	fault.Garbled:     "its answer could not be understood",
	fault.Truncated:   "its stream ended early",
}

// poisoned is the answer to a request that is suspected of killing workers.
func poisoned() *openai.Error {
	e := openai.BadGateway("suspected_poison",
		"workers died while they had this request; it was tried on no other, and trying it again may cost more of them")
	e.Final = true
	return e
}

// rejected passes on an engine's 4xx and its message as an OpenAI error.
func rejected(failed *fault.Error) *openai.Error {
	answer := &openai.Error{
		Status: failed.Status, Type: "invalid_request_error", Code: "rejected_by_engine",
		Message: "the engine rejected the request",
	}
	if answer.Status == 0 {
		answer.Status = failed.Class.Status()
	}
	if detail := openai.ReadEngineError(failed.Detail); detail.Message != "" {
		answer.Message, answer.Param = detail.Message, detail.Param
		answer.NameOverflow()
	}
	return answer
}
