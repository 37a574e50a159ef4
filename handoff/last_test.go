package handoff

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router/placement"
)

// A request that waits for room waits on when the last worker of its pool goes, as it does for any other reason: until a worker is there
// again, or for --queue-timeout. One that comes when there is no worker is refused at once.
func TestTheQueueOutlivesTheLastWorker(t *testing.T) {
	for _, c := range []struct {
		gone  string
		roles map[string]pools.Role
		err   error // of one that comes meanwhile
	}{
		{"b", map[string]pools.Role{"b": pools.Both}, placement.ErrNoPrefill},
		{"d", map[string]pools.Role{"p": pools.Prefill, "d": pools.Decode}, placement.ErrNoDecode},
		{"p", map[string]pools.Role{"p": pools.Prefill, "d": pools.Decode}, placement.ErrNoPrefill},
	} {
		for _, back := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				h := newHouse(t, false, c.roles)
				for id := range c.roles {
					m, _ := h.rooms.Roster.Lookup(id)
					w := *m.Worker
					w.TotalKVBlocks = 64 // has room for one prompt of 40 blocks
					if err := h.rooms.Roster.Put(w); err != nil {
						t.Fatal(err)
					}
				}
				large := func() *request {
					r := h.ask()
					r.ISL = 40 * r.card.BlockSize
					return r
				}
				served, waits, ended := large(), large(), make(chan error, 1)
				if err := h.admit(t.Context(), served); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				go func() { ended <- h.admit(t.Context(), waits) }()
				synctest.Wait()
				m, _ := h.rooms.Roster.Lookup(c.gone)
				h.rooms.Roster.Remove(c.gone)
				served.stack.release() // its worker has ended
				synctest.Wait()
				if len(ended) > 0 {
					t.Fatalf("without %s it ended: %v", c.gone, <-ended)
				}
				if back {
					time.Sleep(h.cfg.Queue.Timeout / 2)
					if err := h.rooms.Roster.Put(*m.Worker); err != nil {
						t.Fatal(err)
					}
				}
				switch err := <-ended; {
				case back && (err != nil || time.Since(began) != h.cfg.Queue.Timeout/2):
					t.Errorf("%s came back: %v after %v", c.gone, err, time.Since(began))
				case !back && (!errors.Is(err, queue.ErrExpired) || time.Since(began) != h.cfg.Queue.Timeout):
					t.Errorf("%s stayed away: %v after %v", c.gone, err, time.Since(began))
				case !back:
					if err := h.admit(t.Context(), large()); !errors.Is(err, c.err) {
						t.Errorf("without %s and a queue: %v", c.gone, err)
					}
				}
				waits.stack.release()
			})
		}
	}
}
