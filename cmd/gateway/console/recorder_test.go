package console

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/router"
)

// deaf is an observer that keeps nothing.
type deaf struct{}

func (deaf) Arrived(*handoff.Record)                                               {}
func (deaf) Understood(*handoff.Record)                                            {}
func (deaf) Queued(*handoff.Record, int)                                           {}
func (deaf) Granted(*handoff.Record, error)                                        {}
func (deaf) LegStarted(*handoff.Record, handoff.Leg) (token func(g time.Duration)) { return nil }
func (deaf) FirstToken(*handoff.Record, handoff.Leg)                               {}
func (deaf) LegEnded(*handoff.Record, handoff.Leg)                                 {}
func (deaf) Failed(*handoff.Record, *fault.Error, handoff.Action)                  {}
func (deaf) Ended(*handoff.Record, error)                                          {}
func (deaf) Released(prefill.KV, string, error)                                    {}
func (deaf) Warmed(string, string)                                                 {}

var (
	prefiller = &pools.Worker{ID: "p1", Model: "m", Role: pools.Prefill}
	decoder   = &pools.Worker{ID: "d1", Model: "m", Role: pools.Decode}
)

// newRecord is a request that has just arrived.
func newRecord(i int) *handoff.Record {
	return &handoff.Record{
		Call: handoff.Call{ID: fmt.Sprintf("client-%d", i), Arrival: time.Now(), Request: &openai.Request{Model: "m", Stream: true}},
		ID:   fmt.Sprintf("own-%d", i), Known: true, ISL: 160, Tokenized: true, BlockSize: 16,
		Hashes: []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10},
	}
}

// staged is what prefill left for decode.
var staged = &handoff.StagedKV{Cached: 80}

// serve takes a request through both legs, again where it has been through them, with the first token after so long.
func serve(c *Recorder, r *handoff.Record, queued, prefills, transfers, decodes time.Duration) {
	r.Mark, r.KV = nil, nil
	c.Explains(0)
	c.Arrived(r)
	c.Understood(r)
	c.Queued(r, 100)
	time.Sleep(queued)
	r.Spent.Queued = queued
	c.Granted(r, nil)
	r.Attempts = 1
	p := handoff.Leg{Worker: prefiller, Began: time.Now()}
	c.LegStarted(r, p)
	time.Sleep(prefills)
	p.First = time.Now()
	c.FirstToken(r, p)
	c.LegEnded(r, p)
	r.KV = staged
	d := handoff.Leg{Worker: decoder, Began: time.Now()}
	r.HandedOver = d.Began
	c.LegStarted(r, d)
	time.Sleep(transfers)
	d.First = time.Now()
	c.FirstToken(r, d)
	time.Sleep(decodes)
	r.Sent = decode.Transcript{Started: true, First: d.First, Last: time.Now(), Tokens: 11, Streamed: 11}
	c.LegEnded(r, d)
	r.Outcome, r.OverlapTokens = fault.None.String(), 64
	c.Ended(r, nil)
}

func TestWayOfARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewRecorder(deaf{})
		serve(c, newRecord(1), 10*time.Millisecond, 200*time.Millisecond, 30*time.Millisecond, time.Second)
		r, ok := c.Find("client-1")
		if own, found := c.Find("own-1"); !ok || !found || own.Name != r.Name {
			t.Fatal("it is not found by both of its names")
		}
		if r.TTFT != 240*time.Millisecond || r.Total != 1240*time.Millisecond || r.ITL != 100*time.Millisecond ||
			r.Transfer != 30*time.Millisecond ||
			r.Predicted != 64 || r.Actual != 80 || r.Hit() != .5 || r.Expected() != .4 {
			t.Errorf("the summary is %+v", r.summary)
		}
		var way []string
		for _, b := range r.bars(time.Now()) {
			way = append(way, fmt.Sprintf("%s %s %v+%v %.0f", b.Kind, b.Worker, b.From, b.Took, b.X))
		}
		want := []string{"queue  0s+10ms 0", "prefill p1 10ms+200ms 8", "transfer d1 210ms+30ms 169", "decode d1 240ms+1s 194"}
		assert.True(t, slices.Equal(way, want), "got  %q\nwant %q", way, want)
	})
}

