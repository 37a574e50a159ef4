package placement

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// fleetOf makes a fleet of one worker an id: p…, d… and b… are of role prefill, decode and both.
func fleetOf(change func(m *pools.Member), ids ...string) pools.Fleet {
	f := pools.Fleet{Prefill: &pools.Pool{Model: "m", Role: pools.Prefill}, Decode: &pools.Pool{Model: "m", Role: pools.Decode},
		Both: &pools.Pool{Model: "m", Role: pools.Both}}
	for _, id := range ids {
		pool := map[byte]*pools.Pool{'p': f.Prefill, 'd': f.Decode, 'b': f.Both}[id[0]]
		m := pools.Member{Worker: &pools.Worker{ID: id, Incarnation: "i", Model: "m", Role: pool.Role, BlockSize: 16, Address: "http://h:1"}}
		if change != nil {
			change(&m)
		}
		pool.Members = append(pool.Members, m)
	}
	return f
}

func newPlacer(t testing.TB, fallback bool, permits Permits) *Placer {
	t.Helper()
	set, err := router.NewSet(router.DefaultConfig().ByRole(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return &Placer{Routers: set, Permits: permits, Fallback: fallback}
}

var asked int

func newAsk(want Want, change func(a *Ask)) *Ask {
	asked++
	a := &Ask{Model: "m", Want: want, Request: router.Request{ID: fmt.Sprint("r", asked), Attempt: 1, ISL: 4}}
	if change != nil {
		change(a)
	}
	return a
}

// bind pins an ask, empty for no pin.
func bind(a *Ask, prefill, decode string) *Ask {
	if prefill != "" {
		a.Pin = &router.Pin{Worker: prefill}
	}
	if decode != "" {
		a.DecodePin = &router.Pin{Worker: decode}
	}
	return a
}

// ids are the workers of a placement, a dash where there is no leg, and the reason.
func ids(p *Placement) string {
	id := func(b *Booking) string {
		if b.Lease == nil {
			return "-"
		}
		return b.Worker.ID
	}
	return fmt.Sprint(id(&p.Prefill), " ", id(&p.Decode), " ", p.Reason)
}

// permits are the workers that may not be called, and those of them that are on trial, in whichever role.
type permits struct {
	blocked, trials []string
	refuse          int // so many times, a permit that looked free
	given, returned int
}

func (p *permits) Blocked(role pools.Role, _ string) []string { return of(role, p.blocked) }
func (p *permits) OnTrial(role pools.Role, _ string) []string { return of(role, p.trials) }

// of is the workers of a role.
func of(role pools.Role, all []string) (ids []string) {
	for _, id := range all {
		if (id[0] == 'p') == (role == pools.Prefill) {
			ids = append(ids, id)
		}
	}
	return ids
}

func (p *permits) Acquire(worker, _ string, _ pools.Role, _ string, failOpen bool) (func(error), error) {
	if p.refuse > 0 {
		p.refuse--
		return nil, errors.New("refused")
	}
	if slices.Contains(p.trials, worker) || slices.Contains(p.blocked, worker) && !failOpen {
		return nil, errors.New("blocked")
	}
	p.given++
	return func(error) { p.returned++ }, nil
}

// The one switch, case by case: who serves which ask.
func TestPlacement(t *testing.T) {
	drain := func(ids ...string) func(m *pools.Member) {
		return func(m *pools.Member) {
			if slices.Contains(ids, m.Worker.ID) {
				m.Status = pools.Draining
			}
		}
	}
	gold := func(ids ...string) func(m *pools.Member) {
		return func(m *pools.Member) {
			if slices.Contains(ids, m.Worker.ID) {
				m.Worker.Taints = []string{"gold"}
			}
		}
	}
	needsGold := func(a *Ask) { a.Required = []string{"gold"} }
	small := func(id string) func(m *pools.Member) {
		return func(m *pools.Member) { m.Worker.TotalKVBlocks = map[string]int{id: 4}[m.Worker.ID] }
	}
	large := func(a *Ask) { a.ISL = 100 }
	without := func(id string) func(a *Ask) { return func(a *Ask) { a.Exclude = []string{id} } }
	retry := func(id string) func(a *Ask) { return func(a *Ask) { a.Attempt, a.Exclude = 2, []string{id} } }
	var pin *PinError
	var big *router.TooBigError
	var alone *AloneError
	pairsOnly := func(m *pools.Member) { m.Worker.Engine = "sglang" }
	for _, c := range []struct {
		name     string
		fleet    pools.Fleet
		want     Want
		ask      func(a *Ask)
		permits  permits
		fallback bool
		placed   string
		err      any // sentinel, or the address of a typed error
	}{
		{name: "a pair", fleet: fleetOf(nil, "p", "d"), placed: "p d "},
		{name: "aggregated", fleet: fleetOf(nil, "b"), placed: "- b aggregated"},
		{name: "a pair before one that serves alone", fleet: fleetOf(nil, "p", "d", "b"), placed: "p d "},
		{name: "alone as no pair can", fleet: fleetOf(drain("d"), "p", "d", "b"), fallback: true, placed: "- b aggregated"},
		{name: "alone as no prefill can", fleet: fleetOf(drain("p"), "p", "d", "b"), placed: "- b aggregated"},
		{name: "decode as no prefill can", fleet: fleetOf(drain("p"), "p", "d", "b"), fallback: true, placed: "- d no_prefill_worker"},
		{name: "alone as decode has failed it", fleet: fleetOf(nil, "p", "d", "b"), fallback: true, ask: without("d"), placed: "- b aggregated"},
		{name: "alone as decode is blocked", fleet: fleetOf(nil, "p", "d", "b"), fallback: true, permits: permits{blocked: []string{"d"}},
			placed: "- b aggregated"},
		{name: "alone as decode lacks the taint", fleet: fleetOf(gold("b"), "p", "d", "b"), fallback: true, ask: needsGold,
			placed: "- b aggregated"},
		{name: "alone as decode is too small", fleet: fleetOf(small("d"), "p", "d", "b"), fallback: true, ask: large, placed: "- b aggregated"},
		{name: "wanted alone", fleet: fleetOf(nil, "p", "d", "b"), want: Alone, placed: "- b aggregated"},
		{name: "wanted alone and none", fleet: fleetOf(nil, "p", "d"), want: Alone, err: ErrNoDecode},
		{name: "a pair and nothing else", fleet: fleetOf(drain("d"), "p", "d", "b"), want: Pair, err: ErrNoDecode},
		{name: "one leg", fleet: fleetOf(nil, "p", "d"), ask: func(a *Ask) { a.OneLeg = "n" }, placed: "- d n"},
		{name: "any role", fleet: fleetOf(pairsOnly, "p", "d"),
			ask: func(a *Ask) { a.OneLeg, a.AnyRole = "endpoint", true }, placed: "- d endpoint"},
		{name: "one leg alone", fleet: fleetOf(nil, "p", "b"), ask: func(a *Ask) { a.OneLeg = "n" }, placed: "- b aggregated"},
		{name: "fallback", fleet: fleetOf(nil, "d"), fallback: true, placed: "- d no_prefill_worker"},
		{name: "no fallback", fleet: fleetOf(nil, "d"), err: ErrNoPrefill},
		{name: "fallback of a retry", fleet: fleetOf(nil, "p", "d"), fallback: true, ask: retry("p"), placed: "- d prefill_failed"},
		{name: "no fallback of a retry", fleet: fleetOf(nil, "p", "d"), ask: retry("p"), err: ErrNoPrefill},
		{name: "prefill again", fleet: fleetOf(nil, "p1", "p2", "d"), want: Prefill, ask: without("p1"), placed: "p2 - "},
		{name: "prefill again and none", fleet: fleetOf(nil, "p", "d"), want: Prefill, fallback: true, ask: without("p"),
			placed: "- - prefill_failed"},
		{name: "prefill again, none and no fallback", fleet: fleetOf(nil, "p", "d"), want: Prefill, ask: without("p"), err: ErrNoPrefill},
		{name: "decode again", fleet: fleetOf(nil, "p", "d1", "d2"), want: Decode, ask: without("d1"), placed: "- d2 "},
		{name: "decode again and none", fleet: fleetOf(nil, "p", "d", "b"), want: Decode, ask: without("d"), err: ErrNoDecode},
		{name: "decode that takes no prompts: a pair", fleet: fleetOf(pairsOnly, "p", "d"), placed: "p d "},
		{name: "decode that takes no prompts: one leg", fleet: fleetOf(pairsOnly, "p", "d"), fallback: true,
			ask: func(a *Ask) { a.OneLeg = "n" }, err: &alone},
		{name: "decode that takes no prompts: one leg alone", fleet: fleetOf(pairsOnly, "p", "d", "b"),
			ask: func(a *Ask) { a.OneLeg = "n" }, placed: "- b aggregated"},
		{name: "decode that takes no prompts: no prefill", fleet: fleetOf(pairsOnly, "d"), fallback: true, err: ErrNoPrefill},
		{name: "decode that takes no prompts: alone as no prefill can",
			fleet:    fleetOf(func(m *pools.Member) { pairsOnly(m); drain("p")(m) }, "p", "d", "b"),
			fallback: true, placed: "- b aggregated"},
		{name: "decode that takes no prompts: prefill failed", fleet: fleetOf(pairsOnly, "p", "d"), fallback: true, ask: retry("p"),
			err: ErrNoPrefill},
		{name: "decode that takes no prompts: prefill again and none", fleet: fleetOf(pairsOnly, "p", "d"), want: Prefill, fallback: true,
			ask: without("p"), err: ErrNoPrefill},
		{name: "none", fleet: fleetOf(nil), fallback: true, err: ErrNoDecode},
		{name: "pinned", fleet: fleetOf(nil, "p1", "p2", "d1", "d2"), ask: func(a *Ask) { bind(a, "p2", "d1") }, placed: "p2 d1 "},
		{name: "pinned prefill away", fleet: fleetOf(drain("p1"), "p1", "p2", "d"), fallback: true,
			ask: func(a *Ask) { bind(a, "p1", "") }, err: &pin},
		{name: "pinned decode away", fleet: fleetOf(nil, "p", "d", "b"), ask: func(a *Ask) { bind(a, "", "d2") }, err: &pin},
		{name: "pinned and blocked", fleet: fleetOf(nil, "p", "d"), ask: func(a *Ask) { bind(a, "", "d") },
			permits: permits{blocked: []string{"d"}}, err: &pin},
		{name: "taints", fleet: fleetOf(func(m *pools.Member) { m.Worker.Taints = []string{m.Worker.ID} }, "p", "d"), fallback: true,
			ask: func(a *Ask) { a.Required = []string{"d"} }, placed: "- d no_prefill_worker"},
		{name: "no taints", fleet: fleetOf(nil, "p", "d"), ask: needsGold, err: router.ErrTaints},
		{name: "too big", fleet: fleetOf(func(m *pools.Member) { m.Worker.TotalKVBlocks = 4 }, "p", "d"),
			ask: func(a *Ask) { a.ISL = 1000 }, err: &big},
		{name: "one is blocked", fleet: fleetOf(nil, "p", "d1", "d2"), permits: permits{blocked: []string{"d1"}}, placed: "p d2 "},
		{name: "all are blocked", fleet: fleetOf(nil, "p", "d"), permits: permits{blocked: []string{"d"}}, placed: "p d "},
		{name: "prefill is blocked", fleet: fleetOf(nil, "p", "d"), permits: permits{blocked: []string{"p"}}, placed: "p d "},
		{name: "the one with the taint is blocked", fleet: fleetOf(gold("p", "d1"), "p", "d1", "d2"), ask: needsGold,
			permits: permits{blocked: []string{"d1"}}, placed: "p d1 "},
		{name: "the large one is blocked", fleet: fleetOf(small("d2"), "p", "d1", "d2"), ask: large,
			permits: permits{blocked: []string{"d1"}}, placed: "p d1 "},
		{name: "the one with the rank is blocked", fleet: fleetOf(func(m *pools.Member) {
			m.Worker.DataParallelRanks = map[string]int{"d1": 2}[m.Worker.ID]
		}, "p", "d1", "d2"), ask: func(a *Ask) { a.DecodePin = &router.Pin{Ranked: true, Rank: 1} },
			permits: permits{blocked: []string{"d1"}}, placed: "p d1 "},
		{name: "on trial", fleet: fleetOf(nil, "p", "d"), permits: permits{blocked: []string{"d"}, trials: []string{"d"}}, err: ErrOnTrial},
		{name: "beside the trial", fleet: fleetOf(nil, "p", "d1", "d2"),
			permits: permits{blocked: []string{"d1"}, trials: []string{"d1"}}, placed: "p d2 "},
		{name: "prefill on trial", fleet: fleetOf(nil, "p", "d"), permits: permits{blocked: []string{"p"}, trials: []string{"p"}},
			err: ErrOnTrial},
		{name: "decode beside prefill's trial", fleet: fleetOf(nil, "p", "d"), permits: permits{blocked: []string{"p"}, trials: []string{"p"}},
			fallback: true, placed: "- d no_prefill_worker"},
		{name: "a permit was given away", fleet: fleetOf(nil, "p", "d"), permits: permits{refuse: maxChoices - 1}, placed: "p d "},
		{name: "all permits were given away", fleet: fleetOf(nil, "p", "d"), permits: permits{refuse: maxChoices}, err: ErrOnTrial},
	} {
		t.Run(c.name, func(t *testing.T) {
			placer := newPlacer(t, c.fallback, &c.permits)
			ask := newAsk(c.want, c.ask)
			picked, pickErr := placer.Pick(c.fleet, ask, start)
			placed, err := placer.Book(c.fleet, ask, nil, start)
			is := func(err error) bool {
				if sentinel, ok := c.err.(error); ok {
					return errors.Is(err, sentinel)
				}
				return errors.As(err, c.err)
			}
			if c.err != nil {
				assert.True(t, is(err) && (c.permits.refuse != 0 || c.name == "all permits were given away" || is(pickErr)),
					"%v, and %v of the pick; want %v", err, pickErr, c.err)
			} else if err != nil || ids(&placed) != c.placed || pickErr != nil || ids(&picked) != c.placed {
				t.Errorf("%q, %v, and of the pick %q, %v; want %q", ids(&placed), err, ids(&picked), pickErr, c.placed)
			}
			placed.Release(start)
			assert.Equal(t, c.permits.returned, c.permits.given, "permits were given and N returned")
			for _, pool := range []*pools.Pool{c.fleet.Prefill, c.fleet.Decode, c.fleet.Both} {
				assert.Zero(t, placer.Routers.For("m", pool.Role).Open(), "bookings are open in pool %s", pool.Role)
			}
		})
	}
}

// A pick names the workers that a booking gets, whatever is booked already.
func TestPickIsWhatIsBooked(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 7))
		var workers []string
		for i := range 1 + rng.IntN(12) {
			workers = append(workers, fmt.Sprintf("%c%02d", "pdb"[rng.IntN(3)], i))
		}
		fleet := fleetOf(func(m *pools.Member) { m.Worker.MaxNumSeqs = 20 }, workers...)
		placer := newPlacer(t, seed%2 == 0, nil)
		for range 60 {
			ask := newAsk(Want(rng.IntN(5)), func(a *Ask) { a.ISL = 1 + rng.IntN(200) })
			picked, pickErr := placer.Pick(fleet, ask, start)
			placed, err := placer.Book(fleet, ask, nil, start)
			require.True(t, (err == nil) == (pickErr == nil) && (err != nil || ids(&picked) == ids(&placed)),
				"seed %d: picked %q, %v; booked %q, %v", seed, ids(&picked), pickErr, ids(&placed), err)
			if rng.IntN(3) == 0 {
				placed.Release(start)
			}
		}
	}
}

