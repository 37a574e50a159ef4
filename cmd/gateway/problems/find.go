package problems

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
)

const (
	// rolloutShare is the share of the speed before a restart below which the workers are slower.
	rolloutShare = .7
	// flaps is how often a worker returns within [flapWindow] before it is flapping.
	flaps = 3
	// fullShare is the booked share of all KV blocks at which they are full.
	fullShare = .9
	// stepTokens is about how many booked prompt tokens fill a prefill worker.
	stepTokens = 8192
	// longWait is how long a request waits before its pool is a limit, slowTTFT a first token that is slow.
	longWait, slowTTFT = 5 * time.Second, 5 * time.Second
	// classShare is the share of what is refused or waits at which one class causes the overload.
	classShare = .8
	// failShare is the share of failed requests that is a problem, of at least leastEnded.
	failShare, leastEnded = .05, 20
	// day is the time before a certificate's end in which it is critical; certificateTime before, it is a problem.
	day, certificateTime = 24 * time.Hour, 7 * day
	// mostNamed bounds what a sentence names.
	mostNamed = 3
)

// Find lists the problems of a moment, causes first, the most urgent first. It leaves Since zero: see [Tracker].
func Find(f *Facts) []Problem {
	l := list{}
	l.gateway(f)
	for i := range f.Pools {
		l.pool(f, &f.Pools[i])
	}
	for i := range f.Models {
		l.model(f, &f.Models[i])
	}
	return l.ordered()
}

// gateway lists what is wrong with the gateway itself.
func (l *list) gateway(f *Facts) {
	l.when(f.NATS != "", NATSLost, "", "NATS cannot be reached: "+f.NATS)
	l.when(f.Etcd != "", EtcdLost, "", "etcd cannot be reached, so that workers neither join nor leave: "+f.Etcd)
	l.when(f.Pods != "", PodsUnwatched, "", "the API server shows no pods: "+f.Pods)
	l.when(len(f.Pools) == 0, NoWorkers, "", "no worker has joined")
	l.when(len(f.Indexes) > 0, IndexLost, "", "remote indexes fail: "+enumerate(f.Indexes))
	var missing []string
	for _, p := range f.Peers {
		if p.State != "whole" {
			missing = append(missing, fmt.Sprintf("%s is %s for %s", p.Name, p.State, Brief(p.Age)))
		}
	}
	l.when(len(missing) > 0 || f.CutOff, PeerMissing, "",
		"bookings of other gateways are not known: "+cmp.Or(enumerate(missing), "none arrive"))
	var ending []string
	first := certificateTime
	for _, use := range slices.Sorted(maps.Keys(f.Certificates)) {
		left := f.Certificates[use].Sub(f.Now)
		switch first = min(first, left); {
		case left <= 0:
			ending = append(ending, "the certificate for "+use+" has ended")
		case left < certificateTime:
			ending = append(ending, "the certificate for "+use+" ends in "+Brief(left))
		}
	}
	if len(ending) > 0 {
		l.add(CertificateEnds, "", "", enumerate(ending)).criticalIf(first < day)
	}
	if n := len(f.Refused); n > 0 {
		ids := make([]string, n)
		for i, r := range f.Refused {
			ids[i] = r.Worker.ID
		}
		l.add(WorkerRefused, "", "", fmt.Sprintf("%d workers cannot be used; %s: %v", n, ids[0], f.Refused[0].Err), ids...)
	}
	untried := f.RetriesRefused - f.before.RetriesRefused
	l.when(untried > 0, RetriesRefused, "", fmt.Sprintf("%d failed requests were not tried again: too many fail", untried))
}

// checks are what may be wrong with some workers of a pool, causes first.
var checks = []struct {
	kind Kind
	is   func(p *Pool, w *Worker) bool
	text string                          // "2 of 4 decode workers ..."
	more func(p *Pool, w *Worker) string // of the first of them
}{
	{RolloutSlow, func(p *Pool, w *Worker) bool { return p.rollout > 0 && w.young && p.speed(w) > 0 },
		"have restarted and are slower than before",
		func(p *Pool, _ *Worker) string { return fmt.Sprintf("at %.0f %% of the speed", 100*p.rollout) }},
	{WorkerFlapping, func(_ *Pool, w *Worker) bool { return w.returns >= flaps }, "come and go",
		func(_ *Pool, w *Worker) string { return fmt.Sprintf("back %d times in 10 min", w.returns) }},
	{WorkerLost, func(_ *Pool, w *Worker) bool { return w.State == "lost" || w.State == "down" || w.State == "probation" },
		"do not respond", nil},
	{CircuitOpen, func(_ *Pool, w *Worker) bool {
		return w.State == "up" && (!w.serves() || w.Outlier == fault.FailingCalls)
	}, "fail calls", func(_ *Pool, w *Worker) string { return w.Failure }},
	{WorkerSlow, func(_ *Pool, w *Worker) bool { return w.Outlier == fault.SlowPrefill || w.Outlier == fault.SlowDecode },
		"are slower than the others at the same load", func(_ *Pool, w *Worker) string {
			slow := w.PrefillSpeed
			if w.Outlier == fault.SlowDecode {
				slow = w.DecodeSpeed
			}
			return fmt.Sprintf("at %.0f %% of their speed", 100*slow)
		}},
	{WorkerDisagrees, func(p *Pool, w *Worker) bool { return w.Context > 0 && w.Context != p.context },
		"have another context than most", func(p *Pool, w *Worker) string {
			return fmt.Sprintf("%d tokens instead of %d; the shortest bounds all requests", w.Context, p.context)
		}},
	{KVEventsLost, func(_ *Pool, w *Worker) bool { return w.Events != "" }, "have caches that are not followed",
		func(_ *Pool, w *Worker) string { return w.Events }},
}

