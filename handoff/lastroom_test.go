package handoff

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
)

// elsewhere is a group in which another gateway can be asked.
type elsewhere struct{ group *router.Group }

func (e elsewhere) Unseen(*pools.Pool) float64 { return 0 }
func (e elsewhere) Delay() time.Duration       { return 0 }
func (e elsewhere) Group() *router.Group       { return e.group }
func (e elsewhere) CutOff() bool               { return false }
func (e elsewhere) Asks(string) bool           { return true }

// lastRooms is a flow over small decode workers, whose last room confirm grants.
func lastRooms(t *testing.T, workers int, confirm func(ctx context.Context, l *router.Lease) bool) *house {
	t.Helper()
	roster := rosterOf(t, "vllm", map[string]pools.Role{"p": pools.Prefill})
	for i := range workers {
		w := pools.Worker{ID: "d" + string(rune('1'+i)), Incarnation: "i", Model: "m", Role: pools.Decode, Engine: "vllm", Address: "http://h:1", BlockSize: 16, TotalKVBlocks: 100}
		if err := roster.Put(w); err != nil {
			t.Fatal(err)
		}
	}
	base := router.DefaultConfig()
	base.Peers, base.OnBooking = elsewhere{&router.Group{Names: []string{"here", "there"}, Own: "here"}}, func(bool) {}
	set, err := router.NewSet(base.ByRole(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	h := new(house)
	h.Flow, err = New(Config{Queue: setting.Default[queue.Config]()}, Rooms{
		Roster: roster, Prefill: prefill.New(prefill.Config{}, roster, nowhere{}), Decode: decode.New(decode.Config{}, roster, nowhere{}),
		Transport: nowhere{}, Routers: set, Confirm: confirm,
	}, unobserved{})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// shares are those that list was called with.
var shares []string

func list[S any](s S) { shares = append(shares, fmt.Sprintf("%+v", s)) }

// whole is a request that takes an idle worker whole.
func (h *house) whole() *request {
	r := h.ask()
	r.ISL = 16 * 90
	return r
}

// refuses is what a gateway does with a lease that its worker's owner refuses.
func (h *house) refuses(l *router.Lease) bool {
	now := time.Now()
	l.Refuse(now, now.Add(5*time.Millisecond))
	time.AfterFunc(5*time.Millisecond, func() { h.Wake("m") })
	return false
}

// theirs is which of so many workers another gateway owns.
func theirs(t *testing.T, workers int) (all []string) {
	var seen []string
	h := lastRooms(t, workers, func(_ context.Context, l *router.Lease) bool { seen = append(seen, l.Worker.ID); return true })
	for range workers {
		if err := h.admit(t.Context(), h.whole()); err != nil {
			t.Fatal(err)
		}
	}
	return seen
}

// TestWhatIsRefusedGoesElsewhere: a request that its worker's owner refuses waits and asks again, or gets another worker, and
// holds nothing of the placement that was refused.
func TestWhatIsRefusedGoesElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers = 4
		owned := theirs(t, workers)
		if len(owned) != workers/2 {
			t.Fatalf("%v of %d workers are another's", owned, workers)
		}
		asked := 0
		var h *house
		h = lastRooms(t, workers, func(_ context.Context, l *router.Lease) bool { asked++; return h.refuses(l) })
		began := time.Now()
		for i := range workers - len(owned) {
			r := h.whole()
			if err := h.admit(t.Context(), r); err != nil || slices.Contains(owned, r.d.Worker.ID) {
				t.Fatalf("request %d: %+v, %v", i, r.d, err)
			}
		}
		if took := time.Since(began); asked > len(owned) || took > 0 {
			t.Errorf("%d questions, and own workers' room after %v", asked, took)
		}
		open := func() [2]int {
			return [2]int{h.rooms.Routers.For("m", pools.Prefill).Open(), h.rooms.Routers.For("m", pools.Decode).Open()}
		}
		if got := open(); got != [2]int{2, 2} {
			t.Errorf("%v bookings are open, of two requests", got)
		}
		began, asked = time.Now(), 0
		r := h.whole()
		if err := h.admit(t.Context(), r); err != nil || !slices.Contains(owned, r.d.Worker.ID) || r.d.Question == nil {
			t.Fatalf("%+v, %v", r.d, err)
		}
		if asked != maxRefusals || time.Since(began) < time.Duration(maxRefusals/len(owned)-1)*5*time.Millisecond {
			t.Errorf("an owner that refuses without end was asked %d times in %v", asked, time.Since(began))
		}
		if got := open(); got != [2]int{3, 3} {
			t.Errorf("%v bookings are open, of three requests", got)
		}
		shares = nil
		if h.rooms.Routers.For("m", pools.Decode).Changes(time.Now(), list); strings.Count(fmt.Sprint(shares), "Requests:1") != 3 {
			t.Errorf("of three bookings the others know %v", shares)
		}
	})
}

// TestWhoAsksHoldsUpNoOthers: while an owner is asked, other requests get their workers; a client that leaves meanwhile frees
// what was booked.
func TestWhoAsksHoldsUpNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asking := make(chan struct{}, 8)
		h := lastRooms(t, 2, func(ctx context.Context, l *router.Lease) bool { asking <- struct{}{}; <-ctx.Done(); return true })
		ctx, leave := context.WithCancel(t.Context())
		own := false
		var waits *request
		done := make(chan error, 1)
		for waits == nil { // until one asks: one of the two workers is another's
			r := h.whole()
			go func() { done <- h.admit(ctx, r) }()
			synctest.Wait()
			select {
			case <-asking:
				waits = r
			case err := <-done:
				if own = true; err != nil {
					t.Fatal(err)
				}
			}
		}
		if !own {
			if err := h.admit(t.Context(), h.whole()); err != nil {
				t.Errorf("while another asks: %v", err)
			}
		}
		leave()
		if err := <-done; err != nil {
			t.Error(err)
		}
		waits.stack.release()
		if n := h.rooms.Routers.For("m", pools.Decode).Open(); n != 1 {
			t.Errorf("%d bookings are open", n)
		}
	})
}
