package console

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/prefill"
)

const (
	// keptLatest and keptSlowest are how many finished requests are stored.
	keptLatest  = 200
	keptSlowest = 50
	// slowFor is how long a slow request is stored before any newer one replaces it.
	slowFor = 15 * time.Minute
	// maxLive bounds the followed requests. More are counted, but not stored.
	maxLive = 4096
	// maxDrawn bounds the requests that the page draws at once.
	maxDrawn = 32
	// drawnEvery is the least time between two drawn requests, which spreads them over the interval between events.
	drawnEvery = 30 * time.Millisecond
	// drawnFor is the longest time a request is drawn, so that long answers leave room for new requests.
	drawnFor = 15 * time.Second
	// termsPerSecond is how many candidates a second are recorded with their cost terms. A request counts as at least
	// leastTerms: up to 200 requests a second are explained.
	termsPerSecond = 5000
	leastTerms     = 25
)

// Recorder is an observer that stores what the page shows of requests, and forwards every call to the next observer.
// It recycles records: a request without failures allocates nothing.
type Recorder struct {
	next     handoff.Observer
	terms    atomic.Int64 // candidates that may still be explained this second
	watched  atomic.Bool  // some page is open
	families families

	mu      sync.Mutex // guards all below
	free    []*trace
	made    int      // traces allocated
	live    []*trace // requests in the gateway
	latest  [keptLatest]*trace
	cursor  int // next index in latest
	slowest [keptSlowest]slow
	floor   time.Duration // no faster request is one of the slowest
	until   time.Time     // when the oldest of them may be replaced by any
	drawn   []*trace
	drew    time.Time // arrival of the latest drawn one
	models  map[string]*modelStats
}

type slow struct {
	*trace
	took time.Duration
	at   time.Time
}

// maxTraces bounds the requests that are live, stored or drawn.
const maxTraces = maxLive + keptLatest + keptSlowest + maxDrawn

var _ handoff.Observer = (*Recorder)(nil)

// NewRecorder returns a recorder in front of next.
func NewRecorder(next handoff.Observer) *Recorder {
	r := &Recorder{next: next, models: map[string]*modelStats{}}
	r.families.init()
	r.terms.Store(termsPerSecond)
	return r
}

// Explains implements [handoff.Rooms.Explains]: it explains retries, and as many first choices as termsPerSecond
// allows.
func (c *Recorder) Explains(rounds int) bool { return rounds > 0 || c.terms.Load() > 0 }

// Arrived implements [handoff.Observer], as do the methods below.
func (c *Recorder) Arrived(r *handoff.Record) {
	c.next.Arrived(r)
	if t := c.take(r); t != nil {
		r.Mark = t
	}
}

// take returns memory for a request, nil if too many are in the gateway.
func (c *Recorder) take(r *handoff.Record) *trace {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.model(r.Call.Request.Model)
	m.now.arrived++
	if len(c.live) >= maxLive {
		return nil
	}
	var t *trace
	if n := len(c.free); n > 0 {
		t, c.free = c.free[n-1], c.free[:n-1]
	} else if c.made < maxTraces {
		t = new(trace)
		c.made++
	} else {
		return nil
	}
	t.begin(r, m.name)
	t.at, t.holds = len(c.live), 1
	c.live = append(c.live, t)
	if at := r.Call.Arrival; c.watched.Load() && len(c.drawn) < maxDrawn && at.Sub(c.drew) >= drawnEvery {
		t.holds++
		c.drew = at
		c.drawn = append(c.drawn, t)
	}
	return t
}

// Understood forwards to the next observer.
func (c *Recorder) Understood(r *handoff.Record) { c.next.Understood(r) }

// Queued records that the request waits.
func (c *Recorder) Queued(r *handoff.Record, uncached int) {
	c.next.Queued(r, uncached)
	if t, ok := r.Mark.(*trace); ok {
		t.enter(Waiting)
	}
}

// Granted forwards to the next observer: a call, or the request's end, follows at once.
func (c *Recorder) Granted(r *handoff.Record, err error) { c.next.Granted(r, err) }

// LegStarted records a call. Tokens are counted elsewhere: see [observe.Observer.Streams].
func (c *Recorder) LegStarted(r *handoff.Record, leg handoff.Leg) (token func(gap time.Duration)) {
	if t, ok := r.Mark.(*trace); ok {
		t.called(r, &leg)
	}
	return c.next.LegStarted(r, leg)
}

// FirstToken records its time.
func (c *Recorder) FirstToken(r *handoff.Record, leg handoff.Leg) {
	c.next.FirstToken(r, leg)
	if t, ok := r.Mark.(*trace); ok {
		t.answered(&leg)
	}
}

// LegEnded records the end of a call.
func (c *Recorder) LegEnded(r *handoff.Record, leg handoff.Leg) {
	c.next.LegEnded(r, leg)
	if t, ok := r.Mark.(*trace); ok {
		t.ended(&leg)
	}
}

// Failed records why a call failed, and what followed.
func (c *Recorder) Failed(r *handoff.Record, failed *fault.Error, action handoff.Action) {
	c.next.Failed(r, failed, action)
	if t, ok := r.Mark.(*trace); ok {
		t.failed(failed, action)
	}
}

