package console

import (
	"cmp"
	"errors"
	"hash/maphash"
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
	// keptSlowest is how many of the slowest requests are stored, each by TTFT, ITL and total time.
	keptSlowest = 64
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
	seed     maphash.Seed // of the digests of sessions
	began    time.Time

	mu      sync.Mutex // guards all below
	free    []*trace
	fresh   []trace  // allocated together, and not used yet
	made    int      // traces allocated
	live    []*trace // requests in the gateway
	shelves [shelves]shelf
	slow    [3]slowest // by TTFT, ITL and total
	round   uint64     // of the latest look at all
	drawn   []*trace
	drew    time.Time // arrival of the latest drawn one
	models  map[string]*modelStats
}

// slowest is the slowest requests of the last slowFor.
type slowest struct {
	kept  [keptSlowest]slow
	floor time.Duration // no faster request is one of them
	until time.Duration // when the oldest of them may be replaced by any; as at, since the recorder began
}

type slow struct {
	*trace
	took, at time.Duration
}

var _ handoff.Observer = (*Recorder)(nil)

// NewRecorder returns a recorder in front of next.
func NewRecorder(next handoff.Observer) *Recorder {
	r := &Recorder{next: next, models: map[string]*modelStats{}, seed: maphash.MakeSeed(), began: time.Now()}
	for i := range r.shelves {
		r.shelves[i] = newShelf(shelfBytes[i])
	}
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
	} else {
		if len(c.fresh) == 0 { // as many as are live and stored at a time
			c.fresh = make([]trace, 64)
			c.made += len(c.fresh)
		}
		t, c.fresh = &c.fresh[0], c.fresh[1:]
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
	s.session = c.session(cmp.Or(r.Call.Session, r.Call.Request.Session))
	if n := len(s.Prefill.Why.Terms) + len(s.Decode.Why.Terms); n > 0 {
		c.terms.Add(-int64(max(n, leastTerms)))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.model(r.Call.Request.Model)
	m.count(&s, refused(r, err))
	if rejected(&s, err) {
		m.now.rejected++
	}
	s.Family = c.families.count(r, &s, m.name)
	if t, ok := r.Mark.(*trace); ok {
		t.finish(r, &s, now)
		switch {
		case s.ok():
			t.kind = succeeded
		case r.Attempts == 0 || s.Outcome == fault.ClientGone.String():
			t.kind = refusedOrLeft
		default:
			t.kind = failed
		}
		c.keep(t, now)
	}
}

// rejected reports whether the request failed by what its client sent.
func rejected(s *summary, err error) bool {
	answer, ok := errors.AsType[*openai.Error](err)
	return s.Outcome == fault.Rejected.String() || s.Outcome == fault.TooLarge.String() ||
		ok && answer.Status < http.StatusInternalServerError && s.Outcome != fault.ClientGone.String()
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

// session returns a digest of a session's name: the names are clients' own.
func (c *Recorder) session(name string) uint64 {
	if name == "" {
		return 0
	}
	return maphash.String(c.seed, name)
}

// keep moves t from the live requests to its shelf, and to the slowest if it qualifies. The caller holds mu.
func (c *Recorder) keep(t *trace, now time.Time) {
	last := len(c.live) - 1
	c.live[last].at = t.at
	c.live[t.at] = c.live[last]
	c.live[last] = nil
	c.live = c.live[:last]
	c.shelves[t.kind].push(t, shelfBytes[t.kind], c.drop) // it takes over the live list's reference
	at := now.Sub(c.began)
	for i, took := range [...]time.Duration{t.sum.TTFT, t.sum.ITL, t.sum.Total} {
		if s := &c.slow[i]; took > s.floor || took > 0 && at > s.until {
			s.keep(slow{t, took, at}, c.drop)
		}
	}
}

// keep replaces the least slow, or an expired, request by t.
func (s *slowest) keep(t slow, drop func(*trace)) {
	least := 0
	for i := range s.kept {
		k := &s.kept[i]
		if k.trace == nil || t.at-k.at > slowFor {
			k.took = 0
		}
		if k.took < s.kept[least].took {
			least = i
		}
	}
	if k := &s.kept[least]; t.took > k.took {
		if k.trace != nil {
			drop(k.trace)
		}
		t.holds++
		*k = t
	}
	s.floor, s.until = t.took, t.at+slowFor
	for i := range s.kept {
		k := &s.kept[i]
		if s.floor = min(s.floor, k.took); k.trace != nil {
			s.until = min(s.until, k.at+slowFor)
		}
	}
}

// drop releases one reference to t. The caller holds mu.
func (c *Recorder) drop(t *trace) {
	if t.holds--; t.holds == 0 {
		t.mu.Lock()
		t.sum, t.steps = summary{}, nil // they hold terms
		t.mu.Unlock()
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

// Find returns the request of that name: the gateway's or the client's. Of several with the client's name it returns the latest.
func (c *Recorder) Find(name string) (found Request, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	offer := func(t *trace) {
		t.mu.Lock()
		hit := t.name == name || t.id == name && (!ok || t.arrived.After(found.Arrived))
		t.mu.Unlock()
		if hit {
			found, ok = t.copied(), true
		}
	}
	c.each(offer)
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
