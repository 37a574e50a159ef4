package problems

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// rolloutShare is the share of the speed before a restart below which the workers are slower.
	rolloutShare = .7
	// flaps is how often a worker returns within [flapWindow] before it is flapping.
	flaps = 3
	// fullShare is the booked share of all KV blocks at which they are full.
	fullShare = .9
	// longWait is how long a request waits before its pool is a limit, slowTTFT a first token that is slow.
	longWait, slowTTFT = 5 * time.Second, 5 * time.Second
	// classShare is the share of what is refused or waits at which one class causes the overload.
	classShare = .8
	// failShare is the share of failed requests that is a problem, of at least leastEnded.
	failShare, leastEnded = .05, 20
	// certificateDays is how many days before its end a certificate is a problem; on the last it is critical.
	certificateDays = 7
)

// Find lists the problems of a moment, causes first, the most urgent first. It leaves Since zero: see [Tracker].
func Find(f *Facts) []Problem {
	var l list
	if f.NATS != "" {
		l.add(NATSLost, "", "", "NATS cannot be reached: "+f.NATS)
	}
	if f.Etcd != "" {
		l.add(EtcdLost, "", "", "etcd cannot be reached, so that workers neither join nor leave: "+f.Etcd)
	}
	if f.Pods != "" {
		l.add(PodsUnwatched, "", "", "the API server shows no pods: "+f.Pods)
	}
	if len(f.Pools) == 0 {
		l.add(NoWorkers, "", "", "no worker has joined")
	}
	for i := range f.Pools {
		l.pool(f, &f.Pools[i])
	}
	for i := range f.Models {
		l.model(f, &f.Models[i])
	}
	l.gateway(f)
	return l.ordered()
}

// pool lists what is wrong with a pool's workers. Each worker is named by its first problem only.
func (l *list) pool(f *Facts, p *Pool) {
	named := map[string]bool{}
	// which returns the workers with that property that no problem has named yet.
	which := func(is func(w *Worker) bool) (found []*Worker) {
		for i := range p.Workers {
			if w := &p.Workers[i]; !named[w.ID] && is(w) {
				found = append(found, w)
			}
		}
		return found
	}
	add := func(k Kind, found []*Worker, reason string) *Problem {
		ids := make([]string, len(found))
		for i, w := range found {
			ids[i], named[w.ID] = w.ID, true
		}
		q := l.add(k, p.Model, p.Role, reason, ids...)
		q.part = float64(len(found)) / float64(len(p.Workers))
		return q
	}
	all := len(p.Workers)
	if p.serving() == 0 {
		decode, both := f.serves(p.Model, "decode"), f.serves(p.Model, "both")
		if all == 0 && (both || p.Role == "both" && decode) {
			return // it is not in use
		}
		dead := which(func(*Worker) bool { return true })
		q := add(PoolDead, dead, fmt.Sprintf("no %s worker serves: %s", p.Role, p.states(names(dead))))
		switch q.part = 0; {
		case p.Role == "prefill" && f.Fallback && decode:
			q.Severity = Warning
			q.Reason += "; decode workers compute prompts meanwhile"
		case both, p.Role == "both" && decode:
			q.Severity = Warning
		}
		return
	}
	if fresh, before, now := p.rolledOut(); len(fresh) > 0 {
		add(RolloutSlow, fresh, fmt.Sprintf("%d of %d %s workers have restarted and run at %.0f %% of the speed before: %s instead of %s tokens/s",
			len(fresh), all, p.Role, 100*now/before, figure(now), figure(before)))
	}
	if w := which(func(w *Worker) bool { return w.returns >= flaps }); len(w) > 0 {
		add(WorkerFlapping, w, fmt.Sprintf("%s %s back %d times in %s", names(w), verb(w, "came"), w[0].returns, Brief(flapWindow)))
	}
	if w := which((*Worker).gone); len(w) > 0 {
		add(WorkerLost, w, fmt.Sprintf("%d of %d %s workers do not respond: %s", len(w), all, p.Role, names(w)))
	}
	if w := which(func(w *Worker) bool { return w.State == "up" && (!w.serves() || w.Fails) }); len(w) > 0 {
		reason := fmt.Sprintf("calls to %d of %d %s workers fail: %s", len(w), all, p.Role, names(w))
		if w[0].Failure != "" {
			reason += ", the latest with " + w[0].Failure
		}
		add(CircuitOpen, w, reason)
	}
	if w := which(func(w *Worker) bool { return w.Slow > 0 }); len(w) > 0 {
		add(WorkerSlow, w, fmt.Sprintf("%d of %d %s workers are slower than the others at the same load: %s, at %.0f %% of their speed",
			len(w), all, p.Role, names(w), 100*w[0].Slow))
	}
	context := p.context()
	if w := which(func(w *Worker) bool { return w.Context > 0 && w.Context != context }); len(w) > 0 {
		add(WorkerDisagrees, w, fmt.Sprintf("%s %s a context of %d tokens, most others %d: the shortest bounds all requests",
			names(w), verb(w, "has"), w[0].Context, context))
	}
	if w := which(func(w *Worker) bool { return w.Events == "silent" || w.EventsReason != "" }); len(w) > 0 {
		reason := fmt.Sprintf("the caches of %d of %d %s workers are not followed: %s", len(w), all, p.Role, names(w))
		if w[0].EventsReason != "" {
			reason += ", " + w[0].EventsReason
		}
		add(KVEventsLost, w, reason).part = 0
	}
	if have := all - len(which(func(w *Worker) bool { return w.State == "draining" })); p.Desired > have {
		l.add(TooFewWorkers, p.Model, p.Role, fmt.Sprintf("the load needs %d %s workers, and there are %d", p.Desired, p.Role, have))
	}
}

