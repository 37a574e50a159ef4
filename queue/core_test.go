package queue

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/internal/setting"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

var errNoFit = errors.New("fits no worker")

// twin is the queue written slowly and plainly: a slice that is sorted whenever anybody looks.
type twin struct {
	cfg   Config
	order Order
	line  []*twinTicket
	sent  []string // what became of whom
	turns twinTurns
}

type twinTicket struct {
	it     Item
	key    float64
	number int
	pushed time.Time
	fresh  bool
}

func (q *twin) push(it Item, number int, now time.Time) {
	t := &twinTicket{it: it, key: q.order.Key(it, now), number: number, pushed: now, fresh: true}
	if (q.kept("", nil) > 0 || q.kept(it.Lane, nil) > 0) && !q.fits(t) {
		q.sent = append(q.sent, it.ID+" full")
		return
	}
	q.line = append(q.line, t)
}

// kept counts those of a lane that have to wait, and weighs their bodies.
func (q *twin) kept(lane string, sum *int64) (n int) {
	for _, t := range q.line {
		if !t.fresh && t.it.Lane == lane {
			n++
			if sum != nil {
				*sum += t.it.Bytes
			}
		}
	}
	return n
}

func (q *twin) fits(t *twinTicket) bool {
	var bytes, inLane int64
	n := 0
	for _, lane := range twinLanes {
		n += q.kept(lane, &bytes)
	}
	if t.it.Retry {
		return true
	}
	if n >= q.cfg.Limit && q.cfg.Classes == nil || bytes+t.it.Bytes > q.cfg.Bytes || !q.classFits(t) {
		return false
	}
	n = q.kept(t.it.Lane, &inLane)
	return t.it.Lane == "" || n == 0 || n < (q.cfg.Limit+1)/2 && inLane+t.it.Bytes <= q.cfg.Bytes/2
}

func (q *twin) Expire(now time.Time) {
	for _, t := range slices.Clone(q.line) { // in the order of push
		if now.Sub(t.pushed) >= q.cfg.Timeout {
			q.take(t, "expired")
		}
	}
}

func (q *twin) take(t *twinTicket, what string) {
	q.sent = append(q.sent, t.it.ID+" "+what)
	q.line = slices.DeleteFunc(q.line, func(o *twinTicket) bool { return o == t })
	q.forfeit()
}

func (q *twin) cancel(id string) {
	q.line = slices.DeleteFunc(q.line, func(t *twinTicket) bool { return t.it.ID == id })
	q.forfeit()
}

func (q *twin) drain(now time.Time, ask func(it Item, ahead []twinAsk) string) {
	q.Expire(now)
	if q.order.Ages() {
		for _, t := range q.line {
			t.key = q.order.Key(t.it, now)
		}
	}
	held, asked := map[string]bool{}, map[*twinTicket]bool{}
	var ahead []twinAsk
	q.turns.begin()
	for !held[""] {
		t := q.next(func(t *twinTicket) bool { return !asked[t] && !held[t.it.Lane] })
		if t == nil {
			break
		}
		asked[t] = true
		switch what := ask(t.it, ahead); what {
		case "waits":
		case "later":
			q.turns.pay(t.it, false)
			continue
		default:
			if what == "granted" && !t.it.Retry {
				q.turns.pay(t.it, true)
			} else {
				q.turns.drain = q.turns.undo
			}
			q.take(t, what)
			continue
		}
		q.turns.drain = q.turns.undo
		held[t.it.Lane] = true
		if t.it.Lane != "" {
			ahead = append(ahead, twinAsk{lane: t.it.Lane})
		}
	}
	for _, t := range slices.Clone(q.line) {
		if !t.fresh {
			continue
		}
		if !q.fits(t) {
			q.take(t, "full")
		}
		t.fresh = false
	}
}

// twinLanes are the lanes of the test; each but the first has a worker of that name.
var twinLanes = []string{"", "A", "B", "C"}

// twinAsk is what a ticket of the test needs, and of which worker.
type twinAsk struct {
	needs int
	lane  string
}

// twinRooms is the room at each worker.
type twinRooms map[string]int

// needsLater is the need of tickets that hold up none while there is less room than that.
const needsLater = 5

