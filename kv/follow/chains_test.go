package follow

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/kv/zmq"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// chainsRig is a follower of an engine without a replay socket, by hand.
type chainsRig struct {
	*zmqSource
	part *testkit.Part
	t    *testing.T
	now  time.Time
	seq  uint64
}

func newChainsRig(t *testing.T) *chainsRig {
	part := &testkit.Part{}
	of := sourced(part, 16, 1000, Config{Relearn: 2 * time.Minute}, newMetrics(nil, nil))
	g := &chainsRig{t: t, zmqSource: newZMQSource(of), part: part, now: time.Unix(1e9, 0)}
	g.connect(g.now)
	return g
}

// prompt is the blocks from until to of a conversation, as one event.
func (g *chainsRig) prompt(conversation, from, to int) wire.Event {
	e := wire.Event{Kind: wire.Stored, BlockSize: 16, Medium: "GPU"}
	if from > 0 {
		e.Parent, e.HasParent = wire.Hash(conversation*1000+from), true
	}
	for b := from; b < to; b++ {
		e.Hashes = append(e.Hashes, wire.Hash(conversation*1000+b+1))
		for k := range 16 {
			e.Tokens = append(e.Tokens, uint32(conversation*100_000+b*16+k))
		}
	}
	return e
}

// hear passes one batch, after so long.
func (g *chainsRig) hear(after time.Duration, es ...wire.Event) {
	g.now = g.now.Add(after)
	b := wire.Batch{TS: float64(g.seq), Events: es}
	g.live(zmq.Message{Seq: g.seq, Payload: wire.VLLM.Append(nil, &b)}, g.now)
	g.seq++
}

// turns are so many requests of one conversation whose first 10 blocks the engine uses again, and announces if announced.
func (g *chainsRig) turns(n, conversation int, announced bool, each time.Duration) {
	for i := range n {
		if announced {
			g.hear(each, g.prompt(conversation, 0, 10), g.prompt(conversation, 10+i, 11+i))
		} else {
			g.hear(each, g.prompt(conversation, 10+i, 11+i))
		}
	}
}

func (g *chainsRig) is(what string, state State, healed uint64) {
	g.t.Helper()
	if s := g.status(); s.State != state || s.Repaired[ByChains] != healed {
		g.t.Errorf("%s: %v, healed %d times by chains; want %v and %d", what, s.State, s.Repaired[ByChains], state, healed)
	}
}

// After a loss, an engine that tells the chains that it uses again is relied on when it has done so for as long as a
// prediction lasts, and not sooner.
func TestReannouncedChainsRepairTheView(t *testing.T) {
	for name, play := range map[string]func(t *testing.T, g *chainsRig){
		"announced for two minutes": func(t *testing.T, g *chainsRig) {
			g.turns(10, 1, true, 11*time.Second)
			g.is("after 110 s", Predicted, 0)
			g.turns(1, 1, true, 11*time.Second)
			g.is("after that", Live, 1)
			assert.True(t, g.view.Blocks() == 10+10 && g.part.Blocks() == 20,
				"the view has %d blocks, %d of them indexed", g.view.Blocks(), g.part.Blocks())
			g.turns(1, 2, false, time.Second)
			g.is("what was not asked for since is still unknown, and no reason", Live, 1)
		},
		"often, but not for so long": func(t *testing.T, g *chainsRig) {
			g.turns(500, 1, true, 200*time.Millisecond)
			g.is("after 100 s", Predicted, 0)
		},
		"for long, but hardly ever": func(t *testing.T, g *chainsRig) {
			g.turns(8, 1, true, time.Minute) // the first is not again
			g.is("seven times", Predicted, 0)
			g.turns(1, 1, true, time.Second)
			g.is("eight times", Live, 1)
		},
		"the engine does not know how": func(t *testing.T, g *chainsRig) {
			g.turns(100, 1, false, 10*time.Second)
			g.is("all follows on what is not known", Predicted, 0)
			for c := range 60 {
				g.hear(10*time.Second, g.prompt(100+c, 0, 10))
			}
			g.is("new prompts show nothing", Predicted, 0)
		},
		"something followed on what is not known": func(t *testing.T, g *chainsRig) {
			g.turns(9, 1, true, 10*time.Second)
			g.turns(1, 2, false, 10*time.Second) // another gateway's
			g.turns(10, 1, true, 11*time.Second)
			g.is("it begins again", Predicted, 0)
			g.turns(1, 1, true, 11*time.Second)
			g.is("and comes to its end", Live, 1)
		},
		"lost again": func(t *testing.T, g *chainsRig) {
			g.turns(10, 1, true, 11*time.Second)
			g.seq++
			g.turns(10, 1, true, 11*time.Second)
			g.is("it begins again", Predicted, 0)
			g.turns(3, 1, true, 11*time.Second)
			g.is("and comes to its end", Live, 1)
		},
		"announced again is not stored again": func(t *testing.T, g *chainsRig) {
			g.turns(200, 1, true, 100*time.Millisecond) // 2,000 blocks and a cache of 1,000
			g.is("the same blocks fill no cache", Predicted, 0)
			for c := range 81 {
				g.hear(100*time.Millisecond, g.prompt(100+c, 0, 10))
			}
			s := g.status()
			assert.True(t, s.State == Live && s.Repaired[ByChains] == 0, "a whole cache's worth was stored: %v", s.State)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newChainsRig(t)
			g.hear(0, g.prompt(1, 0, 10), g.prompt(2, 0, 10))
			g.is("at first", Live, 0)
			g.seq += 5
			g.hear(time.Second)
			g.is("with a gap", Predicted, 0)
			require.Zero(t, g.view.Blocks())
			play(t, g)
		})
	}
}
