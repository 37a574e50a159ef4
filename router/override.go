package router

// Override is what one request wants otherwise than its pool does; nil fields
// leave what the pool has. It is of mode kv, apart from AssumeReuse, and of the
// legs that compute prompts: what is booked on workers that only decode, and how
// they are weighed against each other, is not a client's to say, Temperature and
// AssumeReuse apart.
type Override struct {
	OverlapWeight      *float64 // of the cost "classic", ≥ 0
	OverlapCredit      *float64 // of the cost "credit", as all that follow, ≥ 0
	PrefillScale       *float64 // ≥ 0
	SharedMultiplier   *float64 // ≥ 0
	Temperature        *float64 // ≥ 0
	TrackPrefillTokens *bool    // also: book this prompt's
	// AssumeReuse false books and weighs the prompt's blocks as if nobody else on
	// the worker held any of them.
	AssumeReuse *bool
}

// given sets dst where a request says otherwise.
func given[T any](dst *T, says *T) {
	if says != nil {
		*dst = *says
	}
}

// tracks reports whether the request's prompt tokens are booked in r's pool.
func (r *Router) tracks(req *Request) bool {
	track := r.cfg.TrackPrefillTokens
	if req.Override != nil && !r.blind {
		given(&track, req.Override.TrackPrefillTokens)
	}
	return track
}

// Cost is the name of the cost that mode kv reckons by: "classic" or "credit".
func (r *Router) Cost() string { return r.cfg.Cost }