// The first token of an answer that is not streamed is not known: its decode is one bar, it counts as in decode, and
// neither the charts nor the slowest requests take its end for its TTFT.
func TestWayOfAWholeAnswer(t *testing.T) {
	for _, handed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			c, r := NewRecorder(deaf{}), newRecord(1)
			r.Call.Request.Stream = false
			c.Arrived(r)
			r.Attempts = 1
			if handed {
				r.KV = staged
			}
			d := handoff.Leg{Worker: decoder, Began: time.Now()}
			r.HandedOver = d.Began
			c.LegStarted(r, d)
			time.Sleep(100 * time.Millisecond)
			if n := c.phases(); n[Decoding] != 1 {
				t.Errorf("handed %v: the phases are %v, want it in decode", handed, n)
			}
			d.First = time.Now()
			c.FirstToken(r, d)
			r.Sent = decode.Transcript{Started: true, First: d.First, Last: d.First, Tokens: 8}
			c.LegEnded(r, d)
			r.Outcome = fault.None.String()
			c.Ended(r, nil)
			got, _ := c.Find("own-1")
			want := map[bool]string{true: "Transfer and decode", false: "Prefill and decode"}[handed]
			if bars := got.bars(time.Now()); len(bars) != 1 || bars[0].Kind != "decode" || bars[0].Label != want ||
				bars[0].Took != 100*time.Millisecond {
				t.Errorf("handed %v: the bars are %+v", handed, bars)
			}
			assert.True(t, got.TTFT == 0 && got.ITL == 0 && got.Transfer == 0 && got.Total == 100*time.Millisecond,
				"handed %v: TTFT %v, ITL %v, transfer %v, total %v", handed, got.TTFT, got.ITL, got.Transfer, got.Total)
			if m := c.models["m"]; m.now.ended != 1 || m.now.ttft != (latencies{}) {
				t.Errorf("handed %v: its end counts as a TTFT", handed)
			}
			assert.True(t, c.slow[0].kept[0].trace == nil && c.slow[2].kept[0].trace != nil, "handed %v: it is one of the slowest by TTFT", handed)
		})
	}
}

// A retry has its failure, and the steps of both attempts.
func TestWayOfARetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := NewRecorder(deaf{}), newRecord(1)
		c.Arrived(r)
		r.Attempts = 1
		d := handoff.Leg{Worker: decoder, Began: time.Now()}
		c.LegStarted(r, d)
		time.Sleep(50 * time.Millisecond)
		if live, ok := c.Find("own-1"); !ok || live.Phase == Over || !live.bars(time.Now())[0].Lasts {
			t.Error("a request in flight is not shown as one")
		}
		c.LegEnded(r, d)
		c.Failed(r, &fault.Error{Class: fault.Reset, Leg: pools.Decode, Worker: "d1"}, handoff.Again)
		r.Attempts = 2
		d = handoff.Leg{Worker: &pools.Worker{ID: "d2", Role: pools.Decode}, Began: time.Now()}
		c.LegStarted(r, d)
		time.Sleep(50 * time.Millisecond)
		c.LegEnded(r, d)
		r.Outcome = fault.Reset.String()
		c.Ended(r, errors.New("reset"))
		got, _ := c.Find("own-1")
		if bars := got.bars(time.Now()); len(bars) != 2 || bars[0].Failed != fault.Reset.String() || bars[0].Action != handoff.Again.String() ||
			bars[0].Took != 50*time.Millisecond || bars[1].Attempt != 2 || got.OK() {
			t.Errorf("%+v", bars)
		}
		r = newRecord(2) // as many steps are kept as fit
		c.Arrived(r)
		for range 40 {
			c.LegStarted(r, d)
			c.LegEnded(r, d)
		}
		c.Ended(r, nil)
		if got, _ := c.Find("own-2"); len(got.Steps) != maxSteps || got.Dropped != 40-maxSteps {
			t.Errorf("%d steps are kept and %d dropped", len(got.Steps), got.Dropped)
		}
	})
}