// Ended counts the request, and stores it if it is followed.
func (c *Recorder) Ended(r *handoff.Record, err error) {
	c.next.Ended(r, err)
	if !r.Known { // its model is client input
		return
	}
	now := time.Now()
	s := summarize(r, now)
	if n := len(s.Prefill.Why.Terms) + len(s.Decode.Why.Terms); n > 0 {
		c.terms.Add(-int64(max(n, leastTerms)))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.model(r.Call.Request.Model)
	m.count(&s, refused(r, err))
	s.Family = c.families.count(r, &s, m.name)
	if t, ok := r.Mark.(*trace); ok {
		t.finish(r, &s, now)
		c.keep(t, &s, now)
	}
}

// refused reports whether the gateway had no room for the request: no worker was called, and a retry may succeed.
func refused(r *handoff.Record, err error) bool {
	answer, ok := errors.AsType[*openai.Error](err)
	return ok && r.Attempts == 0 && answer.Status >= http.StatusInternalServerError
}

// Released forwards to the next observer.
func (c *Recorder) Released(kv prefill.KV, attempt string, err error) {
	c.next.Released(kv, attempt, err)
}

// Warmed forwards to the next observer.
func (c *Recorder) Warmed(model, outcome string) { c.next.Warmed(model, outcome) }

// keep moves t from the live requests to the latest, and to the slowest if it qualifies. The caller holds mu.
func (c *Recorder) keep(t *trace, s *summary, now time.Time) {
	last := len(c.live) - 1
	c.live[last].at = t.at
	c.live[t.at] = c.live[last]
	c.live[last] = nil
	c.live = c.live[:last]
	if old := c.latest[c.cursor]; old != nil {
		c.drop(old)
	}
	c.latest[c.cursor] = t // it takes over the live list's reference
	c.cursor = (c.cursor + 1) % keptLatest

	if took := s.slowness(); took > c.floor || now.After(c.until) {
		c.keepSlow(t, took, now)
	}
}

// keepSlow replaces the least slow, or an expired, request by t. The caller holds mu.
func (c *Recorder) keepSlow(t *trace, took time.Duration, now time.Time) {
	least := 0
	for i := range c.slowest {
		k := &c.slowest[i]
		if k.trace == nil || now.Sub(k.at) > slowFor {
			k.took = 0
		}
		if k.took < c.slowest[least].took {
			least = i
		}
	}
	if k := &c.slowest[least]; took > k.took {
		if k.trace != nil {
			c.drop(k.trace)
		}
		t.holds++
		*k = slow{t, took, now}
	}
	c.floor, c.until = took, now.Add(slowFor)
	for i := range c.slowest {
		k := &c.slowest[i]
		c.floor = min(c.floor, k.took)
		if end := k.at.Add(slowFor); k.trace != nil && end.Before(c.until) {
			c.until = end
		}
	}
}

// drop releases one reference to t. The caller holds mu.
func (c *Recorder) drop(t *trace) {
	if t.holds--; t.holds == 0 {
		c.free = append(c.free, t)
	}
}

// model returns the figures of a served model. The caller holds mu.
func (c *Recorder) model(name string) *modelStats {
	if m := c.models[name]; m != nil {
		return m
	}
	if len(c.models) >= maxModels {
		name = otherModels
		if m := c.models[name]; m != nil {
			return m
		}
	}
	name = strings.Clone(name) // it points into the client's body
	m := &modelStats{name: name}
	c.models[name] = m
	return m
}

// Latest returns the requests that ended last, latest first.
func (c *Recorder) Latest() []Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []Request
	for i := range keptLatest {
		if t := c.latest[(c.cursor+keptLatest-1-i)%keptLatest]; t != nil {
			all = append(all, t.copied())
		}
	}
	return all
}

// Slowest returns the slowest requests of the last quarter of an hour, slowest first.
func (c *Recorder) Slowest() []Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []Request
	for i := range c.slowest {
		if k := &c.slowest[i]; k.trace != nil && time.Since(k.at) <= slowFor {
			all = append(all, k.copied())
		}
	}
	slices.SortStableFunc(all, func(a, b Request) int { return int(b.slowness() - a.slowness()) })
	return all
}

// Find returns the request of that name: the gateway's or the client's. Of several with the client's name it returns the latest.
func (c *Recorder) Find(name string) (found Request, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	offer := func(t *trace) {
		if t == nil {
			return
		}
		t.mu.Lock()
		hit := t.name == name || t.id == name && (!ok || t.arrived.After(found.Arrived))
		t.mu.Unlock()
		if hit {
			found, ok = t.copied(), true
		}
	}
	for i := range c.slowest {
		offer(c.slowest[i].trace)
	}
	for _, t := range c.latest {
		offer(t)
	}
	for _, t := range c.live {
		offer(t)
	}
	return found, ok
}

// Watch sets whether some page is open: only then are requests drawn.
func (c *Recorder) Watch(open bool) { c.watched.Store(open) }

// flights returns the drawn requests, finished ones once.
func (c *Recorder) flights() []Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []Request
	c.drawn = slices.DeleteFunc(c.drawn, func(t *trace) bool {
		r := t.copied()
		all = append(all, r)
		done := r.Phase == Over || time.Since(r.Arrived) > drawnFor
		if done {
			c.drop(t)
		}
		return done
	})
	return all
}

// phases counts the followed requests by phase.
func (c *Recorder) phases() (n [Over]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.live {
		t.mu.Lock()
		if t.phase < Over {
			n[t.phase]++
		}
		t.mu.Unlock()
	}
	return n
}