// ask books for a request where it may run and nothing is claimed.
func (r twinRooms) ask(needs int, it Item, ahead []twinAsk) string {
	switch {
	case needs < 0:
		return "failed"
	case needs == needsLater && r[""] < needsLater:
		return "later"
	}
	for _, worker := range twinLanes {
		if (it.Lane == "" || it.Lane == worker) && needs <= r[worker] &&
			!slices.ContainsFunc(ahead, func(o twinAsk) bool { return o.lane == worker }) {
			r[worker] -= needs
			return "granted"
		}
	}
	return "waits"
}

func twinOrder(a, b *twinTicket) int {
	if a.it.Retry != b.it.Retry {
		return map[bool]int{true: -1, false: 1}[a.it.Retry]
	}
	if a.it.Strict != b.it.Strict {
		return cmp.Compare(b.it.Strict, a.it.Strict)
	}
	return cmp.Or(cmp.Compare(a.key, b.key), a.it.Arrival.Compare(b.it.Arrival), a.number-b.number)
}

// TestCoreAgainstTwin gives both the same random life and wants the same fates in the same order, and the same queue.
func TestCoreAgainstTwin(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 3))
		cfg := Config{
			Policy: Orders()[rng.IntN(len(Orders()))], Limit: rng.IntN(12), Timeout: time.Duration(1+rng.IntN(20)) * time.Second,
			Bytes: int64(1 + rng.IntN(2000)),
		}
		if seed%3 == 0 {
			cfg.Classes = twinClasses(rng)
		}
		var sent []string
		core := newCore(t, cfg, func(t *Ticket[twinAsk], err error) { sent = append(sent, t.ID+" "+fate(err)) })
		slow := &twin{cfg: cfg, order: core.classes[0].order, turns: newTwinTurns(cfg.Classes)}
		now, room, left := start, twinRooms{}, uint64(0)
		tickets := make(map[string]*Ticket[twinAsk])
		needs := func(id string) int { return tickets[id].Value.needs }
		drain := func() {
			roomToo := maps.Clone(room)
			core.Drain(now, func(t *Ticket[twinAsk], d Drain[twinAsk]) error {
				switch room.ask(needs(t.ID), t.Item, d.Ahead) {
				case "waits":
					return ErrWait
				case "later":
					return fmt.Errorf("wrapped: %w", &laterError{})
				case "failed":
					return errNoFit
				}
				return nil
			})
			slow.drain(now, func(it Item, ahead []twinAsk) string { return roomToo.ask(needs(it.ID), it, ahead) })
		}
		for step := range 200 {
			switch rng.IntN(8) {
			case 0, 1, 2:
				it := Item{
					ID: fmt.Sprint(step), Priority: float64(rng.IntN(5) - 1), Strict: uint32(rng.IntN(40) / 38), Uncached: rng.IntN(4) * 100,
					ISL: 400, Bytes: int64(rng.IntN(400)), Arrival: now.Add(-time.Duration(rng.IntN(3)) * time.Second), Retry: rng.IntN(10) == 0,
				}
				if seed%2 == 0 {
					it.Lane = twinLanes[rng.IntN(len(twinLanes))]
				}
				if cfg.Classes != nil {
					it.Class, it.Slice = rng.IntN(len(cfg.Classes.List)), rng.IntN(3)*64
				}
				tickets[it.ID] = &Ticket[twinAsk]{Item: it, Value: twinAsk{rng.IntN(7) - 1, it.Lane}}
				if err := core.Push(tickets[it.ID], now); err != nil {
					sent = append(sent, it.ID+" "+fate(err))
				}
				slow.push(it, step, now)
			case 3:
				if waiting := core.Waiting(); len(waiting) > 0 {
					id := waiting[rng.IntN(len(waiting))].ID
					core.cancel(tickets[id], now)
					slow.cancel(id)
					left++
				}
			case 4:
				now = now.Add(time.Duration(rng.IntN(4000)) * time.Millisecond)
			case 5:
				room = twinRooms{"": rng.IntN(6)}
				if seed%2 == 0 {
					room[twinLanes[rng.IntN(len(twinLanes))]] += rng.IntN(6)
				}
				drain()
			case 6:
				core.Expire(now)
				slow.Expire(now)
			default:
				drain()
			}
			require.True(t, slices.Equal(sent, slow.sent),
				"seed %d step %d %+v: fates\n%v, the twin has\n%v", seed, step, cfg, sent, slow.sent)
			require.Equal(t, slow.waiting(), waiting(core), "seed %d step %d %+v: waiting", seed, step, cfg)
		}
		fates, s := map[string]uint64{}, core.Stats(now)
		for _, sent := range slow.sent {
			_, what, _ := strings.Cut(sent, " ")
			fates[what]++
		}
		require.Equal(t, [5]uint64{fates["granted"], fates["failed"], fates["full"], fates["expired"], left},
			[5]uint64{s.GrantedTotal, s.FailedTotal, s.RefusedTotal, s.ExpiredTotal, s.CancelledTotal}, "seed %d: totals", seed)
	}
}

