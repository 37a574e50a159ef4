package placement

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/pools"
)

const (
	// few is how many slow transfers or failures in a row shut a pair: one may be a first handshake, two a coincidence.
	few = 3
	// worth is how many times the time to compute a prompt its transfer may take: computing it on the decode worker delays the
	// answers there.
	worth = 2
	// patient is how long a transfer may take that is not known to be too slow: the decode worker may be busy for that long.
	patient = 500 * time.Millisecond
	// leastOwn is decode's time to its first event besides the transfer: a step or two, and the network.
	leastOwn = 50 * time.Millisecond
	// probeOf: at most one in so many placed requests of a model is a probe. A probe costs about twice the prompt's time on
	// decode, so probes cost 2 %.
	probeOf = 64
	// recent is the weight of the latest prompt that decode computed, against all earlier ones.
	recent = .2
	// typical is the prompt length in tokens for which [Links.Pairs] reports a pair as shut.
	typical = 4096
	// probeLost is how long after its choice a probe without a transfer counts as lost.
	probeLost = time.Minute
)

// Computes predicts how long prefill worker p takes to compute so many tokens; ok is false if unknown.
type Computes func(p *pools.Worker, tokens int) (time.Duration, bool)

// Links measures how fast KV transfers in each pair of a prefill and a decode worker, and decides which pairs are shut:
// those where handing a prompt over takes longer than decode takes to compute it,
//
//	b · (tokens in flight + tokens of the prompt) > max(leastOwn, worth · time to compute the prompt),
//
// or whose latest hand-offs failed. b is the least time per token. A transfer bounds it from both sides,
//
//	(to the first event − decode's own time) / n ≤ b ≤ (to the first token) / n
//
// where n is the tokens that the pair transferred meanwhile; one in flight has taken at least its age. b is the least of the
// three highest lower bounds since a transfer that contradicts them: three slow transfers shut a pair, a quick one opens it,
// and short prompts neither hide nor exaggerate the speed for long ones. A shut pair gets a probe now and then.
//
// Waiting for a transfer for as long as the computation would take costs at most twice the better choice (ski rental:
// Karlin, Manasse, Rudolph and Sleator, Competitive snoopy caching, 1988).
//
// Links is a core: its owner guards it.
type Links struct {
	// OnChange is called when a pair is shut, with the reason, or opens, with none. It may be nil and must not call the Links.
	OnChange func(p, d *pools.Worker, reason string)

	computes Computes
	models   map[string]*modelLinks
}

type modelLinks struct {
	links  map[pair]*link
	doubts map[*link]struct{} // those that may be shut: few, since each request visits them
	placed uint64             // requests
	probed uint64             // placed when the latest probe was
}

// pair identifies a pair's processes.
type pair struct{ p, pIncarnation, d, dIncarnation string }

// link has the measurements of a pair.
type link struct {
	p, d     *pools.Worker
	bounds   [few]float64 // lower bounds of the seconds per token, ascending
	slower   float64      // logarithm of d's time to compute a prompt over p's
	moved    int          // tokens, in all
	under    []*Transfer  // in flight, oldest first
	failures int          // in a row
	reason   string       // why it was shut, at the latest result
	probing  time.Time    // when a probe was chosen that has no result yet; zero for none
}

// Transfer is the transfer of one prompt's KV. The zero value is none.
type Transfer struct {
	link   *link
	tokens int
	began  time.Time
	before int           // tokens that the pair had transferred then
	own    time.Duration // decode's time besides
	price  time.Duration // to compute the prompt; 0 unknown
	limit  time.Duration // of the transfer
	gone   bool          // decode left it to compute the prompt
}

// Price is the predicted time to hand a prompt over, and to compute it on the decode worker.
type Price struct{ Transfer, Compute time.Duration }

// NewLinks returns Links without a pair.
func NewLinks(computes Computes) *Links {
	return &Links{computes: computes, models: map[string]*modelLinks{}}
}

// Shut reports whether any pair of a model is shut for a prompt of so many tokens. Its time is proportional to the pairs that
// transfer now or were slow recently.
func (l *Links) Shut(model string, tokens int, now time.Time) bool {
	if m := l.models[model]; m != nil {
		for k := range m.doubts {
			if l.shut(k, tokens, now) {
				return true
			}
		}
	}
	return false
}

// Opens reports whether a prompt of so many tokens may be handed over from p to d, possibly as a probe.
func (l *Links) Opens(p, d *pools.Worker, tokens int, now time.Time) bool {
	m, k := l.find(p, d)
	if k == nil || !l.shut(k, tokens, now) {
		return true
	}
	return m.placed-m.probed >= probeOf && len(k.under) == 0 && (k.probing.IsZero() || now.Sub(k.probing) > probeLost)
}

