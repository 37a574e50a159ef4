package router

// Override has a request's own weights for mode kv; nil fields keep the pool's. It does not change bookings, and
// applies to legs that compute prompts. For workers that only decode, only Temperature and AssumeReuse apply.
type Override struct {
	OverlapWeight      *float64 // of the cost "classic", ≥ 0
	OverlapCredit      *float64 // of the cost "credit", as the fields below, ≥ 0
	PrefillScale       *float64 // ≥ 0
	SharedMultiplier   *float64 // ≥ 0
	Temperature        *float64 // ≥ 0
	TrackPrefillTokens *bool    // weigh booked prefill tokens
	AssumeReuse        *bool    // false: weigh the prompt's blocks as if no other request shared them
}

// given sets dst if the request has a value.
func given[T any](dst *T, own *T) {
	if own != nil {
		*dst = *own
	}
}