func TestLanesAreOfWhatIsAlike(t *testing.T) {
	assert.Empty(t, newAsk(Any, nil).Lane(), "an ask that takes any worker is in lane")
	tainted := func(taints ...string) *Ask { return newAsk(Any, func(a *Ask) { a.Required = taints }) }
	tried := func(want Want, id string) *Ask { return newAsk(want, func(a *Ask) { a.Exclude = []string{id} }) }
	lanes := map[string]bool{}
	for _, a := range []*Ask{
		bind(newAsk(Any, nil), "p1", ""), bind(newAsk(Any, nil), "", "d1"), bind(newAsk(Any, nil), "p1", "d1"),
		tried(Any, "d1"), tried(Any, "p1"), tried(Decode, "d1"), tainted("a"), tainted("a", "b"), tainted("ab"),
	} {
		assert.True(t, !lanes[a.Lane()] && a.Lane() != "", "lane %q is another's", a.Lane())
		lanes[a.Lane()] = true
	}
	assert.Equal(t, tainted("b", "a").Lane(), tainted("a", "b").Lane(), "lanes N and N of the same taints")
}

// An ask that waits for both its workers in turn keeps its claim to the one while it waits for the other, and an ask
// behind it takes neither.
func TestClaimsAddUp(t *testing.T) {
	fleet := fleetOf(func(m *pools.Member) {
		if id := m.Worker.ID; id == "p1" || id == "d1" {
			m.Worker.MaxNumSeqs, m.Worker.MaxNumBatchedTokens = 1, 1
		}
	}, "p1", "p2", "d1", "d2")
	placer := newPlacer(t, true, nil)
	take := func(prefill, decode string) *Placement {
		t.Helper()
		placed, err := placer.Book(fleet, bind(newAsk(Any, func(a *Ask) { a.ISL = 40 }), prefill, decode), nil, start)
		require.NoError(t, err)
		return &placed
	}
	onDecode := take("p2", "d1")
	waits := bind(newAsk(Any, nil), "p1", "d1")
	refused := func(legs int) {
		t.Helper()
		_, err := placer.Book(fleet, waits, nil, start)
		require.True(t, Waits(err), "%v, want that it waits", err)
		require.Len(t, waits.claims, legs, "it claims N legs")
	}
	refused(1)
	for range 4 { // decode's worker is claimed, prefill's is not
		placed, err := placer.Book(fleet, bind(newAsk(Any, nil), "p1", ""), []*Ask{waits}, start)
		require.True(t, err == nil && placed.Decode.Worker.ID == "d2", "%v, want a place on d2", err)
		placed.Release(start)
	}
	onDecode.Release(start)
	onPrefill := take("p1", "d2")
	refused(2)
	onPrefill.Release(start)
	for range 4 {
		placed, err := placer.Book(fleet, newAsk(Any, nil), []*Ask{waits}, start)
		require.True(t, err == nil && ids(&placed) == "p2 d2 ", "%q, %v, want places on p2 and d2", ids(&placed), err)
		placed.Release(start)
	}
	_, err := placer.Book(fleet, bind(newAsk(Any, nil), "", "d1"), []*Ask{waits}, start)
	assert.True(t, Waits(err), "an ask behind it got %v, want that it waits", err)
	placed, err := placer.Book(fleet, waits, nil, start)
	assert.NoError(t, err, "it is not served")
	placed.Release(start)
}