// fate is an error of the queue in a word.
func fate(err error) string {
	switch {
	case err == nil:
		return "granted"
	case isFull(err):
		return "full"
	case errors.Is(err, ErrExpired):
		return "expired"
	}
	return "failed"
}

func waiting(c *Core[twinAsk]) string {
	var b strings.Builder
	var s Stats
	for _, t := range c.Waiting() {
		fmt.Fprintf(&b, "%s ", t.ID)
		s.add(&t.Item, 1)
	}
	fmt.Fprintf(&b, "bytes=%d next=%v", s.WaitingBytes, c.NextWake())
	got := c.Stats(start)
	if s.Waiting = c.Len(); s.Waiting != got.Waiting || s.WaitingBytes != got.WaitingBytes ||
		s.WaitingTokens != got.WaitingTokens || s.WaitingUncachedTokens != got.WaitingUncachedTokens {
		fmt.Fprintf(&b, " and stats %+v for %+v", got, s)
	}
	return b.String()
}

func (q *twin) waiting() string {
	var b strings.Builder
	bytes := int64(0)
	for _, t := range slices.SortedFunc(slices.Values(q.line), twinOrder) {
		fmt.Fprintf(&b, "%s ", t.it.ID)
		bytes += t.it.Bytes
	}
	next := time.Time{}
	if len(q.line) > 0 {
		next = q.line[0].pushed.Add(q.cfg.Timeout)
	}
	fmt.Fprintf(&b, "bytes=%d next=%v", bytes, next)
	return b.String()
}

// TestPushAmidADrain: who comes while others are asked is not refused before it is clear that it has to wait.
func TestPushAmidADrain(t *testing.T) {
	var sent []string
	cfg := DefaultConfig()
	cfg.Limit = 1
	core := newCore(t, cfg, func(t *Ticket[twinAsk], err error) { sent = append(sent, t.ID+" "+fate(err)) })
	push := func(id string) {
		if err := core.Push(&Ticket[twinAsk]{Item: Item{ID: id}}, start); err != nil {
			sent = append(sent, id+" "+fate(err))
		}
	}
	push("a")
	core.Drain(start, func(_ *Ticket[twinAsk], d Drain[twinAsk]) error { return ErrWait }) // a waits, and the queue is full
	push("b")
	a := core.next(start)
	push("c")
	push("d")
	push("e")
	core.finish(a, nil, start)
	core.finish(core.next(start), nil, start)
	core.stop(start) // d takes the one place
	push("f")
	assert.Equal(t, []string{"b full", "a granted", "c granted", "e full", "f full"}, sent)
}

// Waiting is all tickets in the queue, the next one first. It sorts a copy.
func (c *Core[V]) Waiting() []*Ticket[V] {
	var all []*Ticket[V]
	for _, l := range c.lanes {
		all = append(all, slices.Concat(l.lines...)...)
	}
	slices.SortFunc(all, func(a, b *Ticket[V]) int { return map[bool]int{true: -1, false: 1}[a.before(b)] })
	return all
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return setting.Default[Config]() }

// newCore is a core that began at start.
func newCore[V any](t testing.TB, cfg Config, ended func(*Ticket[V], error)) *Core[V] {
	t.Helper()
	core, err := NewCore(cfg, start, ended)
	require.NoError(t, err)
	return core
}

// push has tickets come that are taken in.
func push[V any](t testing.TB, core *Core[V], now time.Time, tickets ...*Ticket[V]) {
	t.Helper()
	for _, ticket := range tickets {
		require.NoError(t, core.Push(ticket, now))
	}
}

func isFull(err error) bool {
	_, full := errors.AsType[*FullError](err)
	return full
}