// rolledOut returns the restarted workers of a pool, if they are at least half and slower than those before.
func (p *Pool) rolledOut() (fresh []*Worker, before, now float64) {
	var speeds []float64
	for i := range p.Workers {
		if w := &p.Workers[i]; w.young && w.Speed > 0 {
			fresh, speeds = append(fresh, w), append(speeds, w.Speed)
		}
	}
	now = median(speeds)
	if 2*len(fresh) < p.serving() || len(fresh) == 0 || now > rolloutShare*p.before {
		return nil, 0, 0
	}
	return fresh, p.before, now
}

// context returns the context that most workers have, of two the longer one.
func (p *Pool) context() (most int) {
	count := map[int]int{}
	for i := range p.Workers {
		if c := p.Workers[i].Context; c > 0 {
			count[c]++
		}
	}
	for c, n := range count {
		if n > count[most] || n == count[most] && c > most {
			most = c
		}
	}
	return most
}

func (p *Pool) serving() (n int) {
	for i := range p.Workers {
		if p.Workers[i].serves() {
			n++
		}
	}
	return n
}

// states counts the workers, which are named, by why they do not serve.
func (p *Pool) states(named string) string {
	if len(p.Workers) == 0 {
		return "all have left"
	}
	count, words := map[string]int{}, []string(nil)
	for i := range p.Workers {
		word := p.Workers[i].State
		if word == "up" {
			word = "failing"
		}
		if count[word]++; count[word] == 1 {
			words = append(words, word)
		}
	}
	for i, word := range words {
		words[i] = fmt.Sprintf("%d %s", count[word], word)
	}
	return strings.Join(words, ", ") + " (" + named + ")"
}

