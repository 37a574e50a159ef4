package replay

import (
	"cmp"
	"slices"
	"time"
)

// Workload is what to send, and when.
type Workload struct {
	// Name is its source, for the report.
	Name     string
	Requests []Request
}

// Request is one request of a workload.
type Request struct {
	// Index is its place in the workload, from 0.
	Index int
	// At is when to send it, counted from the start. Later requests of a session go by Delay instead.
	At time.Duration
	// Session groups requests that are sent one after another, empty for a request that stands alone.
	Session string
	// Delay is how long after the end of the session's request before.
	Delay time.Duration
	// Spans are the prompt.
	Spans []Span
	// OutputTokens is how many tokens to request.
	OutputTokens int
}

// Span is a run of a prompt's tokens. Spans with the same ID begin with the same tokens.
type Span struct {
	ID     uint64
	Tokens int
}

// ownSpans is set in the ids of spans that no other request has.
const ownSpans = 1 << 63

// InputTokens returns the prompt's length.
func (r *Request) InputTokens() int {
	n := 0
	for _, s := range r.Spans {
		n += s.Tokens
	}
	return n
}

// Limit returns the workload of the first n requests, all of them where n is 0.
func (w *Workload) Limit(n int) *Workload {
	if n <= 0 || n >= len(w.Requests) {
		return w
	}
	return &Workload{Name: w.Name, Requests: w.Requests[:n]}
}

// Span returns when the last request is due that has a time of its own.
func (w *Workload) Span() time.Duration {
	var last time.Duration
	for i := range w.Requests {
		last = max(last, w.Requests[i].At)
	}
	return last
}

// chain is requests sent one after another: a session, or one request alone.
type chain []*Request

// chains returns the workload in the order of the chains' beginnings; those
// that begin at the same time stay as they were.
func (w *Workload) chains() []chain {
	var all []chain
	sessions := map[string]int{}
	for i := range w.Requests {
		r := &w.Requests[i]
		if r.Session != "" {
			if at, ok := sessions[r.Session]; ok {
				all[at] = append(all[at], r)
				continue
			}
			sessions[r.Session] = len(all)
		}
		all = append(all, chain{r})
	}
	slices.SortStableFunc(all, func(a, b chain) int { return cmp.Compare(a[0].At, b[0].At) })
	return all
}
