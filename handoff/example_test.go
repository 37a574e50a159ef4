package handoff_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
)

// The router stands behind the queue: each drain asks it for a worker on behalf of
// which request is next, and a grant is a booking. Neither needs a server or a goroutine;
// a frontend of one's own calls both from wherever its requests are.
func Example_routerBehindQueue() {
	now := time.Now()
	pool := &pools.Pool{Model: "llama", Role: pools.Both, Members: []pools.Member{
		{Worker: &pools.Worker{ID: "only", BlockSize: 16, TotalKVBlocks: 100, MaxNumBatchedTokens: 512, KVEvents: "nats"}},
	}}
	cfg := router.DefaultConfig()
	cfg.QueueThreshold = 1 // busy above one step's prompt tokens
	r, err := router.New(cfg, index.New(index.Config{}))
	if err != nil {
		fmt.Println(err)
		return
	}

	// A request that leaves the queue gets a result: nil when there is a booking for it.
	line, err := queue.NewCore(setting.Default[queue.Config](), now, func(t *queue.Ticket[*router.Lease], err error) {
		if err != nil {
			fmt.Println(t.ID, "is refused:", err)
			return
		}
		l := t.Value
		fmt.Printf("%s runs on %s, %d tokens to compute\n", t.ID, l.Worker.ID, l.PrefillTokens)
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	// reserve books for one ticket. What waiting may mend it answers with ErrWait:
	// nobody overtakes; anything else ends the ticket.
	reserve := func(t *queue.Ticket[*router.Lease], _ queue.Drain[*router.Lease]) error {
		l, err := r.Reserve(pool, router.Request{ID: t.ID, ISL: t.ISL}, now)
		if errors.Is(err, router.ErrBusy) || errors.Is(err, router.ErrNoRoom) {
			return queue.ErrWait
		}
		t.Value = l
		return err
	}

	first := &queue.Ticket[*router.Lease]{Item: queue.Item{ID: "first", ISL: 600, Uncached: 600}}
	for _, t := range []*queue.Ticket[*router.Lease]{
		first,
		{Item: queue.Item{ID: "second", ISL: 40, Uncached: 40}},
		{Item: queue.Item{ID: "third", ISL: 9000, Uncached: 9000}},
	} {
		if err := line.Push(t, now); err != nil {
			fmt.Println(t.ID, "is refused:", err)
		}
	}
	fmt.Println("granted:", line.Drain(now, reserve), "waiting:", line.Stats(now).Waiting)

	// The first token is here: its prompt is computed, and there is room again.
	lease := first.Value
	lease.PrefillDone(now)
	fmt.Println("granted:", line.Drain(now, reserve), "waiting:", line.Stats(now).Waiting)
	lease.Release(now)
	// Output:
	// first runs on only, 600 tokens to compute
	// granted: 1 waiting: 2
	// second runs on only, 40 tokens to compute
	// third is refused: both pool of "llama": request needs 564 blocks, the largest worker has 100
	// granted: 1 waiting: 0
}