// More requests in flight than are followed are counted all the same.
func TestMoreThanAreFollowed(t *testing.T) {
	c := NewRecorder(deaf{})
	var all []*handoff.Record
	for i := range maxLive + 10 {
		r := newRecord(i)
		c.Arrived(r)
		all = append(all, r)
	}
	require.True(t, len(c.live) == maxLive && c.made < maxLive+64, "%d are followed in the memory of %d", len(c.live), c.made)
	for _, r := range all {
		r.Outcome = fault.None.String()
		c.Ended(r, nil)
	}
	if m := c.models["m"]; m.now.arrived != maxLive+10 || m.now.ended != maxLive+10 || len(c.live) != 0 {
		t.Errorf("%d arrived and %d ended; %d are followed", m.now.arrived, m.now.ended, len(c.live))
	}
}

// A request of a model that no worker serves leaves no trace: its name is a client's text.
func TestUnknownModels(t *testing.T) {
	c, r := NewRecorder(deaf{}), newRecord(1)
	r.Known = false
	c.Ended(r, errors.New("no such model"))
	assert.True(t, len(c.models) == 0 && c.shelves[refusedOrLeft].n == 0, "it is counted")
	for i := range 2 * maxModels {
		r := newRecord(i)
		r.Call.Request.Model = fmt.Sprint("m", i)
		c.Arrived(r)
		c.Ended(r, nil)
	}
	assert.True(t, len(c.models) == maxModels+1 && c.models[otherModels].now.ended == maxModels,
		"%d models have figures", len(c.models))
}

// Retries are explained, and first choices as far as the second allows.
func TestExplains(t *testing.T) {
	c, r := NewRecorder(deaf{}), newRecord(1)
	assert.True(t, c.Explains(0), "the first choice is not explained")
	r.Prefill.Why.Terms = make([]router.Term, termsPerSecond)
	c.Ended(r, nil)
	assert.True(t, !c.Explains(0) && c.Explains(1), "choices are still explained, or retries are not")
}

// Ways are drawn only while a page is open, and a request that is over is handed out once more.
func TestDrawnRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewRecorder(deaf{})
		c.Arrived(newRecord(1))
		assert.Zero(t, len(c.flights()), "are drawn for no page")
		c.Watch(true)
		var all []*handoff.Record
		arrive := func(n int, every time.Duration) {
			for range n {
				r := newRecord(len(all))
				c.Arrived(r)
				all = append(all, r)
				time.Sleep(every)
			}
		}
		arrive(10*maxDrawn, drawnEvery/10)
		assert.Equal(t, maxDrawn, len(c.flights()), "of many a second N are drawn")
		for _, r := range all {
			c.Ended(r, nil)
		}
		if first, second := len(c.flights()), len(c.flights()); first != maxDrawn || second != 0 {
			t.Errorf("of those that are over %d are drawn, and then %d", first, second)
		}
		arrive(2*maxDrawn, drawnEvery)
		assert.Equal(t, maxDrawn, len(c.flights()), "are drawn at a time")
	})
}

// A drawn path has each node once, with when the request left for it and how long its KV took.
func TestDrawnWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewRecorder(deaf{})
		c.Watch(true)
		serve(c, newRecord(1), 10*time.Millisecond, 200*time.Millisecond, 30*time.Millisecond, time.Second)
		retried := newRecord(2)
		c.Arrived(retried)
		c.Queued(retried, 1)
		for _, w := range []*pools.Worker{decoder, {ID: "d2", Model: "m", Role: pools.Decode}} {
			time.Sleep(5 * time.Millisecond)
			retried.Attempts++
			retried.Spent.Queued += 5 * time.Millisecond
			d := handoff.Leg{Worker: w, Began: time.Now()}
			c.LegStarted(retried, d)
			time.Sleep(20 * time.Millisecond)
			c.LegEnded(retried, d)
		}
		s := snapshot{at: time.Now(), drawn: c.flights()}
		for i, want := range [][]event{
			{{Node: "queue"}, {Node: "p1", At: 10}, {Node: "d1", At: 210, Took: 30}, {Node: "client", At: 1240}},
			{{Node: "queue"}, {Node: "d1", At: 5}, {Node: "queue", At: 25}, {Node: "d2", At: 30}},
		} {
			if got := s.flights()[i].Way; !slices.Equal(got, want) {
				t.Errorf("got  %v\nwant %v", got, want)
			}
		}
	})
}

