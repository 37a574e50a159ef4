package replay

// Shared returns for each request of the workload how many tokens its prompt has in common with a request that is due
// no later: all that a cache that was empty at the start can hold of it. Sessions count in the workload's order.
func (w *Workload) Shared() []int {
	type place struct {
		before uint64 // names the spans that the prompt begins with
		id     uint64
	}
	type span struct {
		place
		tokens int
	}
	longest := map[place]int{} // tokens of the span that were seen there
	named := map[span]uint64{} // what is before the next one
	var last uint64
	shared := make([]int, len(w.Requests))
	for _, c := range w.chains() {
		for _, r := range c {
			before, apart := uint64(0), false
			for _, s := range r.Spans {
				if s.ID&ownSpans != 0 {
					break // no other request has it, nor what follows
				}
				at := span{place{before, s.ID}, s.Tokens}
				if !apart {
					shared[r.Index] += min(s.Tokens, longest[at.place])
				}
				longest[at.place] = max(longest[at.place], s.Tokens)
				next, seen := named[at]
				if !seen {
					last++
					named[at], next, apart = last, last, true
				}
				before = next
			}
		}
	}
	return shared
}

// warmSlack is the share of the prompts' tokens that may be cached beyond what a cache can hold that was empty:
// requests that overtake others, tokens that an engine puts before every prompt.
const warmSlack = 0.05

// Warm returns how many of the run's prompt tokens were cached, and how many of them the workload itself can explain.
// It is warm if the former is clearly more: the cache held prompts from before the run. Shared is by the samples'
// Index.
func Warm(samples []Sample, shared []int) (cached, own, prompts int64, warm bool) {
	for i := range samples {
		s := &samples[i]
		if s.Outcome != Answered || s.PromptTokens <= 0 || s.CachedTokens < 0 || s.Index >= len(shared) {
			continue
		}
		cached += int64(s.CachedTokens)
		own += int64(shared[s.Index])
		prompts += int64(s.PromptTokens)
	}
	return cached, own, prompts, float64(cached-own) > warmSlack*float64(prompts)
}
