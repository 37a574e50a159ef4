package router_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A frontend of one's own needs a list of workers, what they have cached, and a
// router: no server, no message bus.
func Example() {
	now := time.Now()
	pool := &pools.Pool{Model: "llama", Role: pools.Both, Members: []pools.Member{
		{Worker: &pools.Worker{ID: "east", BlockSize: 16, KVEvents: "nats"}},
		{Worker: &pools.Worker{ID: "west", BlockSize: 16, KVEvents: "nats"}},
	}}
	cached := index.New(index.Config{})
	r := must(router.New(router.DefaultConfig(), cached))

	// west said that it holds the first three blocks of this prompt.
	prompt := []uint64{0xa1, 0xa2, 0xa3, 0xa4}
	cached.Store(cached.Owner("west", 0), index.Device, prompt[:3])

	first := must(r.Reserve(pool, router.Request{ID: "first", ISL: 64, Hashes: prompt}, now))
	fmt.Printf("first: %s, cost %.0f, %d blocks cached\n", first.Worker.ID, first.Cost, first.Overlap)

	// A second one of the same prompt joins it: what west holds for the first takes
	// no more room for the second. A third of another prompt finds west booked, and
	// goes east.
	second := must(r.Reserve(pool, router.Request{ID: "second", ISL: 64, Hashes: prompt}, now))
	fmt.Printf("second: %s, cost %.0f, %d blocks cached\n", second.Worker.ID, second.Cost, second.Overlap)
	third := must(r.Reserve(pool, router.Request{ID: "third", ISL: 64, Hashes: []uint64{0xb1, 0xb2, 0xb3, 0xb4}}, now))
	fmt.Printf("third: %s, cost %.0f, %d blocks cached\n", third.Worker.ID, third.Cost, third.Overlap)

	first.PrefillDone(now) // its first token is here
	first.Grow(1, now)     // a block of output is full
	for _, l := range r.Loads(pool) {
		fmt.Printf("%s: %d active blocks, %d tokens to compute\n", l.Worker, l.ActiveBlocks, l.PrefillTokens)
	}
	first.Release(now)
	second.Release(now)
	third.Release(now)
	fmt.Println("open bookings:", r.Open())
	// Output:
	// first: west, cost 5, 3 blocks cached
	// second: west, cost 6, 3 blocks cached
	// third: east, cost 8, 0 blocks cached
	// east: 4 active blocks, 64 tokens to compute
	// west: 5 active blocks, 16 tokens to compute
	// open bookings: 0
}

// Two pools share a request: both workers are booked, or neither.
func ExampleReservePair() {
	now := time.Now()
	prefills := &pools.Pool{Model: "llama", Role: pools.Prefill, Members: []pools.Member{
		{Worker: &pools.Worker{ID: "p0", BlockSize: 16, MaxNumBatchedTokens: 1024}},
	}}
	decodes := &pools.Pool{Model: "llama", Role: pools.Decode, Members: []pools.Member{
		{Worker: &pools.Worker{ID: "d0", BlockSize: 16, TotalKVBlocks: 600}},
	}}
	cfg := router.DefaultConfig()
	prefill := must(router.New(cfg.For(pools.Prefill), nil))
	decode := must(router.New(cfg.For(pools.Decode), nil))
	for _, id := range []string{"first", "second"} {
		p, d, err := router.ReservePair(prefill, decode, prefills, decodes, router.Request{ID: id, ISL: 5000},
			router.Request{ID: id, ISL: 5000}, now)
		if errors.Is(err, router.ErrBusy) || errors.Is(err, router.ErrNoRoom) {
			fmt.Println(id, "waits:", err)
			continue
		}
		fmt.Println(id, "runs on", p.Worker.ID, "and", d.Worker.ID)
	}
	// Output:
	// first runs on p0 and d0
	// second waits: prefill pool of "llama": all workers are busy with prefill
}

// What an index elsewhere says of a prompt comes in with the request. It is believed
// before the router's own index, for the ranks that it knows.
func Example_remoteOverlap() {
	pool := &pools.Pool{Model: "llama", Role: pools.Both, Members: []pools.Member{
		{Worker: &pools.Worker{ID: "east", BlockSize: 16}},
		{Worker: &pools.Worker{ID: "west", BlockSize: 16}},
	}}
	r := must(router.New(router.DefaultConfig(), nil))
	// Made once for many answers that are about the same ranks.
	layout := overlap.NewLayout([]overlap.Rank{{Worker: "east"}, {Worker: "west"}})
	lease := must(r.Reserve(pool, router.Request{
		ID: "first", ISL: 64, Hashes: []uint64{11, 12, 13, 14},
		RemoteOverlap: &overlap.Report{Layout: layout, Tiers: []overlap.Tiers{{Known: true, Device: 0}, {Known: true, Device: 3}}},
	}, time.Now()))
	fmt.Printf("%s, %d blocks cached, %d tokens to compute\n", lease.Worker.ID, lease.Overlap, lease.PrefillTokens)
	// Output:
	// west, 3 blocks cached, 16 tokens to compute
}