// Workers of a mixed fleet that cannot hand over to each other are not put together; the reason says so where decode
// then serves alone.
func TestWorkersThatCannotHandOver(t *testing.T) {
	byLetter := func(m *pools.Member) { m.Worker.Connector = m.Worker.ID[1:] } // pa, da, db: a and b
	for _, c := range []struct {
		name     string
		fleet    []string
		want     Want
		partner  string
		fallback bool
		placed   string
		err      error
	}{
		{name: "the pair there is", fleet: []string{"pa", "pb", "db"}, placed: "pb db "},
		{name: "no pair", fleet: []string{"pa", "db"}, fallback: true, placed: "- db no_common_protocol"},
		{name: "no pair and no fallback", fleet: []string{"pa", "db"}, err: router.ErrNoPartner},
		{name: "another prefill for decode's booking", fleet: []string{"pa", "pb", "db"}, want: Prefill, partner: "db", placed: "pb - "},
		{name: "another decode for staged KV", fleet: []string{"pa", "da", "db"}, want: Decode, partner: "pa", placed: "- da "},
		{name: "no other decode for staged KV", fleet: []string{"pa", "db"}, want: Decode, partner: "pa", err: ErrNoDecode},
	} {
		t.Run(c.name, func(t *testing.T) {
			fleet := fleetOf(byLetter, c.fleet...)
			fleet.Mixed = true
			p := newPlacer(t, c.fallback, nil)
			p.Pairs = func(p, d *pools.Worker) error {
				if p.Connector != d.Connector {
					return errors.New("other protocols")
				}
				return nil
			}
			ask := newAsk(c.want, func(a *Ask) {
				for _, pool := range []*pools.Pool{fleet.Prefill, fleet.Decode} {
					if m, ok := pool.Member(c.partner); ok {
						a.Partner = m.Worker
					}
				}
			})
			for i := range 3 {
				placed, err := p.Book(fleet, ask, nil, start)
				if c.err != nil {
					require.ErrorIs(t, err, c.err)
					return
				}
				require.True(t, err == nil && ids(&placed) == c.placed, "%d: %q, %v; want %q", i, ids(&placed), err, c.placed)
				placed.Release(start)
			}
		})
	}
}
