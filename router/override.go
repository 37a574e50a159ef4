package router

// Override is what one request wants otherwise than its pool does in the choice of its workers; nil fields leave what
// the pool has. It changes nothing of what is booked, which is for all requests. It is of mode kv, and of the legs
// that compute prompts: how workers that only decode are weighed against each other is not a client's to say,
// Temperature and AssumeReuse apart.
type Override struct {
	OverlapWeight      *float64 // of the cost "classic", ≥ 0
	OverlapCredit      *float64 // of the cost "credit", as all that follow, ≥ 0
	PrefillScale       *float64 // ≥ 0
	SharedMultiplier   *float64 // ≥ 0
	Temperature        *float64 // ≥ 0
	TrackPrefillTokens *bool    // weigh booked prefill tokens
	AssumeReuse        *bool    // false weighs the prompt's blocks as if no other request on the worker held any of them
}

// given sets dst where a request has a value of its own.
func given[T any](dst *T, own *T) {
	if own != nil {
		*dst = *own
	}
}