// pool lists what is wrong with a pool's workers. Each worker is named by its first problem only.
func (l *list) pool(f *Facts, p *Pool) {
	all := len(p.Workers)
	if p.serving() == 0 {
		decode, both := f.serves(p.Model, pools.Decode), f.serves(p.Model, pools.Both)
		instead := both || p.Role == pools.Both && decode
		if all == 0 && instead {
			return // it is not in use
		}
		var ids, states []string
		for i := range p.Workers {
			w := &p.Workers[i]
			ids, states = append(ids, w.ID), append(states, w.ID+" is "+strings.Replace(w.State, "up", "failing", 1))
		}
		reason := fmt.Sprintf("no %s serves: %s", p.worker(), cmp.Or(enumerate(states), "all have left"))
		if p.Role == pools.Prefill && f.Fallback && decode {
			instead = true
			reason += "; decode workers compute prompts meanwhile"
		}
		l.add(PoolDead, p.Model, p.Role, reason, ids...).criticalIf(!instead)
		return
	}
	p.compare()
	named := map[string]bool{}
	for _, c := range checks {
		var ids []string
		var more string
		for i := range p.Workers {
			w := &p.Workers[i]
			if named[w.ID] || !c.is(p, w) {
				continue
			}
			if named[w.ID] = true; len(ids) == 0 && c.more != nil {
				more = c.more(p, w)
			}
			ids = append(ids, w.ID)
		}
		if len(ids) == 0 {
			continue
		}
		reason := fmt.Sprintf("%d of %d %ss %s: %s", len(ids), all, p.worker(), c.text, enumerate(ids))
		if more != "" {
			reason += ", " + more
		}
		l.add(c.kind, p.Model, p.Role, reason, ids...).part = float64(len(ids)) / float64(all)
	}
	if have := all - p.count(func(w *Worker) bool { return w.State == "draining" }); p.Desired > have {
		l.add(TooFewWorkers, p.Model, p.Role, fmt.Sprintf("the load needs %d %ss, and there are %d", p.Desired, p.worker(), have))
	}
}

// compare sets the context that most workers have, of two the longer one. If half of the workers are young and slower
// than usual, it sets their share of the usual speed.
func (p *Pool) compare() {
	var speeds []float64
	count := map[int]int{}
	p.context, p.rollout = 0, 0
	for i := range p.Workers {
		w := &p.Workers[i]
		if c := w.Context; c > 0 {
			count[c]++
		}
		if w.young && p.speed(w) > 0 {
			speeds = append(speeds, p.speed(w))
		}
	}
	for c, n := range count {
		if n > count[p.context] || n == count[p.context] && c > p.context {
			p.context = c
		}
	}
	if now := median(speeds); len(speeds) > 0 && 2*len(speeds) >= p.serving() && now <= rolloutShare*p.usual {
		p.rollout = now / p.usual
	}
}

// speed returns a worker's speed in tokens a second, 0 unknown: of prompts in a prefill pool, else of one stream.
func (p *Pool) speed(w *Worker) float64 {
	switch {
	case p.Role == pools.Prefill:
		return w.PrefillRate
	case w.ITL > 0:
		return 1 / w.ITL
	}
	return 0
}

// count returns how many of the workers have a property.
func (p *Pool) count(is func(w *Worker) bool) (n int) {
	for i := range p.Workers {
		if is(&p.Workers[i]) {
			n++
		}
	}
	return n
}

func (p *Pool) serving() int { return p.count((*Worker).serves) }