func TestQuantiles(t *testing.T) {
	var l latencies
	if !math.IsNaN(l.quantile(.5)) {
		t.Errorf("the median of nothing is %v", l.quantile(.5))
	}
	for ms := 1; ms <= 1000; ms++ {
		l.add(time.Duration(ms) * time.Millisecond)
	}
	for q, want := range map[float64]float64{.5: .5, .9: .9, .99: .99} {
		if got := l.quantile(q); math.Abs(got-want) > .09*want {
			t.Errorf("the %v quantile is %v, want %v", q, got, want)
		}
	}
	l = latencies{}
	l.add(0)
	l.add(time.Hour)
	if low, high := l.quantile(.4), l.quantile(1); low > .001 || high < 20 {
		t.Errorf("the extremes are %v and %v", low, high)
	}
}

// Figures stay within a quarter of an hour, and within their memory.
func TestPoints(t *testing.T) {
	m := &modelStats{name: "m"}
	at := time.Unix(1_700_000_000, 0)
	ended := summary{Outcome: fault.None.String(), TTFT: 100 * time.Millisecond, ISL: 100, Predicted: 50, Actual: 25}
	for range 3 * maxPoints {
		m.count(&ended, false)
		m.count(&summary{Outcome: "server_is_overloaded", Actual: -1}, true)
		at = at.Add(pointEvery)
		m.sample(observe.Streams{}, 7, at)
	}
	if n := len(m.points); n != maxPoints || cap(m.points) > 2*maxPoints {
		t.Errorf("%d points are kept", n)
	}
	p := m.points[maxPoints-1]
	if p.requests != .4 || p.refused != .2 || p.hits != .25 || p.predicted != .5 || p.waiting != 7 || !math.IsNaN(p.itl50) ||
		math.Abs(p.ttft50-.1) > .01 {
		t.Errorf("%+v", p)
	}
	sum := m.quarter()
	assert.True(t, sum.ended == 2*maxPoints && sum.refused == maxPoints && sum.hitRate() == .25,
		"%d ended and %d were refused in the quarter", sum.ended, sum.refused)
}

// Families are the prompts that begin alike; their names show no hash, and change with every start.
func TestFamilies(t *testing.T) {
	var f families
	f.init()
	one := newRecord(1)
	s := summary{ISL: 160, Actual: 80, Predicted: 64}
	for range 3 {
		f.count(one, &s, "m")
	}
	other := newRecord(2)
	other.Hashes = []uint64{1, 2, 3, 4, 5, 6, 7, 8, 99}
	f.count(other, &s, "m")
	short := newRecord(3)
	short.Hashes = []uint64{1, 2}
	f.count(short, &s, "m")
	none := newRecord(4)
	none.Hashes = nil
	assert.Zero(t, f.count(none, &s, "m"), "a prompt without a whole block has a family")
	hot := f.hot()
	if len(hot) != 2 || hot[0].requests != 4 || hot[0].shared != 8 || hot[0].isl != 640 || hot[0].actual != 320 || f.revision() != "6" {
		t.Fatalf("%d families: %+v", len(hot), hot)
	}
	var restarted families
	restarted.init()
	if name := f.name(8); name != hot[0].Name || len(name) != 6 || restarted.name(8) == name || strings.Contains(name, "8") && name == "8" {
		t.Errorf("its name is %q", name)
	}
	for i := range 10_000 { // distinct prompts need no extra memory, and the hot family stays
		r := newRecord(i)
		for k := range r.Hashes {
			r.Hashes[k] = uint64(i*1000 + k + 100)
		}
		f.count(r, &s, "m")
		f.count(one, &s, "m")
	}
	if hot := f.hot(); len(hot) > 2*maxFamilies || hot[0].shared != 10 || hot[0].requests != 10_004 {
		t.Errorf("%d families, the hottest of %d requests", len(hot), hot[0].requests)
	}
	f.fade()
	if w := f.hot()[0].weight; w > 5_003 {
		t.Errorf("its weight is %v a minute later", w)
	}
}
