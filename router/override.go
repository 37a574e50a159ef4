package router

// Override is what one request wants otherwise than its pool does in the choice of
// its workers; nil fields leave what the pool has. It changes nothing of what is
// booked, which is for all requests. It is of mode kv, and of the legs that compute
// prompts: how workers that only decode are weighed against each other is not a
// client's to say, Temperature and AssumeReuse apart.
type Override struct {
	OverlapWeight      *float64 // of the cost "classic", ≥ 0
	OverlapCredit      *float64 // of the cost "credit", as all that follow, ≥ 0
	PrefillScale       *float64 // ≥ 0
	SharedMultiplier   *float64 // ≥ 0
	Temperature        *float64 // ≥ 0
	TrackPrefillTokens *bool    // weigh booked prefill tokens
	// AssumeReuse false weighs the prompt's blocks as if nobody else on the worker
	// held any of them.
	AssumeReuse *bool
}

// given sets dst where a request says otherwise.
func given[T any](dst *T, says *T) {
	if says != nil {
		*dst = *says
	}
}

// Cost is the name of the cost that mode kv reckons by: "classic" or "credit".
func (r *Router) Cost() string { return r.cfg.Cost }
