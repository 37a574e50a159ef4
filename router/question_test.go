package router

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

// asker is a router of one of three gateways, whose owners can all be asked, with a worker of its own and one of another's.
type asker struct {
	*Router
	others *others
	pool   *pools.Pool
	mine   string
	theirs string
	owner  string // of theirs
	turn   int
}

func newAsker(t *testing.T, blocks, seqs int) *asker {
	t.Helper()
	a := &asker{others: &others{group: groupOf(3, 0)}}
	a.others.asks = a.others.group.Names[1:]
	cfg := DefaultConfig().For(pools.Decode)
	cfg.OnBooking = func(bool) {}
	a.Router = withPeers(t, cfg, nil, a.others)
	a.pool = poolOf(pools.Decode, worker("a", blocks, seqs, 0), worker("b", blocks, seqs, 0), worker("c", blocks, seqs, 0))
	for i, own := range a.core.owns(a.see(a.pool)) {
		if id := a.pool.Members[i].Worker.ID; own {
			a.mine = id
		} else {
			a.theirs, a.owner = id, a.core.owned.owners[i]
		}
	}
	return a
}

// book books so many blocks on a worker.
func (a *asker) book(id string, blocks int) (*Lease, error) {
	a.turn++
	return a.Reserve(a.pool, Request{ID: fmt.Sprint(a.turn), ISL: 16 * blocks, Pin: &Pin{Worker: id}}, noon)
}

// hear has a peer book so many blocks, in as many requests, on a worker in all.
func (a *asker) hear(id string, blocks, requests int) {
	a.Hear("gateway-1", []load.Shared{{Worker: id, Share: load.Share{Account: load.Account{ActiveBlocks: blocks, Requests: requests}}}}, noon)
}

// said is what has changed of this gateway's share of a worker.
func (a *asker) said(id string) (all []load.Account) {
	a.Changes(noon, func(s load.Shared) {
		if s.Worker == id {
			all = append(all, s.Account)
		}
	})
	return all
}

// TestTheOwnerIsAskedForTheLastRoom: a booking has a question where the others' of the same moment might not fit as well, and
// nowhere else.
func TestTheOwnerIsAskedForTheLastRoom(t *testing.T) {
	for _, c := range []struct {
		name   string
		used   int // blocks of 100
		inUse  int // sequences of 40
		need   int
		unseen float64
		mine   bool
		change func(o *others)
		asks   bool
	}{
		{"an empty worker", 0, 0, 3, 0, false, nil, false},
		{"half of it is left", 46, 1, 3, 50, false, nil, false},
		{"room for two more", 91, 1, 2, 0, false, nil, false}, // 93 with it, and 97 with two more of theirs
		{"no room for two more", 94, 1, 2, 0, false, nil, true},
		{"the last room", 95, 1, 4, 0, false, nil, true},
		{"more are unseen", 80, 1, 2, 6, false, nil, false},
		{"too many are unseen", 80, 1, 2, 7, false, nil, true},
		{"a prompt that takes a worker whole", 0, 0, 99, 0, false, nil, true},
		{"an own worker", 95, 1, 4, 9, true, nil, false},
		{"the last sequence", 50, 39, 1, 0, false, nil, true},
		{"sequences for two more", 50, 37, 1, 0, false, nil, false},
		{"the owner cannot be asked", 95, 1, 4, 0, false, func(o *others) { o.asks = nil }, false},
		{"no peer is heard", 95, 1, 4, 0, false, func(o *others) { o.cutOff = true }, false},
		{"alone", 95, 1, 4, 0, false, func(o *others) { o.group = groupOf(1, 0) }, false},
		{"the group is not known", 95, 1, 4, 0, false, func(o *others) { o.group = nil }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAsker(t, 100, 40)
			id := a.theirs
			if c.mine {
				id = a.mine
			}
			a.hear(id, c.used, c.inUse)
			if a.others.unseen = c.unseen; c.change != nil {
				c.change(a.others)
			}
			l, err := a.book(id, c.need)
			if err != nil {
				t.Fatal(err)
			}
			if (l.Question != nil) != c.asks {
				t.Fatalf("question %+v, want one: %v", l.Question, c.asks)
			}
			if q := l.Question; q != nil && (q.Owner != a.owner || q.Model != "m" || q.Role != pools.Decode) {
				t.Errorf("asks %+v, want %s", q, a.owner)
			}
		})
	}
}

// TestTheReserveIsAskedFor: what is withheld from gateways that do not own the worker is theirs to ask for.
func TestTheReserveIsAskedFor(t *testing.T) {
	a := newAsker(t, 100, 0)
	for range 30 {
		l, err := a.book(a.mine, 3) // so that the mean booking is known
		if err != nil {
			t.Fatal(err)
		}
		defer l.Release(noon)
	}
	a.hear(a.theirs, 91, 30)
	a.others.unseen, a.others.asks = 3, nil
	if _, err := a.book(a.theirs, 3); !errors.Is(err, ErrNoRoom) {
		t.Errorf("%v: the reserve is its owner's", err)
	}
	a.others.asks = a.others.group.Names
	if l, err := a.book(a.theirs, 3); err != nil || l.Question == nil {
		t.Errorf("%+v, %v: its owner can be asked", l, err)
	}
}