// model lists what is wrong with a model's requests.
func (l *list) model(f *Facts, m *Model) {
	refused, waits := m.refused > 0, m.Oldest >= longWait
	share := 100 * float64(m.refused) / max(1, float64(m.refused+m.granted))
	queued := fmt.Sprintf("%d requests wait", m.Waiting)
	if refused {
		queued += fmt.Sprintf(", %.0f %% are refused", share)
	}
	over := func(q *Problem) {
		if refused {
			q.Severity = Critical
		}
	}
	if class, part := m.greedy(); class != "" && (refused || waits) {
		over(l.add(ClassOverload, m.Name, "", fmt.Sprintf("the policy class %s makes up %.0f %% of what waits or is refused: %s", class, 100*part, queued)))
	}
	if refused || waits {
		if p, how := f.limit(m.Name); p != nil && p.role() == KVFull {
			over(l.add(KVFull, m.Name, p.Role, how+"; "+queued))
		} else if p != nil {
			more := ""
			if n := p.Desired - p.serving(); n > 0 {
				more = fmt.Sprintf("; %d more workers would do", n)
			}
			over(l.add(PoolLimit, m.Name, p.Role, p.Role+" is the bottleneck: "+how+", "+queued+more))
		}
	}
	if m.Ended >= leastEnded && float64(m.Failed) > failShare*float64(m.Ended) {
		l.add(RequestsFail, m.Name, "", fmt.Sprintf("%d of the last %d requests failed or were refused", m.Failed, m.Ended))
	}
	if m.Ended >= leastEnded && m.TTFT > slowTTFT {
		l.add(FirstTokenSlow, m.Name, "", fmt.Sprintf("one in a hundred requests waits over %s for its first token", Brief(m.TTFT)))
	}
	if len(m.Disagree) > 0 {
		l.add(WorkerDisagrees, m.Name, "", enumerate(m.Disagree)+" made other tokens of a chat than the chat template has",
			m.Disagree...)
	}
	if m.Distrusted {
		l.add(TokenizerDistrusted, m.Name, "", "the gateway's tokenizer or chat template disagrees with the workers': it is not used")
	}
	if m.ShutPairs > 0 {
		l.add(PairsShut, m.Name, "", fmt.Sprintf("%d pairs of workers hand over no prompts: too slow, or failing", m.ShutPairs))
	}
}

// greedy returns the class that makes up nearly all of what is refused or, if nothing is, of what waits.
func (m *Model) greedy() (class string, part float64) {
	for _, of := range []func(c *Class) float64{
		func(c *Class) float64 { return float64(c.refused) }, func(c *Class) float64 { return float64(c.Waiting) },
	} {
		sum, most, name := 0., 0., ""
		for i := range m.Classes {
			v := of(&m.Classes[i])
			if sum += v; v > most {
				most, name = v, m.Classes[i].Name
			}
		}
		switch {
		case sum > 0 && most >= classShare*sum && len(m.Classes) > 1:
			return name, most / sum
		case sum > 0:
			return "", 0
		}
	}
	return "", 0
}

// serves reports whether a model has workers of a role that serve.
func (f *Facts) serves(model, role string) bool {
	return slices.ContainsFunc(f.Pools, func(p Pool) bool { return p.Model == model && p.Role == role && p.serving() > 0 })
}

// limit returns the fullest pool of a model, and what fills it.
func (f *Facts) limit(model string) (fullest *Pool, how string) {
	most := -1.
	for i := range f.Pools {
		p := &f.Pools[i]
		if p.Model != model || p.serving() == 0 {
			continue
		}
		if full, text := p.fill(); full > most {
			fullest, how, most = p, text, full
		}
	}
	return fullest, how
}

// role returns the kind of a pool's limit.
func (p *Pool) role() Kind {
	blocks, total := p.blocks()
	if p.Role != "prefill" && total > 0 && float64(blocks) >= fullShare*float64(total) {
		return KVFull
	}
	return PoolLimit
}

func (p *Pool) blocks() (booked, total int) {
	for i := range p.Workers {
		if w := &p.Workers[i]; w.serves() {
			booked, total = booked+w.ActiveBlocks, total+w.TotalBlock
		}
	}
	return booked, total
}

