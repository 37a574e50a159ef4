package handoff

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router/placement"
)

// KV whose lease ends while its request waits for a decode worker is bound to none:
// the wait ends before the lease does, the KV is given up once, and the request goes
// through both legs again.
func TestALeaseBoundsTheWaitForDecode(t *testing.T) {
	for _, c := range []struct {
		name  string
		frees time.Duration // when decode has room again
		again bool
	}{
		{"in time", 10 * time.Second, false},
		{"too late", 27 * time.Second, true}, // the lease has three seconds left
		{"much too late", 45 * time.Second, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHouse(t, true, map[string]pools.Role{"p": pools.Prefill, "d": pools.Decode})
				w := pools.Worker{ID: "d", Incarnation: "i", Model: "m", Role: pools.Decode, Engine: "vllm", Address: "http://h:1", BlockSize: 16, MaxNumSeqs: 1}
				if err := h.rooms.Roster.Put(w); err != nil {
					t.Fatal(err)
				}
				first, err := h.reserve(h.ask(), nil, time.Now())
				if err != nil {
					t.Fatal(err)
				}
				r, abandoned := h.ask(), 0
				r.stack.abandon = func(*StagedKV) { abandoned++ }
				r.Attempts = 1
				r.stage(&StagedKV{KV: prefill.KV{Producer: "p", Expires: time.Now().Add(connector.LeaseDuration)}})
				admitted := make(chan error)
				began := time.Now()
				go func() { admitted <- h.admit(t.Context(), r) }()
				time.Sleep(c.frees)
				first.Release(time.Now())
				h.Wake("m")
				if err := <-admitted; err != nil {
					t.Fatal(err)
				}
				if again := r.KV == nil && r.p.Lease != nil; again != c.again || (abandoned == 1) != c.again {
					t.Errorf("both legs again: %t, KV given up %d times; want %t", again, abandoned, c.again)
				}
				if waited := time.Since(began); waited != c.frees || r.d.Lease == nil {
					t.Errorf("admitted after %v, with %v on decode", waited, r.d)
				}
				r.stack.release()
			})
		})
	}
}

// KV that is staged for decode workers is given up where only workers that serve
// alone are left, and a request whose time in the queue is over is not kept by it.
func TestStagedKVIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, true, map[string]pools.Role{"p": pools.Prefill, "d": pools.Decode, "b": pools.Both})
		r, abandoned := h.ask("d"), 0
		r.stack.abandon = func(*StagedKV) { abandoned++ }
		r.Attempts = 1
		r.stage(&StagedKV{KV: prefill.KV{Producer: "p", Expires: time.Now().Add(connector.LeaseDuration)}})
		if err := h.admit(t.Context(), r); err != nil || r.KV != nil || abandoned != 1 || r.d.Worker.ID != "b" {
			t.Errorf("%v: KV %v given up %d times, on %v", err, r.KV, abandoned, r.d)
		}
		r.stack.release()
		h.drain(t, "b")
		r = h.ask("d")
		r.stack.abandon = func(*StagedKV) { abandoned++ }
		r.stage(&StagedKV{KV: prefill.KV{Producer: "p", Expires: time.Now().Add(connector.LeaseDuration)}})
		if err := h.admit(t.Context(), r); !errors.Is(err, placement.ErrNoDecode) || errors.Is(err, queue.ErrExpired) {
			t.Errorf("%v, want that there is no decode worker", err)
		}
		r.stack.release()
	})
}
