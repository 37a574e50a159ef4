package queue

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// twinTurns is deficit round robin written slowly: it goes round the ring until a class can pay.
type twinTurns struct {
	quanta      []int64 // nil without classes
	paid, drain twinCredit
	undo        twinCredit // drain before the latest choice
	ahead       bool
}

type twinCredit struct {
	of     []int64
	at     int
	earned bool
}

func newTwinTurns(c *Classes) (d twinTurns) {
	if c != nil {
		for _, p := range c.List {
			d.quanta = append(d.quanta, int64(p.Quantum))
		}
	}
	d.paid.of = make([]int64, len(d.quanta))
	return d
}

func (c twinCredit) clone() twinCredit { return twinCredit{slices.Clone(c.of), c.at, c.earned} }

func (d *twinTurns) begin() { d.drain, d.ahead = d.paid.clone(), false }

// choose goes on with the drain's ring until one of the classes can pay its cost.
func (d *twinTurns) choose(costs map[int]int64) int {
	for {
		k := d.drain.at
		cost, there := costs[k]
		if there && d.drain.of[k] < cost && !d.drain.earned {
			d.drain.of[k] += d.quanta[k]
			d.drain.earned = true
		}
		if there && d.drain.of[k] >= cost {
			return k
		}
		d.drain.at, d.drain.earned = (k+1)%len(d.quanta), false
	}
}

func (d *twinTurns) pay(it Item, granted bool) {
	if d.quanta == nil || it.Retry {
		return
	}
	cost := twinCost(it)
	d.drain.of[it.Class] -= cost
	switch {
	case !granted:
		d.ahead = true
	case d.ahead:
		d.paid.of[it.Class] = max(d.paid.of[it.Class]-cost, -16*max(cost, d.quanta[it.Class]))
	default:
		d.paid = d.drain.clone()
	}
}

func twinCost(it Item) int64 {
	if it.Slice > 0 && float64(it.Uncached) > 1.5*float64(it.Slice) {
		return int64(it.Slice)
	}
	return int64(max(1, it.Uncached))
}

// next is the ticket to ask of those that may be.
func (q *twin) next(may func(t *twinTicket) bool) *twinTicket {
	first := map[int]*twinTicket{}
	var all []*twinTicket
	q.turns.undo = q.turns.drain.clone()
	for _, t := range slices.SortedFunc(slices.Values(q.line), twinOrder) {
		if may(t) && first[t.it.Class] == nil {
			first[t.it.Class] = t
			all = append(all, t)
		}
	}
	switch {
	case len(all) == 0:
		return nil
	case q.turns.quanta == nil:
		return all[0]
	}
	slices.SortFunc(all, func(a, b *twinTicket) int {
		if a.it.Retry != b.it.Retry {
			return map[bool]int{true: -1, false: 1}[a.it.Retry]
		}
		return cmp.Or(-cmp.Compare(a.it.Strict, b.it.Strict), a.it.Arrival.Compare(b.it.Arrival), a.number-b.number)
	})
	if all[0].it.Retry {
		return all[0]
	}
	costs := map[int]int64{}
	for _, t := range all {
		if !t.it.Retry && t.it.Strict == all[0].it.Strict {
			costs[t.it.Class] = twinCost(t.it)
		}
	}
	return first[q.turns.choose(costs)]
}

// forfeit takes the credit of classes without requests.
func (q *twin) forfeit() {
	for k := range q.turns.quanta {
		if !slices.ContainsFunc(q.line, func(t *twinTicket) bool { return t.it.Class == k }) {
			q.turns.paid.of[k] = 0
			if q.turns.drain.of != nil {
				q.turns.drain.of[k] = 0
			}
		}
	}
}

// classFits reports whether t's class has a place and bytes left of its share.
func (q *twin) classFits(t *twinTicket) bool {
	if q.cfg.Classes == nil {
		return true
	}
	var sum, n int
	var bytes int64
	for _, p := range q.cfg.Classes.List {
		sum += p.Quantum
	}
	for _, o := range q.line {
		if !o.fresh && o.it.Class == t.it.Class {
			n++
			bytes += o.it.Bytes
		}
	}
	quantum := q.cfg.Classes.List[t.it.Class].Quantum
	return n < share(q.cfg.Limit, quantum, sum) && (n == 0 || bytes+t.it.Bytes <= int64(share(int(q.cfg.Bytes), quantum, sum)))
}

// twinClasses are two to four classes of one bucket, each a family of its own.
func twinClasses(rng *rand.Rand) *Classes {
	c := &Classes{DefaultFamily: "0", Buckets: []Bucket{{0, "all"}}}
	for k := range 2 + rng.IntN(3) {
		c.List = append(c.List, PolicyClass{Name: fmt.Sprint("class", k), Family: fmt.Sprint(k), Bucket: "all", Quantum: 1 + rng.IntN(400)})
	}
	return c
}

// TestTurnsAgainstTwin has classes come and go at random, and what they ask granted or only planned.
func TestTurnsAgainstTwin(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 8))
		classes := twinClasses(rng)
		slow := newTwinTurns(classes)
		fast := newTurns(slow.quanta)
		slow.begin()
		for step := range 300 {
			if rng.IntN(6) == 0 {
				fast.restart()
				slow.begin()
			}
			if k := rng.IntN(len(slow.quanta)); rng.IntN(9) == 0 {
				fast.empty(k)
				slow.paid.of[k], slow.drain.of[k] = 0, 0
			}
			costs := map[int]int64{}
			for k := range fast.costs {
				fast.costs[k] = absent
				if rng.IntN(3) > 0 {
					costs[k] = int64(1 + rng.IntN(3000))
					fast.costs[k] = costs[k]
				}
			}
			if len(costs) == 0 {
				continue
			}
			want := slow.choose(costs)
			require.Equal(t, want, fast.choose(), "seed %d step %d: class N is next, the twin", seed, step)
			granted := rng.IntN(2) == 0
			fast.pay(want, costs[want], granted)
			slow.pay(Item{Class: want, Uncached: int(costs[want])}, granted)
			require.True(t, slices.Equal(fast.paid.of, slow.paid.of) && slices.Equal(fast.drain.of, slow.drain.of),
				"seed %d step %d: credits %v %v, the twin has %v %v", seed, step, fast.paid, fast.drain, slow.paid, slow.drain)
		}
	}
}
