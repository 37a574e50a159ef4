package events

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// process is one process of a simulated engine, with its publisher.
type process struct {
	*engine.Core
	*view.Publisher
	stop func()
}

// events gives an engine's events their published form.
func events(of []engine.Event) (out []wire.Event) {
	for _, e := range of {
		kind := map[engine.EventKind]wire.Kind{engine.Stored: wire.Stored, engine.Removed: wire.Removed, engine.Cleared: wire.Cleared}[e.Kind]
		w := wire.Event{Kind: kind, Parent: wire.Hash(e.Parent), HasParent: e.HasParent, Tokens: e.TokenIDs, BlockSize: e.BlockSize}
		for _, h := range e.Hashes {
			w.Hashes = append(w.Hashes, wire.Hash(h))
		}
		out = append(out, w)
	}
	return out
}

// holds is what the cache itself has: by the router's name of its last block, each prompt's names.
func (p *process) holds(block int) map[uint64][]uint64 {
	prompts, held := map[uint64][]uint32{}, map[uint64][]uint64{}
	for _, e := range p.Snapshot() {
		prompt := prompts[e.Parent]
		for i, h := range e.Hashes {
			prompt = append(prompt[:len(prompt):len(prompt)], e.TokenIDs[i*block:(i+1)*block]...)
			names := tokens.SequenceHashes(nil, prompt, block, tokens.Seed("", ""))
			prompts[h], held[names[len(names)-1]] = prompt, names
		}
	}
	return held
}

// TestIndexEqualsEnginesUnderLoss: simulated engines serve prompts that begin alike, evict, clear their caches and are
// started again, while messages are lost, doubled, overtaken and late, also those of processes that have ended, and
// requests fail. What the router's index has of each engine ends as what its cache holds, block by block.
func TestIndexEqualsEnginesUnderLoss(t *testing.T) {
	t.Parallel()
	seen := map[string]float64{"index wrong on the way": 0}
	for seed := range uint64(12) {
		synctest.Test(t, func(t *testing.T) {
			bus := &lossyBus{Bus: memoryBus(t), Chance: 15, Rng: rand.New(rand.NewPCG(seed, 5))}
			idx := index.New(index.Config{})
			r := newRigInto(t, follow.Config{Seed: seed}, bus, bus, slog.New(slog.DiscardHandler), func(string) follow.Index { return idx })
			rng, block := rand.New(rand.NewPCG(seed, 6)), 16<<(2*(seed%2))
			var engines [3]process
			start := func(i int) {
				t.Helper()
				core, err := engine.NewCore(engine.Config{BlockSize: block, TotalKVBlocks: 40, ContextLength: 24 * block, HashSeed: uint64(1 + i)},
					engine.Vocabulary{Words: []uint32{11, 12, 13, 17, 19, 23}})
				require.NoError(t, err)
				p, stop := r.publisher(view.PublisherConfig{Source: source(fmt.Sprint(i)), MaxBytes: 4096})
				engines[i] = process{core, p, stop}
			}
			for i := range engines {
				start(i)
				r.sub.Track(testkit.Pool, fmt.Sprint(i), []int{0}, block, 0)
			}
			// exact reports whether engine i's index is its cache, and its view at the last message.
			exact := func(i int) (same, live bool) {
				held, owner := engines[i].holds(block), idx.Owner(fmt.Sprint(i), 0)
				same = idx.Blocks(owner) == len(held)
				var m index.Matches
				for _, names := range held {
					idx.Match(names, &m)
					same = same && m.Leading(owner) == len(names)
				}
				s := r.status(fmt.Sprint(i))
				return same, s.State == follow.Live && s.Epoch == engines[i].Epoch() && s.Seq == engines[i].Publisher.Stats().Seq
			}
			for n := range 150 {
				i := rng.IntN(len(engines))
				switch rng.IntN(20) {
				case 0:
					engines[i].ClearCache()
				case 1, 2:
					engines[i].stop()
					start(i)
				}
				e, talk := engines[i], rng.Uint32N(4)
				for j := range 1 + rng.IntN(3) { // turns of one conversation, at once
					prompt := testkit.IDs(int(talk)*1000, block*(1+rng.IntN(8)))
					prompt = append(prompt, testkit.IDs(100_000+rng.IntN(100), block*rng.IntN(10))...)
					require.NoError(t, e.Add(engine.Request{ID: fmt.Sprint(n, j), Prompt: prompt, MaxTokens: 1 + rng.IntN(block), IgnoreEOS: true}))
				}
				for {
					result := e.Step(time.Now())
					if len(result.Events) > 0 {
						require.NoError(t, e.Publish(events(result.Events)))
					}
					if result.Next.IsZero() {
						break
					}
					time.Sleep(time.Until(result.Next)) // virtual
				}
				if same, _ := exact(i); !same {
					seen["index wrong on the way"]++
				}
			}
			for i := range engines {
				// Of a snapshot's requests all must get through: each that fails takes some seconds of virtual time.
				within(t, 30*time.Minute, 50*time.Millisecond, fmt.Sprintf("seed %d: engine %d is live and exact", seed, i), func() bool {
					same, live := exact(i)
					return same && live
				})
				s := r.status(fmt.Sprint(i))
				seen["gaps"] += float64(s.Gaps)
				seen["healed by the ring"] += float64(s.Repaired[follow.ByRing])
				seen["healed by a snapshot"] += float64(s.Repaired[follow.BySnapshot])
			}
			seen["lost"] += float64(bus.Losses())
			for _, verdict := range []string{"stale", "new epoch"} {
				seen[verdict] += r.counted("kv_events_messages_total", verdict)
			}
		})
	}
	for what, n := range seen {
		assert.NotZero(t, n, what)
	}
	t.Log(seen)
}