// Placed records that a request goes to d, its prompt of so many tokens computed by p, nil if by d itself.
func (l *Links) Placed(p, d *pools.Worker, tokens int, now time.Time) {
	m := l.models[d.Model]
	if m == nil {
		return
	}
	m.placed++
	if p == nil {
		return
	}
	if _, k := l.find(p, d); k != nil && l.shut(k, tokens, now) {
		m.probed, k.probing = m.placed, now
	}
}

// Why returns the reason that no worker of a pool hands over to d, and the lowest price of those that could.
func (l *Links) Why(prefill *pools.Pool, d *pools.Worker, tokens int, now time.Time) (reason string, price Price) {
	reason = ReasonNoPartner
	for i := range prefill.Members {
		p := prefill.Members[i].Worker
		_, k := l.find(p, d)
		switch {
		case k == nil:
		case k.failures >= few:
			reason = ReasonFailing
		default:
			if reason == ReasonNoPartner {
				reason = ReasonSlow
			}
			computed, _, _ := l.limit(k, tokens)
			if moved := k.takes(tokens, now); price.Transfer == 0 || moved < price.Transfer {
				price = Price{moved, computed}
			}
		}
	}
	return reason, price
}

// Begin starts the transfer t of a prompt's tokens from p to d, which takes own besides.
func (l *Links) Begin(t *Transfer, p, d *pools.Worker, tokens int, own time.Duration, now time.Time) {
	m, k := l.find(p, d)
	if k == nil {
		if m == nil {
			m = &modelLinks{links: map[pair]*link{}, doubts: map[*link]struct{}{}}
			l.models[d.Model] = m
		}
		k = &link{p: p, d: d}
		m.links[nameOf(p, d)] = k
	}
	*t = Transfer{link: k, tokens: tokens, began: now, before: k.moved, own: max(own, leastOwn)}
	t.price, t.limit, _ = l.limit(k, tokens)
	k.under = append(k.under, t)
	m.note(k)
}

// Patience returns how long to wait before a call of [Links.Leave] for t, and between two; 0 if none is needed.
func (t *Transfer) Patience() time.Duration {
	if t.link == nil || t.price == 0 {
		return 0
	}
	return max(t.price, leastOwn)
}

// Leave reports whether decode should compute the prompt itself now: t has taken as long as that, and another transfer was too
// slow, or t has taken far too long.
func (l *Links) Leave(t *Transfer, now time.Time) bool {
	k, age := t.link, now.Sub(t.began)
	if k == nil || t.price == 0 || age <= t.price {
		return false
	}
	t.gone = age > max(t.limit, patient) || k.known(now, t)[few-1]*float64(t.tokens) > t.limit.Seconds()
	return t.gone
}

// Arrived ends t: decode's first event arrived at event, and its first token now.
func (l *Links) Arrived(t *Transfer, event, now time.Time) {
	k := t.link
	if k == nil {
		return
	}
	k.moved, k.failures = k.moved+t.tokens, 0
	n := float64(max(1, k.moved-t.before))
	low, high := (event.Sub(t.began)-t.own).Seconds()/n, now.Sub(t.began).Seconds()/n
	for i, b := range k.bounds {
		if high < b {
			k.bounds[i] = max(0, low)
		}
	}
	slices.Sort(k.bounds[:])
	raise(&k.bounds, low)
	if m := l.models[k.d.Model]; m != nil && !k.probing.IsZero() && now.Sub(t.began) < t.limit {
		m.probed -= min(m.probed, probeOf) // the next pair's may follow: this one cost nothing
	}
	l.end(t, now)
}

// Left ends t before decode's first event: decode left it, or it failed. One that decode left counts as half done, and as twice
// as slow as the ones before it, since its arrival is unknown.
func (l *Links) Left(t *Transfer, now time.Time) {
	k := t.link
	switch {
	case k == nil:
		return
	case t.gone:
		raise(&k.bounds, min(1, 2*max(k.bounds[0], now.Sub(t.began).Seconds()/float64(max(1, t.tokens)))))
	default:
		raise(&k.bounds, k.least(t, k.ahead(), now))
	}
	l.end(t, now)
}

// Computed records that d took so long to the first token of a prompt that it computed itself.
func (l *Links) Computed(d *pools.Worker, tokens int, took time.Duration) {
	m := l.models[d.Model]
	if m == nil || took <= 0 {
		return
	}
	for _, k := range m.links {
		if expected, known := l.computes(k.p, tokens); known && k.d.ID == d.ID && expected > 0 {
			k.slower += recent * (math.Log(took.Seconds()/expected.Seconds()) - k.slower)
		}
	}
}

// Failed records that a hand-off of a pair has failed.
func (l *Links) Failed(p, d *pools.Worker, now time.Time) {
	if _, k := l.find(p, d); k != nil {
		k.failures++
		k.probing = time.Time{}
		l.judge(k, now)
	}
}

// Works reports whether p hands over to another decode worker than d: its latest hand-off there succeeded.
func (l *Links) Works(p, d *pools.Worker) bool {
	if m := l.models[p.Model]; m != nil {
		for _, k := range m.links {
			if k.p.ID == p.ID && k.d.ID != d.ID && k.moved > 0 && k.failures == 0 {
				return true
			}
		}
	}
	return false
}