// fill returns how full the pool is, 1 for as many as it can run, and by what.
func (p *Pool) fill() (full float64, how string) {
	tokens, requests, slots, serve := 0, 0, 0, p.serving()
	for i := range p.Workers {
		if w := &p.Workers[i]; w.serves() {
			tokens, requests, slots = tokens+w.PrefillTokens, requests+w.Requests, slots+w.Slots
		}
	}
	on := fmt.Sprintf("on %d of %d workers", serve, len(p.Workers))
	if p.Desired > serve {
		full = float64(p.Desired) / float64(serve)
	}
	if p.Role == "prefill" {
		return max(full, float64(tokens)/float64(serve*stepTokens)), figure(float64(tokens)) + " tokens booked " + on
	}
	if blocks, total := p.blocks(); p.role() == KVFull || total > 0 && slots*blocks > requests*total {
		return max(full, float64(blocks)/float64(total)),
			fmt.Sprintf("%.0f %% of the KV blocks booked %s", 100*float64(blocks)/float64(total), on)
	}
	return max(full, float64(requests)/float64(max(1, slots))), fmt.Sprintf("%d requests booked %s", requests, on)
}

// stepTokens is about how many booked prompt tokens fill a prefill worker.
const stepTokens = 8192

// gateway lists what is wrong with the gateway itself.
func (l *list) gateway(f *Facts) {
	missing := []string(nil)
	for _, p := range f.Peers {
		if p.State != "whole" {
			missing = append(missing, fmt.Sprintf("%s is %s for %s", p.Name, p.State, Brief(p.Age)))
		}
	}
	switch {
	case len(missing) > 0:
		l.add(PeerMissing, "", "", "bookings of other gateways are not known: "+enumerate(missing))
	case f.CutOff:
		l.add(PeerMissing, "", "", "no other gateway's bookings arrive")
	}
	for _, c := range f.Certificates {
		if left := c.Ends.Sub(f.Now); left < certificateDays*24*time.Hour {
			reason := fmt.Sprintf("the certificate for %s ends in %s", c.Use, Brief(left))
			if left <= 0 {
				reason = fmt.Sprintf("the certificate for %s has ended", c.Use)
			}
			if q := l.add(CertificateEnds, "", "", reason); left < 24*time.Hour {
				q.Severity = Critical
			}
		}
	}
	for _, x := range f.Indexes {
		l.add(IndexLost, "", "", fmt.Sprintf("the remote index %s fails: %s", x.Name, x.Reason))
	}
	if n := len(f.Refused); n > 0 {
		ids := []string(nil)
		for _, r := range f.Refused {
			ids = append(ids, r.Name)
		}
		l.add(WorkerRefused, "", "", fmt.Sprintf("%d workers cannot be used; %s: %s", n, f.Refused[0].Name, f.Refused[0].Reason), ids...)
	}
	if f.retriesRefused > 0 {
		l.add(RetriesRefused, "", "", fmt.Sprintf("%d failed requests were not tried again: too many fail", f.retriesRefused))
	}
}

// median returns 0 of nothing.
func median(of []float64) float64 {
	if len(of) == 0 {
		return 0
	}
	if !slices.IsSorted(of) {
		slices.Sort(of)
	}
	return (of[(len(of)-1)/2] + of[len(of)/2]) / 2
}

// names lists workers in a sentence.
func names(workers []*Worker) string {
	all := make([]string, len(workers))
	for i, w := range workers {
		all[i] = w.ID
	}
	return enumerate(all)
}

// mostNamed bounds what a sentence names.
const mostNamed = 3

func enumerate(all []string) string {
	if more := len(all) - mostNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:mostNamed], ", "), more)
	}
	return strings.Join(all, ", ")
}

// verb returns the form of a verb after names.
func verb(workers []*Worker, of string) string {
	if one := map[string]string{"has": "have"}[of]; one != "" && len(workers) > 1 {
		return one
	}
	return of
}

// figure formats a number in two to three digits.
func figure(n float64) string {
	switch {
	case n >= 10_000:
		return fmt.Sprintf("%.0fk", n/1000)
	case n >= 1000:
		return fmt.Sprintf("%.1fk", n/1000)
	}
	return fmt.Sprintf("%.0f", n)
}

// Brief formats a duration in one unit: s, min, h or days.
func Brief(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	case d >= 2*time.Minute:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return fmt.Sprintf("%d s", int(d.Seconds()))
}
