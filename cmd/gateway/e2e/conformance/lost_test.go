//go:build engines

package conformance

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/kv/zmq"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// source is how a gateway stands with a worker's events.
type source struct {
	Worker, State     string
	Seq, Gaps, Losses uint64
	Repaired          map[string]uint64 `json:"healed"`
	Blocks            int
}

// standing reads how a gateway stands with the events of one worker.
func standing(ctx context.Context, gateway, worker string) (found source) {
	var all struct {
		Events map[string][]source `json:"kv_events"`
	}
	if Get(ctx, gateway+"/workers", &all) != nil {
		return source{}
	}
	for _, pool := range all.Events {
		for _, s := range pool {
			if s.Worker == worker {
				found = s
			}
		}
	}
	return found
}

// lostEvents has a gateway miss events of an engine, and repair its view.
func (r *rig) lostEvents(t *testing.T) {
	spec := Spec{Name: "publishing", Publisher: map[string]any{"buffer_steps": 50}}
	if r.Kind == "vllm" {
		spec.Args = []string{"--block-size", "32", "--max-model-len", "8192"} // the least on a CPU; 512 blocks have to hold a prompt
	}
	e := r.launch(t, spec)[0]
	defer func() { require.NoError(t, e.Kill()) }()
	link, err := testkit.NewLink(e.Events)
	require.NoError(t, err)
	defer link.Close()
	e.Options = ",kv-events=tcp://" + link.Addr() + ",kv-replay=tcp://" + e.Replay
	if r.Kind == "sglang" {
		e.Options += ",kv-topic=kv-events"
	}
	g := r.serve(t, "gateway-lost", []*Engine{e})
	direct := func(first, n, length int) { // what the gateway does not route
		for k := range n {
			_, err := stream(t.Context(), e.URL, promptOf(first+k, length), 1, nil)
			require.NoError(t, err)
		}
	}
	var now source
	becomes := func(t *testing.T, what string, is func() bool) {
		t.Helper()
		require.Eventually(t, func() bool { now = standing(t.Context(), g.URL, e.Name); return is() }, time.Minute, 50*time.Millisecond, what)
	}
	cut := func() { link.Set(testkit.LinkState{Refuse: true}); link.Cut() }
	for i, c := range []struct {
		name   string
		lose   func()
		missed int // prompts
	}{
		{"a connection that is cut", cut, 20},
		{"messages that are dropped", func() { link.Set(testkit.LinkState{Down: testkit.Way{Drop: true}}) }, 20},
		{"more messages than the engine keeps", cut, 80},
	} {
		r.part(t, "after "+c.name, g.URL, 0, func(b *believer) {
			t := b.t
			b.conversation(10*i, 2)
			before := standing(t.Context(), g.URL, e.Name)
			c.lose()
			direct(20000+100*i, c.missed, 200)
			link.Set(testkit.LinkState{})
			direct(20000+100*i+c.missed, 1, 200) // shows what is missing
			if kept := c.missed <= 20; kept {
				becomes(t, "repaired", func() bool { return now.State == "live" && now.Repaired["replay"] > before.Repaired["replay"] })
				assert.Equal(t, before.Losses, now.Losses, "losses")
			} else {
				becomes(t, "predicted", func() bool { return now.State == "predicted" && now.Losses == before.Losses+1 })
				r.clearCache(t, e)
				direct(29000, 1, 200)
				becomes(t, "whole again", func() bool { return now.State == "live" })
			}
			b.quiet()
			r.viewIsPool(t, g.URL, e, 0)
			for k := range 5 {
				b.askIDs(promptOf(20000+100*i+c.missed-k, 200))
			}
			b.conversation(10*i, 3)
			r.viewIsPool(t, g.URL, e, 0)
		})
	}
}

// clearCache has an engine empty its prefix cache.
func (r *rig) clearCache(t *testing.T, e *Engine) {
	t.Helper()
	res, err := http.Post(e.URL+map[string]string{"vllm": "/reset_prefix_cache", "sglang": "/flush_cache"}[r.Kind], "", nil)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode)
}

// askIDs is ask with a prompt of ids.
func (b *believer) askIDs(ids []uint32) (cached int) {
	text, err := json.Marshal(ids)
	require.NoError(b.t, err)
	cached, _ = b.ask("ids", completionPath, fmt.Sprintf(`{"model":"tiny","max_tokens":2,"prompt":%s}`, text))
	return cached
}

