package console

import (
	"cmp"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/router"
)

// The shelves of finished requests: those that succeeded, those that failed after a worker was called, and those that
// were refused or whose client left. No kind displaces another.
const (
	succeeded = iota
	failed
	refusedOrLeft
	shelves
)

// shelfBytes bounds each shelf's memory.
var shelfBytes = [shelves]int{succeeded: 13 << 20, failed: 2 << 20, refusedOrLeft: 1 << 20}

// traceBytes, stepBytes and termBytes are the sizes of one.
var (
	traceBytes = int(reflect.TypeFor[trace]().Size())
	stepBytes  = int(reflect.TypeFor[Step]().Size())
	termBytes  = int(reflect.TypeFor[router.Term]().Size())
)

// bytes returns the memory that a finished request takes.
func (t *trace) bytes() int {
	n := traceBytes + len(t.id) + len(t.name) + termBytes*(cap(t.sum.Prefill.Why.Terms)+cap(t.sum.Decode.Why.Terms))
	if cap(t.steps) > undisturbed {
		n += stepBytes * cap(t.steps)
	}
	return n
}

// shelf is the latest finished requests of a kind, in a ring.
type shelf struct {
	ring     []*trace
	first, n int
	bytes    int
}

func newShelf(most int) shelf { return shelf{ring: make([]*trace, most/traceBytes)} }

// at returns the ith, from the oldest.
func (s *shelf) at(i int) *trace { return s.ring[(s.first+i)%len(s.ring)] }

// push adds a request and drops the oldest beyond most bytes.
func (s *shelf) push(t *trace, most int, drop func(*trace)) {
	t.size = t.bytes()
	for s.n > 0 && (s.n == len(s.ring) || s.bytes+t.size > most) {
		old := s.at(0)
		s.ring[s.first] = nil
		s.first, s.n, s.bytes = (s.first+1)%len(s.ring), s.n-1, s.bytes-old.size
		drop(old)
	}
	s.ring[(s.first+s.n)%len(s.ring)] = t
	s.n, s.bytes = s.n+1, s.bytes+t.size
}

// each calls f with every finished request once, the latest of a kind first. The caller holds mu.
func (c *Recorder) each(f func(*trace)) {
	c.round++
	once := func(t *trace) {
		if t != nil && t.round != c.round {
			t.round = c.round
			f(t)
		}
	}
	for i := range c.shelves {
		s := &c.shelves[i]
		for k := s.n - 1; k >= 0; k-- {
			once(s.at(k))
		}
	}
	for i := range c.slow {
		for k := range c.slow[i].kept {
			once(c.slow[i].kept[k].trace)
		}
	}
}

// row is a request in a list.
type row struct {
	*summary
	arrived time.Time
}

func (t *trace) row() row { return row{&t.sum, t.arrived} }

// requestColumn is a column that a list can be sorted by, the greatest first.
type requestColumn struct {
	Name, Title string
	Number      bool
	compare     func(a, b row) int
}

var requestColumns = []requestColumn{
	{"arrived", "Arrived", false, func(a, b row) int { return b.arrived.Compare(a.arrived) }},
	{"outcome", "Outcome", false, by(func(r row) string { return r.Outcome })},
	{"ttft", "TTFT", true, by(func(r row) time.Duration { return r.TTFT })},
	{"itl", "ITL", true, by(func(r row) time.Duration { return r.ITL })},
	{"total", "Total", true, by(func(r row) time.Duration { return r.Total })},
	{"queue", "Queue", true, by(func(r row) time.Duration { return r.Queued })},
	{"prompt", "Prompt", true, by(func(r row) int { return r.ISL })},
	{"answer", "Answer", true, by(func(r row) int { return r.OSL })},
	{"cached", "Cached", true, by(func(r row) int { return r.Actual })},
	{"worker", "Prefill → decode", false, by(func(r row) string { return r.Decode.Worker })},
	{"attempts", "Attempts", true, by(func(r row) int { return r.Attempts })},
}

func by[T cmp.Ordered](of func(r row) T) func(a, b row) int {
	return func(a, b row) int { return cmp.Compare(of(b), of(a)) }
}

// query selects finished requests. Empty fields select all.
type query struct {
	id, outcome, model, worker, class, session string
	since, until                               time.Time
	limit                                      int
	order                                      func(a, b row) int
}

// parseQuery reads a query's parameters. Its error names the parameter.
func parseQuery(q url.Values, now time.Time) (s query, param string, err error) {
	r, param, err := observe.ParseRange(url.Values{"since": q["since"], "until": q["until"], "limit": q["limit"]}, now)
	if err != nil {
		return s, param, err
	}
	column := strings.Replace(q.Get("sort"), " ", "+", 1) // a URL has + for a space
	name, reverse := strings.CutPrefix(cmp.Or(column, "arrived"), "+")
	at := slices.IndexFunc(requestColumns, func(c requestColumn) bool { return c.Name == name })
	if at < 0 {
		return s, "sort", fmt.Errorf("there is no column %.40q", name)
	}
	s = query{q.Get("id"), q.Get("outcome"), q.Get("model"), q.Get("worker"), q.Get("class"), q.Get("session"), r.Since, r.Until,
		cmp.Or(r.Limit, shownRequests), requestColumns[at].compare}
	if reverse {
		s.order = func(a, b row) int { return requestColumns[at].compare(b, a) }
	}
	return s, "", nil
}

// fits reports whether a finished request is selected. session is the digest of the query's.
func (q *query) fits(t *trace, session uint64) bool {
	s := &t.sum
	outcome := q.outcome == "" || q.outcome == s.Outcome
	switch q.outcome {
	case "failed":
		outcome = t.kind == failed
	case "refused":
		outcome = t.kind == refusedOrLeft && s.Outcome != fault.ClientGone.String()
	}
	return outcome && (q.id == "" || t.id == q.id || t.name == q.id) && (q.model == "" || t.model == q.model) &&
		(q.worker == "" || s.Prefill.Worker == q.worker || s.Decode.Worker == q.worker || t.met(q.worker)) &&
		(q.class == "" || s.Class == q.class) && (q.session == "" || s.session == session) &&
		!t.arrived.Before(q.since) && (q.until.IsZero() || !t.arrived.After(q.until))
}

// met reports whether a worker was called.
func (t *trace) met(worker string) bool {
	return slices.ContainsFunc(t.steps, func(s Step) bool { return s.Worker == worker })
}

// find returns the selected requests, how many are stored, and how many of them fit. While it looks it
// stores as many as the limit, so that recording waits for one comparison a request.
func (c *Recorder) find(q *query) (found []Request, kept, fit int) {
	session := c.session(q.session)
	best := make([]*trace, 0, q.limit+1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.each(func(t *trace) {
		kept++
		if !q.fits(t, session) {
			return
		}
		if fit++; len(best) == q.limit && q.order(t.row(), best[q.limit-1].row()) >= 0 {
			return
		}
		at, _ := slices.BinarySearchFunc(best, t, func(e, t *trace) int {
			if q.order(e.row(), t.row()) <= 0 { // after its equals
				return -1
			}
			return 1
		})
		best = slices.Insert(best, at, t)
		best = best[:min(len(best), q.limit)]
	})
	found = make([]Request, 0, len(best))
	for _, t := range best {
		found = append(found, t.copied())
	}
	return found, kept, fit
}

// use formats how much is stored, for the page.
func (c *Recorder) use() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	sum := 0
	for i := range c.shelves {
		sum += c.shelves[i].bytes
	}
	return strconv.FormatFloat(float64(sum)/(1<<20), 'f', 1, 64) + " of 16 MiB"
}