// Pairs emits how many pairs of each model are shut: too slow for a prompt of [typical] tokens, or failing.
func (l *Links) Pairs(emit func(model string, slow, failing int)) {
	for model, m := range l.models {
		n := map[string]int{}
		for _, k := range m.links {
			n[k.reason]++
		}
		emit(model, n[ReasonSlow], n[ReasonFailing])
	}
}

// Forget drops the pairs of workers that are gone.
func (l *Links) Forget(gone func(worker, incarnation string) bool) {
	for model, m := range l.models {
		maps.DeleteFunc(m.links, func(n pair, k *link) bool {
			left := gone(n.p, n.pIncarnation) || gone(n.d, n.dIncarnation)
			if left {
				delete(m.doubts, k)
			}
			return left
		})
		if len(m.links) == 0 {
			delete(l.models, model)
		}
	}
}

func nameOf(p, d *pools.Worker) pair { return pair{p.ID, p.Incarnation, d.ID, d.Incarnation} }

// find returns a pair's model and link, nil for none.
func (l *Links) find(p, d *pools.Worker) (*modelLinks, *link) {
	m := l.models[d.Model]
	if m == nil {
		return nil, nil
	}
	return m, m.links[nameOf(p, d)]
}

// shut reports whether k hands such a prompt over worse than d computes it.
func (l *Links) shut(k *link, tokens int, now time.Time) bool {
	if k.failures >= few {
		return true
	}
	moved := k.takes(tokens, now)
	if moved == 0 {
		return false
	}
	_, limit, known := l.limit(k, tokens)
	return known && moved > limit
}

// limit returns how long a transfer may take: worth times prefill's time to compute the prompt, or decode's recent time if longer,
// and at least leastOwn: less does not justify the delay of decode's answers. A busy decode worker raises the limit, so that a
// pair that was shut for that reason alone opens.
func (l *Links) limit(k *link, tokens int) (computed, limit time.Duration, known bool) {
	computed, known = l.computes(k.p, tokens)
	return computed, max(leastOwn, time.Duration(float64(computed)*max(worth, math.Exp(k.slower)))), known
}

// end removes t from its pair.
func (l *Links) end(t *Transfer, now time.Time) {
	k := t.link
	k.under = slices.DeleteFunc(k.under, func(other *Transfer) bool { return other == t })
	k.probing = time.Time{}
	t.link = nil
	l.judge(k, now)
}

// note adds k to the pairs in question, or removes it: without bounds, transfers and failures it is open.
func (m *modelLinks) note(k *link) {
	if k.failures >= few || k.bounds[0] > 0 || len(k.under) > 0 {
		m.doubts[k] = struct{}{}
	} else {
		delete(m.doubts, k)
	}
}

// judge calls OnChange if a pair was shut or opened, unless it was forgotten.
func (l *Links) judge(k *link, now time.Time) {
	m, current := l.find(k.p, k.d)
	if current != k {
		return
	}
	m.note(k)
	reason := ""
	switch {
	case k.failures >= few:
		reason = ReasonFailing
	case l.shut(k, typical, now):
		reason = ReasonSlow
	}
	if changed := reason != k.reason; changed && l.OnChange != nil {
		l.OnChange(k.p, k.d, reason)
	}
	k.reason = reason
}

// takes returns the least time of a prompt's transfer behind those in flight. While one is in flight, the highest bound counts
// too, so that a pair that may be slow is tried by one transfer at a time.
func (k *link) takes(tokens int, now time.Time) time.Duration {
	bounds := k.known(now, nil)
	seconds := bounds[0] * float64(k.ahead()+tokens)
	if len(k.under) > 0 {
		seconds = max(seconds, bounds[few-1]*float64(tokens))
	}
	return time.Duration(seconds * float64(time.Second))
}

// known returns the bounds, including those of all transfers in flight but one.
func (k *link) known(now time.Time, but *Transfer) [few]float64 {
	bounds, ahead := k.bounds, k.ahead()
	for _, t := range k.under {
		if t != but {
			raise(&bounds, k.least(t, ahead, now))
		}
	}
	return bounds
}

// ahead returns the tokens in flight.
func (k *link) ahead() (tokens int) {
	for _, t := range k.under {
		tokens += t.tokens
	}
	return tokens
}

// least returns the least seconds per token by the age of t, as if all transfers in flight had ended now.
func (k *link) least(t *Transfer, ahead int, now time.Time) float64 {
	return (now.Sub(t.began) - t.own).Seconds() / float64(max(1, k.moved-t.before+ahead))
}

// raise replaces the least of the lower bounds by a higher one.
func raise(bounds *[few]float64, low float64) {
	if low > bounds[0] {
		bounds[0] = low
		slices.Sort(bounds[:])
	}
}