// model lists what is wrong with a model's requests.
func (l *list) model(f *Facts, m *Model) {
	q := f.queue(m.Name)
	queued, refused := fmt.Sprintf("%d requests wait", q.Waiting), q.RefusedTotal > 0
	if refused {
		queued += fmt.Sprintf(", %.0f %% are refused", 100*float64(q.RefusedTotal)/float64(q.RefusedTotal+q.GrantedTotal))
	}
	if refused || q.Oldest >= longWait {
		if class, part := greedy(q.Classes); class != "" {
			l.add(ClassOverload, m.Name, "", fmt.Sprintf("the policy class %s makes up %.0f %% of what waits or is refused: %s",
				class, 100*part, queued)).criticalIf(refused)
		}
		if p, kind, reason := f.limit(m.Name); p != nil {
			reason += ", " + queued
			if n := p.Desired - p.serving(); n > 0 && kind == PoolLimit {
				reason += fmt.Sprintf("; %d more workers would do", n)
			}
			l.add(kind, m.Name, p.Role, reason).criticalIf(refused)
		}
	}
	enough := m.Ended >= leastEnded
	l.when(enough && float64(m.Failed) > failShare*float64(m.Ended), RequestsFail, m.Name,
		fmt.Sprintf("%d of the last %d requests failed or were refused", m.Failed, m.Ended))
	l.when(enough && m.TTFT > slowTTFT, FirstTokenSlow, m.Name,
		fmt.Sprintf("one in a hundred requests waits over %s for its first token", Brief(m.TTFT)))
	other := m.Trust.Disagreeing
	l.when(len(other) > 0, WorkerDisagrees, m.Name, enumerate(other)+" made other tokens of a chat than the chat template has", other...)
	l.when(m.Trust.Distrusted, TokenizerDistrusted, m.Name,
		"the gateway's tokenizer or chat template disagrees with the workers': it is not used")
	l.when(m.ShutPairs > 0, PairsShut, m.Name, fmt.Sprintf("%d pairs of workers hand over no prompts: too slow, or failing", m.ShutPairs))
}

// greedy returns the class that makes up nearly all of what is refused or, if nothing is, of what waits.
func greedy(classes []queue.ClassStats) (class string, part float64) {
	var refused, waiting float64
	for i := range classes {
		refused, waiting = refused+float64(classes[i].RefusedTotal), waiting+float64(classes[i].Waiting)
	}
	for i := range classes {
		c := &classes[i]
		if part = float64(c.Waiting) / max(1, waiting); refused > 0 {
			part = float64(c.RefusedTotal) / refused
		}
		if part >= classShare && len(classes) > 1 {
			return c.Name, part
		}
	}
	return "", 0
}

// limit returns the fullest pool of a model, and of what it is full.
func (f *Facts) limit(model string) (fullest *Pool, kind Kind, reason string) {
	most := -1.
	for i := range f.Pools {
		if p := &f.Pools[i]; p.Model == model && p.serving() > 0 {
			if full, of, text := p.full(); full > most {
				fullest, kind, reason, most = p, of, text, full
			}
		}
	}
	return fullest, kind, reason
}

// full returns how full the pool is, 1 for as much as it can run, and of what.
func (p *Pool) full() (full float64, kind Kind, reason string) {
	var tokens, requests, slots, blocks, total int
	for i := range p.Workers {
		if w := &p.Workers[i]; w.serves() {
			tokens, requests, slots = tokens+w.PrefillTokens, requests+w.Requests, slots+w.MaxNumSeqs*w.Ranks
			blocks, total = blocks+w.ActiveBlocks, total+w.TotalBlocks*w.Ranks
		}
	}
	serve, kv := p.serving(), share(blocks, total)
	booked := fmt.Sprint(requests, " requests")
	switch full = share(requests, slots); {
	case p.Role == pools.Prefill:
		full, booked = share(tokens, serve*stepTokens), fmt.Sprint(tokens, " tokens")
		if tokens >= 10_000 {
			booked = fmt.Sprintf("%dk tokens", tokens/1000)
		}
	case kv >= fullShare || kv > full:
		full, booked = kv, fmt.Sprintf("%.0f %% of the KV blocks", 100*kv)
	}
	reason = fmt.Sprintf("%s booked on %d of %d workers", booked, serve, len(p.Workers))
	if p.Role != pools.Prefill && kv >= fullShare {
		kind = KVFull
	} else {
		kind, reason = PoolLimit, strings.Replace(string(p.Role), "both", "the pool", 1)+" is the bottleneck: "+reason
	}
	if p.Desired > serve {
		full = max(full, share(p.Desired, serve))
	}
	return full, kind, reason
}

// share returns a part of all, 0 if all is unknown.
func share(part, all int) float64 {
	if all == 0 {
		return 0
	}
	return float64(part) / float64(all)
}

// median returns 0 of nothing.
func median(of []float64) float64 {
	if len(of) == 0 {
		return 0
	}
	slices.Sort(of)
	return (of[(len(of)-1)/2] + of[len(of)/2]) / 2
}

func enumerate(all []string) string {
	if more := len(all) - mostNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:mostNamed], ", "), more)
	}
	return strings.Join(all, ", ")
}

// Brief formats a duration in one unit: s, min, h or days.
func Brief(d time.Duration) string {
	switch {
	case d >= 2*day:
		return fmt.Sprintf("%d days", d/day)
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	case d >= 2*time.Minute:
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return fmt.Sprintf("%d s", d/time.Second)
}
