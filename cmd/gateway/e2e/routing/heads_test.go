package routing

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router/replica"
)

// twoGateways is two gateways in one group, a and b, in front of one decode worker that runs one request at a time.
// heads counts the messages that carry heads.
func twoGateways(t *testing.T, mode string) (a, b *fleet.Fleet, group *nats.Conn, heads *atomic.Int64) {
	t.Helper()
	url := fleet.StartNATS(t)
	in := func(c *stack.GatewayConfig) { c.Router.Mode = mode }
	a = fleet.New(t, fleet.Options{Prefill: 1, Decode: 1, Speedup: 1, NATS: url, Gateway: in,
		Worker: func(c *devfleet.WorkerConfig) { c.Engine.MaxNumSeqs = 1 }})
	b = fleet.New(t, fleet.Options{Alone: true, NATS: url, Gateway: in})
	for _, w := range a.Workers {
		b.Put(w.Record())
	}
	group, err := nats.Connect(url)
	require.NoError(t, err)
	t.Cleanup(group.Close)
	heads = new(atomic.Int64)
	_, err = group.Subscribe("tandem.replica.auto.*.say", func(m *nats.Msg) {
		if e, _, err := natsbus.Open(m.Data); err == nil && e.Kind == natsbus.Heads {
			heads.Add(1)
		}
	})
	require.NoError(t, err)
	for _, f := range []*fleet.Fleet{a, b} {
		f.Eventually("each knows the other", func() bool {
			var report struct {
				Replicas []struct{ State string }
			}
			f.Get("/workers", &report)
			return f.Status("/health") == http.StatusOK && len(report.Replicas) == 1 && report.Replicas[0].State == "whole"
		})
	}
	return a, b, group, heads
}

// TestStrictPriorityAcrossGateways: a slot that becomes free at gateway a goes to what waits at b with a higher strict
// priority, before all that has waited at a for longer. An equal one does not go before them.
func TestStrictPriorityAcrossGateways(t *testing.T) {
	for _, c := range []struct {
		mode     string
		ofA, ofB int
		want     string
		yields   bool
	}{
		{"kv", 0, 10, "b b a a a", true},
		{"eft", 0, 10, "b b a a a", true},
		{"kv", 10, 10, "a a a b b", false}, // as without the heads: who frees the place is the first to know
	} {
		t.Run(fmt.Sprint(c.mode, c.ofA, c.ofB), func(t *testing.T) {
			a, b, _, heads := twoGateways(t, c.mode)
			// Room is left for 20 ms at most, and then none for a second: where the machine stands still for longer
			// than that, a place goes to who sees it first, and it is tried again. The last place is the last all the
			// same.
			got, last := "", false
			for try := range 6 {
				if try > 0 {
					<-time.After(1100 * time.Millisecond)
				}
				if got = serveBoth(a, b, c.ofA, c.ofB, heads); got == c.want {
					break
				}
				last = last || got[len(got)-1] == c.want[len(c.want)-1]
				t.Logf("served %q", got)
			}
			assert.True(t, got == c.want || last, "served %q, want %q", got, c.want)
			if s := a.Gateway.Flow.Waiting()["tandem-sim"]; (s.YieldedTotal > 0) != c.yields {
				t.Errorf("a left room %d times", s.YieldedTotal)
			}
		})
	}
}

// serveBoth has three requests wait at a and two at b, of these strict priorities, for a place that a frees. It returns
// the order in which they are served.
func serveBoth(a, b *fleet.Fleet, ofA, ofB int, heads *atomic.Int64) string {
	a.T.Helper()
	leave := occupy(a)
	b.Eventually("b knows that the worker is taken", func() bool { return b.Books() != "" })
	both := line{}
	send := func(f *fleet.Fleet, name string, strict, n int) {
		for i := range n {
			both.f = f
			both.join(name, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":2,"stream":true,`+
				`"nvext":{"agent_hints":{"strict_priority":%d}},"prompt":%q}`, strict, fmt.Sprint(name, i, fleet.Long)))
		}
	}
	before := heads.Load()
	send(a, "a", ofA, 3)
	if n := heads.Load() - before; ofA == 0 && n != 0 {
		a.T.Errorf("%d messages of heads, and nothing has a strict priority", n)
	}
	send(b, "b", ofB, 2)
	sent := heads.Load()
	b.Eventually("a has got their heads", func() bool { return heads.Load() > sent+2 })
	leave()
	order := both.served()
	a.Idle()
	b.Idle()
	a.Got.Clear()
	last := heads.Load()
	a.Eventually("nothing is published any more", func() bool {
		<-time.After(100 * time.Millisecond)
		was := last
		last = heads.Load()
		return was == last
	})
	return order
}

// TestALyingGatewayBlocksNothing: one that publishes without end that a request of the highest strict priority waits,
// and takes nothing, delays one request in a second by 20 ms.
func TestALyingGatewayBlocksNothing(t *testing.T) {
	a, _, group, heads := twoGateways(t, "auto")
	over, stop := context.WithCancel(context.Background())
	var lies sync.WaitGroup
	defer lies.Wait()
	defer stop()
	lies.Go(func() {
		for seq := uint64(1); over.Err() == nil; seq++ {
			m := replica.Message{Kind: natsbus.Heads, From: "liar", Epoch: 1, Seq: seq, Heads: []replica.ModelHead{
				{Model: "no such model", Head: queue.Head{Strict: 7, Tokens: 1}},
				{Model: "tandem-sim", Head: queue.Head{Lane: 99, Strict: 7}},
				{Model: "tandem-sim", Head: queue.Head{Strict: 1<<32 - 1, Tokens: int(seq % 5)}},
			}}
			assert.NoError(t, group.Publish("tandem.replica.auto.liar.say", m.Append(nil)))
			<-time.After(2 * time.Millisecond)
		}
	})
	a.Eventually("lies have been sent", func() bool { return heads.Load() > 5 })
	stats := func() queue.Stats { return a.Gateway.Flow.Waiting()["tandem-sim"] }
	began, longest := time.Now(), time.Duration(0)
	for i := 0; i < 10 || time.Since(began) < 2200*time.Millisecond; i++ {
		asked := time.Now()
		a.Good(fleet.CompletionPath, fleet.Ask(fmt.Sprint(i, fleet.Long), 2))
		longest = max(longest, time.Since(asked))
	}
	took, s := time.Since(began), stats()
	t.Logf("%d requests within %v, the longest took %v: %d left room, %d times for nothing", s.GrantedTotal, took, longest,
		s.YieldedTotal, s.YieldsUnusedTotal)
	if limit := uint64(took/time.Second) + 1; s.YieldsUnusedTotal == 0 || s.YieldsUnusedTotal > limit || s.YieldedTotal > limit {
		t.Errorf("want from 1 to %d of each", limit)
	}
	a.Idle()
	assert.Equal(t, 1, len(a.Gateway.Flow.Waiting()), "there queues: a model without requests has one")
}