// TestWhatIsAskedForIsNotKnownYet: until it is sent, a booking takes room here and is in no share; after it, it is as any other.
func TestWhatIsAskedForIsNotKnownYet(t *testing.T) {
	a := newAsker(t, 100, 0)
	a.hear(a.theirs, 80, 1)
	before, err := a.book(a.theirs, 3)
	if err != nil || before.Question != nil {
		t.Fatalf("%+v, %v", before, err)
	}
	share := load.Account{ActiveBlocks: 3, Requests: 1}
	asked, err := a.book(a.theirs, 10)
	if err != nil || asked.Question == nil {
		t.Fatalf("%+v, %v", asked, err)
	}
	if got := a.said(a.theirs); len(got) != 1 || got[0] != share {
		t.Errorf("said %v, want %v", got, share)
	}
	if _, err := a.book(a.theirs, 7); !errors.Is(err, ErrNoRoom) {
		t.Errorf("%v: 93 of 100 are booked here", err)
	}
	asked.Tell()
	asked.Tell() // says no more
	if got := a.said(a.theirs); len(got) != 1 || got[0] != (load.Account{ActiveBlocks: 13, Requests: 2}) {
		t.Errorf("said %v once it is sent", got)
	}
	asked.Release(noon)
	asked.Tell()
	if got := a.said(a.theirs); len(got) != 1 || got[0] != share {
		t.Errorf("said %v once it is released, want %v", got, share)
	}
	untold, err := a.book(a.theirs, 10)
	if err != nil || untold.Question == nil {
		t.Fatalf("%+v, %v", untold, err)
	}
	untold.Release(noon) // its request has left
	if got := a.said(a.theirs); len(got) != 1 || got[0] != share {
		t.Errorf("said %v once it is released untold, want %v", got, share)
	}
	new(Lease).Tell()
	new(Lease).Refuse(noon, noon)
}

// TestSharesWithQuestions enters bookings with and without questions, and ends them in every way: what is known is what was sent.
func TestSharesWithQuestions(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		a := newAsker(t, 100, 0)
		type open struct {
			*Lease
			blocks int
			hidden bool
		}
		var leases []open
		shared := load.Account{}
		for step := range 2000 {
			switch i := rng.IntN(len(leases) + 2); {
			case i >= len(leases):
				blocks := 1 + rng.IntN(12)
				if l, err := a.book(a.theirs, blocks); err == nil {
					leases = append(leases, open{l, blocks, l.Question != nil})
				}
			case rng.IntN(3) == 0:
				leases[i].Tell()
				leases[i].hidden = false
			default:
				leases[i].Release(noon)
				leases = slices.Delete(leases, i, i+1)
			}
			want := load.Account{}
			for _, l := range leases {
				if !l.hidden {
					want = want.Plus(load.Account{ActiveBlocks: l.blocks, Requests: 1})
				}
			}
			for _, s := range a.said(a.theirs) {
				shared = s
			}
			if shared != want {
				t.Fatalf("seed %d, step %d: the share is %+v, want %+v", seed, step, shared, want)
			}
		}
	}
}

// TestRefusedWorkersCountAsFull: for as long as it was said, and for every request.
func TestRefusedWorkersCountAsFull(t *testing.T) {
	a := newAsker(t, 100, 0)
	a.hear(a.theirs, 95, 1)
	l, err := a.book(a.theirs, 4)
	if err != nil || l.Question == nil {
		t.Fatalf("%+v, %v", l, err)
	}
	until := noon.Add(5 * time.Millisecond)
	l.Refuse(noon, until)
	if a.Open() != 0 {
		t.Error("the refused booking is open")
	}
	reserve := func(at time.Time) error {
		a.turn++
		_, err := a.Reserve(a.pool, Request{ID: fmt.Sprint(a.turn), ISL: 16, Pin: &Pin{Worker: a.theirs}}, at)
		return err
	}
	if err := reserve(until.Add(-1)); !errors.Is(err, ErrNoRoom) {
		t.Errorf("%v: its owner has refused", err)
	}
	if l, err := a.Reserve(a.pool, Request{ID: "other", ISL: 64}, noon); err != nil || l.Worker.ID == a.theirs {
		t.Errorf("%+v, %v: others have room", l, err)
	}
	if err := reserve(until); err != nil {
		t.Errorf("%v: the refusal has ended", err)
	}
}

// TestOverbooked: by what all gateways have booked, as a choice would see it.
func TestOverbooked(t *testing.T) {
	a := newAsker(t, 100, 40)
	for _, c := range []struct {
		blocks, requests int
		over             bool
	}{{0, 0, false}, {99, 40, false}, {100, 40, true}, {99, 41, true}} {
		a.hear(a.theirs, c.blocks, c.requests)
		if got := a.Overbooked(a.pool, a.theirs, 0); got != c.over {
			t.Errorf("%d blocks and %d requests: %v", c.blocks, c.requests, got)
		}
	}
	if a.Overbooked(a.pool, "unknown", 0) || a.Overbooked(a.pool, a.theirs, 7) || a.Overbooked(&pools.Pool{Model: "m"}, a.theirs, 0) {
		t.Error("what is not known is overbooked")
	}
	unlimited := poolOf(pools.Prefill, worker("p", 0, 0, 0))
	r := withPeers(t, DefaultConfig().For(pools.Prefill), nil, a.others)
	r.Hear("gateway-1", []load.Shared{{Worker: "p", Share: load.Share{Account: load.Account{ActiveBlocks: 1 << 30, Requests: 1 << 20}}}}, noon)
	if r.Overbooked(unlimited, "p", 0) {
		t.Error("a worker without limits is overbooked")
	}
}
