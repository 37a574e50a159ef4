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
	// keptLatest and keptSlowest are how many requests are kept that are over.
	keptLatest  = 200
	keptSlowest = 50
	// slowFor is how long a slow request is kept before any newer one replaces it.
	slowFor = 15 * time.Minute
	// maxLive bounds how many requests are followed at a time. Those beyond are counted, and not kept.
	maxLive = 4096
	// maxDrawn bounds how many requests' ways the page draws at a time.
	maxDrawn = 32
	// drawnEvery is the least time between two that are drawn, so that of many requests some of the whole second are, and not
	// the first after each event alone.
	drawnEvery = 30 * time.Millisecond
	// drawnFor is how long a request is drawn at the most, so that long answers leave room for new requests.
	drawnFor = 15 * time.Second
	// termsPerSecond is how many candidates a second are recorded with the terms of their cost. A request, whose terms
	// take two allocations, counts as leastTerms of them at least: up to 200 requests a second are explained, each one.
	termsPerSecond = 5000
	leastTerms     = 25
)

// Recorder is the observer that keeps what the page shows of requests. It passes each moment on to the observer that it
// was made with. Records are used again: nothing is allocated for a request that meets no failure.
type Recorder struct {
	next     handoff.Observer
	terms    atomic.Int64 // candidates that may be explained until the next second
	watched  atomic.Bool  // some page is open
	families families

	mu      sync.Mutex // guards all below
	free    []*trace
	made    int      // traces in all
	live    []*trace // in the gateway now
	latest  [keptLatest]*trace
	cursor  int // in latest: the next place
	slowest [keptSlowest]slow
	floor   time.Duration // no request that took less is one of the slowest
	until   time.Time     // when the oldest of them makes room, whatever it took
	drawn   []*trace
	drew    time.Time // when the latest of them arrived
	models  map[string]*modelStats
}

// slow is one of the slowest requests.
type slow struct {
	*trace
	took time.Duration
	at   time.Time
}

// maxTraces is how many requests are live, kept or drawn at the most.
const maxTraces = maxLive + keptLatest + keptSlowest + maxDrawn

var _ handoff.Observer = (*Recorder)(nil)

// NewRecorder keeps what it observes and passes it on to next.
func NewRecorder(next handoff.Observer) *Recorder {
	r := &Recorder{next: next, models: map[string]*modelStats{}}
	r.families.init()
	r.terms.Store(termsPerSecond)
	return r
}

// Explains implements [handoff.Rooms.Explains]: retries are explained, and as many first choices as termsPerSecond
// allows.
func (c *Recorder) Explains(rounds int) bool { return rounds > 0 || c.terms.Load() > 0 }

// Arrived implements [handoff.Observer], as do the methods below.
func (c *Recorder) Arrived(r *handoff.Record) {
	c.next.Arrived(r)
	if t := c.take(r); t != nil {
		r.Mark = t
	}
}

// take finds memory for a request, nil where too many are in the gateway.
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

// Understood passes the moment on.
func (c *Recorder) Understood(r *handoff.Record) { c.next.Understood(r) }

// Queued notes that the request waits.
func (c *Recorder) Queued(r *handoff.Record, uncached int) {
	c.next.Queued(r, uncached)
	if t, ok := r.Mark.(*trace); ok {
		t.enter(Waiting)
	}
}

// Granted passes the moment on: a call, or the request's end, follows at once.
func (c *Recorder) Granted(r *handoff.Record, err error) { c.next.Granted(r, err) }

// LegStarted notes a call. Tokens are not counted here: see [observe.Observer.Tokens].
func (c *Recorder) LegStarted(r *handoff.Record, leg handoff.Leg) (token func(gap time.Duration)) {
	if t, ok := r.Mark.(*trace); ok {
		t.called(r, &leg)
	}
	return c.next.LegStarted(r, leg)
}

// FirstToken notes when it came.
func (c *Recorder) FirstToken(r *handoff.Record, leg handoff.Leg) {
	c.next.FirstToken(r, leg)
	if t, ok := r.Mark.(*trace); ok {
		t.answered(&leg)
	}
}

// LegEnded notes the end of a call.
func (c *Recorder) LegEnded(r *handoff.Record, leg handoff.Leg) {
	c.next.LegEnded(r, leg)
	if t, ok := r.Mark.(*trace); ok {
		t.ended(&leg)
	}
}

// Failed notes why a call failed, and what was done about it.
func (c *Recorder) Failed(r *handoff.Record, failed *fault.Error, action handoff.Action) {
	c.next.Failed(r, failed, action)
	if t, ok := r.Mark.(*trace); ok {
		t.failed(failed, action)
	}
}

// Ended keeps the request, as far as it is one to keep, and counts it.
func (c *Recorder) Ended(r *handoff.Record, err error) {
	c.next.Ended(r, err)
	if !r.Known { // its model is a client's text
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

// refused reports whether the gateway had no room for the request: no worker was called, and a later try may be served.
func refused(r *handoff.Record, err error) bool {
	answer, ok := errors.AsType[*openai.Error](err)
	return ok && r.Attempts == 0 && answer.Status >= http.StatusInternalServerError
}

// Released passes the moment on.
func (c *Recorder) Released(kv prefill.KV, attempt string, err error) {
	c.next.Released(kv, attempt, err)
}

// keep moves t from the live requests to the latest, and among the slowest if it is one. The caller holds mu.
func (c *Recorder) keep(t *trace, s *summary, now time.Time) {
	last := len(c.live) - 1
	c.live[last].at = t.at
	c.live[t.at] = c.live[last]
	c.live[last] = nil
	c.live = c.live[:last]
	if old := c.latest[c.cursor]; old != nil {
		c.drop(old)
	}
	c.latest[c.cursor] = t // which takes the live ones' hold over
	c.cursor = (c.cursor + 1) % keptLatest

	if took := s.slowness(); took > c.floor || now.After(c.until) {
		c.keepSlow(t, took, now)
	}
}

// keepSlow puts t among the slowest in the place of the least slow, or of one that is too old. The caller holds mu.
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

// drop gives one hold of t up. The caller holds mu.
func (c *Recorder) drop(t *trace) {
	if t.holds--; t.holds == 0 {
		c.free = append(c.free, t)
	}
}

// model is the figures of a model that some worker serves. The caller holds mu.
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
	name = strings.Clone(name) // it is a part of the client's body
	m := &modelStats{name: name}
	c.models[name] = m
	return m
}

// Latest are the requests that ended last, the latest first.
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

// Slowest are the slowest requests of the last quarter of an hour, the slowest first.
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

// Find is the request of that name: the gateway's, or the client's, of which several may have it and the latest counts.
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

// Watch says whether some page is open: only then ways are drawn.
func (c *Recorder) Watch(open bool) { c.watched.Store(open) }

// flights are the requests that are drawn. Those that are over are returned once.
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

// phases counts the followed requests by where they are.
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
