package settings

import "time"

// Faults is what is done when a worker fails.
type Faults struct {
	PrefillTimeout          time.Duration `setting:"prefill-timeout"`            // 0: from the prediction
	DecodeFirstTokenTimeout time.Duration `setting:"decode-first-token-timeout"` // 0: from what was observed
	StreamIdleTimeout       time.Duration `setting:"stream-idle-timeout"`        // 0: from what was observed
	DecodeFallback          bool          `setting:"decode-fallback"`
	Scenario                string        `setting:"fault-scenario"` // a file
	AllowFaults             bool          `setting:"allow-faults"`
}

// FaultsGroup is the table that fills [Faults].
func FaultsGroup() Group {
	return Group{Title: "Faults", Settings: []Setting{
		{
			Name: "prefill-timeout", Kind: Duration, Default: "0s", Min: "0s",
			Help: "How long a prefill may take before it is tried on another worker. 0 is automatic: the greater of 30s and five times " +
				"the prediction, which is the uncached tokens booked on the worker over the rate it was seen to prefill at. " +
				"Shorter leaves a stuck worker sooner; too short prefills long prompts twice.",
		},
		{
			Name: "decode-first-token-timeout", Kind: Duration, Default: "0s", Min: "0s",
			Help: "How long a decode worker may take to the first token before another one is tried. 0 is automatic: the greater of 30s and " +
				"five times the prediction, which is the prompt's tokens over the rate at which the worker was seen to take prompts over, or to compute them. " +
				"Once an event without a token has come, a role say, it counts from the latest event and is up to 5m, for reasoning that an engine hides. " +
				"An answer that is not streamed may take as long as its longest form would as well, up to 1h. " +
				"Shorter leaves a stuck worker sooner; too short does long prompts twice.",
		},
		{
			Name: "stream-idle-timeout", Kind: Duration, Default: "0s", Min: "0s",
			Help: "How long a stream that has begun may bring nothing before its worker is given up and the client gets an error event. 0 is automatic: " +
				"the greater of 10s and 20 times the 99th percentile of the gaps between events seen at that worker; with tools offered up to 5m, because " +
				"an engine may hold a call back until it is whole. An engine's comments do not count, " +
				"nor does the time in which a slow client takes nothing. Shorter tells clients of a stuck worker sooner; too short cuts answers that would have gone on.",
		},
		{
			Name: "decode-fallback", Kind: Bool, Default: "true",
			Help: "Off: when no prefill worker is left, answer 503. On, a decode worker with room does the prefill itself: " +
				"the request is answered, and the streams beside it stutter meanwhile.",
		},
		{
			Name: "fault-scenario", Kind: String, Default: "",
			Help: "YAML file of faults to inject into calls to workers, to see what clients would see: seed, and rules of fault, probability, leg, worker. " +
				"Which calls are hit depends on the seed and the request, not on the clock. Refused unless allow-faults is on.",
		},
		{
			Name: "allow-faults", Kind: Bool, Default: "false",
			Help: "On: a fault-scenario may be used. It is a switch of its own so that no file alone can break a fleet.",
		},
	}}
}
