package replay

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Distribution summarises a set of times.
type Distribution struct {
	Count int    `json:"count"`
	Mean  Millis `json:"mean_ms"`
	P50   Millis `json:"p50_ms"`
	P90   Millis `json:"p90_ms"`
	P99   Millis `json:"p99_ms"`
	Max   Millis `json:"max_ms"`
}

// The fewest values with one beyond a percentile.
const (
	LeastForP90 = 10
	LeastForP99 = 100
)

// distribution sorts times and describes them. None give the zero value.
func distribution(times []Millis) Distribution {
	if len(times) == 0 {
		return Distribution{}
	}
	slices.Sort(times)
	sum := 0.0
	for _, t := range times {
		sum += float64(t)
	}
	return Distribution{
		Count: len(times), Mean: Millis(math.Round(sum / float64(len(times)))),
		P50: Quantile(times, .50), P90: Quantile(times, .90), P99: Quantile(times, .99), Max: times[len(times)-1],
	}
}

// Summary is a run in numbers. Latencies are those of answered requests.
type Summary struct {
	// Requests is how many were due; all but NotSent and Cancelled were seen through, well or not.
	Requests int `json:"requests"`
	Answered int `json:"answered"`
	// Refused is how many the endpoint would not serve; see [Sample.Refused].
	Refused int `json:"refused"`
	// Failures counts the others by class.
	Failures map[string]int `json:"failures"`
	// Short is how many answers have fewer tokens than requested.
	Short int `json:"short"`
	// Wall is from the start of the run to the end of the last answer.
	Wall Millis `json:"wall_ms"`

	TTFT Distribution `json:"ttft"`
	// Queue and Prefill are parts of TTFT, over the answers that report them.
	Queue   Distribution `json:"queue"`
	Prefill Distribution `json:"prefill"`
	// ITL is over requests, each with its mean; Gap over all gaps between chunks of all requests.
	ITL Distribution `json:"itl"`
	Gap Distribution `json:"gap"`
	E2E Distribution `json:"e2e"`
	// Late is the generator's own lateness, over all requests it sent.
	Late Distribution `json:"late"`

	RequestsPerSecond     float64 `json:"requests_per_second"`
	OutputTokensPerSecond float64 `json:"output_tokens_per_second"`
	OutputTokens          int64   `json:"output_tokens"`
	// PromptTokens and CachedTokens are sums over the answers that have both;
	// HitRate is their ratio, absent where none does.
	PromptTokens int64    `json:"prompt_tokens"`
	CachedTokens int64    `json:"cached_tokens"`
	HitRate      *float64 `json:"hit_rate,omitempty"`
	// InFlight is the most requests that were in flight at once.
	InFlight int `json:"max_in_flight"`
	// Workers are those that served, by role and id.
	Workers []WorkerCount `json:"workers,omitempty"`
}

// WorkerCount is a worker's part in a run.
type WorkerCount struct {
	Role     string `json:"role"` // prefill or decode
	ID       string `json:"id"`
	Requests int    `json:"requests"`
	// Tokens are those the worker computed: of prompts and not cached for a
	// prefill worker, of answers for a decode worker.
	Tokens int64 `json:"tokens"`
}

// Failed returns how many requests were not answered, for any reason.
func (s *Summary) Failed() int { return s.Requests - s.Answered }

// Summarize computes the summary of a run.
func Summarize(samples []Sample) Summary {
	s := Summary{Requests: len(samples), Failures: map[string]int{}}
	var ttft, queued, prefill, itl, gap, e2e, late []Millis
	workers := map[[2]string]*WorkerCount{}
	count := func(role, id string, tokens int) {
		if id == "" {
			return
		}
		w := workers[[2]string{role, id}]
		if w == nil {
			w = &WorkerCount{Role: role, ID: id}
			workers[[2]string{role, id}] = w
		}
		w.Requests++
		w.Tokens += int64(tokens)
	}
	for i := range samples {
		p := &samples[i]
		if p.Outcome != NotSent {
			late = append(late, p.Late)
			s.Wall = max(s.Wall, p.Scheduled+p.E2E)
		}
		s.OutputTokens += int64(p.OutputTokens)
		if p.Outcome != Answered {
			s.Failures[p.Outcome]++
			if p.Refused() {
				s.Refused++
			}
			continue
		}
		s.Answered++
		if p.OutputTokens < p.AskedTokens {
			s.Short++
		}
		e2e = append(e2e, p.E2E)
		if p.TTFT > 0 {
			ttft = append(ttft, p.TTFT)
		}
		if p.Queue+p.Prefill > 0 {
			queued, prefill = append(queued, p.Queue), append(prefill, p.Prefill)
		}
		if p.TTFT > 0 && p.OutputTokens > 1 {
			itl = append(itl, p.ITL)
		}
		gap = append(gap, p.Gaps...)
		if p.PromptTokens > 0 && p.CachedTokens >= 0 {
			s.PromptTokens += int64(p.PromptTokens)
			s.CachedTokens += int64(p.CachedTokens)
		}
		count("prefill", p.PrefillWorker, max(0, p.PromptTokens-max(0, p.CachedTokens)))
		count("decode", p.DecodeWorker, p.OutputTokens)
	}
	s.Queue, s.Prefill = distribution(queued), distribution(prefill)
	s.TTFT, s.ITL, s.Gap, s.E2E, s.Late = distribution(ttft), distribution(itl), distribution(gap), distribution(e2e), distribution(late)
	if seconds := time.Duration(s.Wall).Seconds(); seconds > 0 {
		s.RequestsPerSecond = float64(s.Answered) / seconds
		s.OutputTokensPerSecond = float64(s.OutputTokens) / seconds
	}
	if s.PromptTokens > 0 {
		rate := float64(s.CachedTokens) / float64(s.PromptTokens)
		s.HitRate = &rate
	}
	s.InFlight = mostInFlight(samples)
	for _, w := range workers {
		s.Workers = append(s.Workers, *w)
	}
	slices.SortFunc(s.Workers, func(a, b WorkerCount) int {
		return cmp.Or(-cmp.Compare(a.Role, b.Role), len(a.ID)-len(b.ID), cmp.Compare(a.ID, b.ID))
	})
	return s
}

// flight is a change of how many requests are in flight.
type flight struct {
	at    Millis
	delta int
}

// flights returns the changes in order; at one moment, ends are first.
func flights(samples []Sample) []flight {
	var all []flight
	for i := range samples {
		if p := &samples[i]; p.Outcome != NotSent {
			all = append(all, flight{p.Scheduled + p.Late, 1}, flight{p.Scheduled + p.E2E, -1})
		}
	}
	slices.SortFunc(all, func(a, b flight) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.delta, b.delta))
	})
	return all
}

func mostInFlight(samples []Sample) int {
	now, most := 0, 0
	for _, f := range flights(samples) {
		now += f.delta
		most = max(most, now)
	}
	return most
}
