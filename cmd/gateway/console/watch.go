package console

import (
	"context"
	"encoding/json"
	"maps"
	"math"
	"strings"
	"time"
)

// tick is the state sent to pages at one moment. Viewers that had the previous tick get the changes, others
// everything.
type tick struct {
	number  uint64
	next    chan struct{} // closed when there is a later one
	live    map[string]string
	changed []byte // as text/event-stream
	whole   []byte
}

// message is a tick's event.
type message struct {
	// Live is the changed texts, by their names on the page.
	Live map[string]string `json:"live,omitempty"`
	// Flights are the drawn requests.
	Flights []flight `json:"flights,omitempty"`
	// Revision changes with a page's contents, which it then fetches again.
	Revision map[string]string `json:"revision"`
	// Points are the newest of each model's charts, every five seconds.
	Points map[string][]*float64 `json:"points,omitempty"`
}

// flight is a drawn request: its nodes, and when it left each.
type flight struct {
	Name  string  `json:"name"`
	Model string  `json:"model"`
	Ago   int64   `json:"ago"` // milliseconds since its arrival
	Way   []event `json:"way"`
	Over  bool    `json:"over,omitempty"`
	Bad   bool    `json:"bad,omitempty"`
}

// event is one hop of a flight, in milliseconds: its start after the request's arrival, and the time of its KV
// transfer.
type event struct {
	Node string `json:"node"`
	At   int64  `json:"at"`
	Took int64  `json:"took,omitempty"`
}

// Watch implements [edge.Console].
func (c *Console) Watch() (next func(ctx context.Context) ([]byte, error), leave func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.viewers >= maxViewers {
		return nil, nil, false
	}
	c.viewers++
	c.recorder.Watch(true)
	had := c.latest
	first := true
	return func(ctx context.Context) ([]byte, error) {
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-had.next:
			}
			c.mu.Lock()
			now := c.latest
			c.mu.Unlock()
			follows := now.number == had.number+1 && !first
			had, first = now, false
			if follows {
				return now.changed, nil
			}
			return now.whole, nil
		}, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.viewers--; c.viewers == 0 {
				c.recorder.Watch(false)
			}
		}, true
}

// advance makes the next tick if some page is open.
func (c *Console) advance(now time.Time, sampled bool) {
	c.mu.Lock()
	watched := c.viewers > 0
	c.mu.Unlock()
	if !watched {
		c.workers(now) // records those that leave
		return
	}
	s := c.look(now, true)
	live := s.live()
	m := message{Revision: s.revisions(), Flights: s.flights()}
	m.Revision["events"] = c.src.Journal.Revision()
	if sampled {
		m.Points = c.recorder.newest()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m.Live = maps.Clone(live)
	whole := frame(m)
	bare := m.Live["alarm"] != c.latest.live["alarm"] // a new line comes without ages
	for key, text := range c.latest.live {
		if m.Live[key] == text && !(bare && strings.HasPrefix(key, "alarm.")) {
			delete(m.Live, key)
		}
	}
	t := &tick{number: c.latest.number + 1, next: make(chan struct{}), live: live, changed: frame(m), whole: whole}
	close(c.latest.next)
	c.latest = t
}

// frame encodes m as an event.
func frame(m message) []byte {
	b, err := json.Marshal(m)
	if err != nil {
		return []byte(": the event cannot be encoded\n\n") // no NaN is left in it
	}
	return append(append([]byte("data: "), b...), "\n\n"...)
}

// newest returns the latest points of all models.
func (c *Recorder) newest() map[string][]*float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string][]*float64{}
	for name, m := range c.models {
		if n := len(m.points); n > 0 {
			all[name] = m.points[n-1].values()
		}
	}
	return all
}

// values returns a point's figures in the order of the charts, the time in seconds first; unknown ones are nil.
func (p *point) values() []*float64 {
	at := seconds(p.at)
	all := []*float64{&at}
	for _, v := range []float64{
		p.ttft50, p.ttft99, p.itl50, p.itl99, p.requests, p.tokens, p.refused, p.failed, p.hits, p.predicted, float64(p.waiting),
	} {
		if math.IsNaN(v) {
			all = append(all, nil)
			continue
		}
		v = math.Round(v*1e5) / 1e5
		all = append(all, &v)
	}
	return all
}