// viewIsPool compares a gateway's view of a vLLM engine with the blocks that the engine itself has as cached, and the view that all
// of its events make with their hashes.
func (r *rig) viewIsPool(t *testing.T, gateway string, e *Engine, group int) {
	t.Helper()
	if r.Kind != "vllm" {
		return // its tree is Rust's
	}
	groups, err := e.Cached(t.Context())
	require.NoError(t, err)
	pool := groups[group]
	assert.Equal(t, len(pool), standing(t.Context(), gateway, e.Name).Blocks, "blocks of %s that the gateway takes for cached", e.Name)
	at, err := zmq.ParseEndpoint("tcp://" + e.Replay)
	require.NoError(t, err)
	all, err := zmq.Replay(t.Context(), at, 0, zmq.Options{}, zmq.ReplayLimits{Silence: 10 * time.Second, Whole: time.Minute, Bytes: 1 << 30})
	require.NoError(t, err)
	if len(all) == 0 || all[0].Seq > 0 {
		t.Logf("the engine has not kept its first events")
		return
	}
	v := view.New(new(testkit.Part), 32)
	var batch wire.Batch
	for _, m := range all {
		require.NoError(t, wire.DecodeBatch(&batch, m.Payload))
		v.Apply(batch.Events)
	}
	assert.Equal(t, len(pool), v.Blocks())
	for h, n := range pool {
		for range n {
			v.Apply([]wire.Event{{Kind: wire.Removed, Hashes: []wire.Hash{wire.Hash(h)}}})
		}
	}
	assert.Zero(t, v.Blocks(), "blocks that the view has and the engine has not")
	assert.Zero(t, v.Tally().Unknown, "blocks that the engine has and the view has not")
}

// rest has conversations at a pair whose decode workers keep prefix caches: each turn goes where the last one was, and its worker fetches
// the rest alone.
func (r *rig) rest(t *testing.T) {
	es := []*Engine{r.prefill, r.decode, r.second}
	if r.Kind == "sglang" {
		radix := func(name string) Spec {
			return Spec{Name: name, Role: "decode", Args: []string{"--disaggregation-decode-enable-radix-cache"}}
		}
		es = append(es[:1], r.launch(t, radix("radix-1"), radix("radix-2"))...)
	}
	r.turns(t, "decode workers with a prefix cache", es)
	if r.Kind != "vllm" {
		return
	}
	bare := func(role string) Spec {
		return Spec{Name: "bare-" + role, Role: role, Args: []string{"--no-enable-prompt-tokens-details"}}
	}
	r.turns(t, "workers without --enable-prompt-tokens-details", r.launch(t, bare("prefill"), bare("decode")))
}

// turns has three conversations at a pair, turn by turn.
func (r *rig) turns(t *testing.T, what string, es []*Engine) {
	g := r.serve(t, "gateway-"+es[1].Name, es, "--no-decode-fallback")
	r.part(t, what, g.URL, 0, func(b *believer) {
		metric := map[string]string{"vllm": "vllm:nixl_bytes_transferred_sum", "sglang": "sglang:kv_transfer_total_mb_sum"}[r.Kind]
		moved := func() (sum float64) {
			for _, e := range es {
				var none error // before the first transfer, and at SGLang's decode workers
				sum += e.Metric(t.Context(), metric, &none)
			}
			return sum
		}
		var talks [3]string // messages so far
		var last [3]routing
		size, of := map[string]int{"vllm": 128, "sglang": 16}[r.Kind], 0. // tokens of a block, and what moving one takes
		for turn := range 4 {
			for i := range talks {
				before := moved()
				talks[i] += fmt.Sprintf(`{"role":"user","content":"%s"}`, words(30000+100*i+turn, 60))
				_, text := b.ask(fmt.Sprintf("conversation %d, turn %d", i, turn), chatPath,
					`{"model":"tiny","max_tokens":4,"temperature":0,"messages":[`+talks[i]+`]}`)
				talks[i] += "," + put(`{"role":"assistant"}`, "content", quoted(text)) + ","
				one := (moved() - before) / float64((b.last.prompt+size-1)/size-b.last.Decode.Overlap)
				of = cmp.Or(of, one)
				assert.InEpsilon(t, of, one, 0.01, "conversation %d, turn %d: moved of each block that decode lacks", i, turn)
				if turn > 0 {
					assert.Equal(t, last[i].Decode.Worker, b.last.Decode.Worker, "conversation %d, turn %d", i, turn)
					assert.Greater(t, b.last.Decode.Overlap, last[i].Decode.Overlap, "conversation %d, turn %d", i, turn)
				}
				last[i] = b.last
			}
		}
	})
}
