package routing

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/pools"
)

// A vLLM whose buffer is too short for what the gateway missed: the rank is predicted, requests make it re-announce
// what it uses, and once it has done so for as long as a prediction lasts its view is used. Without requests it stays
// predicted, as does an engine of a release without re-announcing.
func TestLostEventsAreReannounced(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		role    pools.Role
		ask     bool
		dialect wire.Dialect
		heals   bool
	}{
		{"asked", pools.Both, true, wire.VLLM, true},
		{"asked, before a decode worker", pools.Prefill, true, wire.VLLM, true},
		{"not asked", pools.Both, false, wire.VLLM, false},
		{"an older release", pools.Both, true, wire.VLLMArrays, false},
	} {
		fleet.VirtualRun(t, c.name, func(t *testing.T) {
			engine := fleet.NewStock(t, engine.Config{Role: string(c.role), ID: "v1", Speedup: 50, TotalKVBlocks: 40_000}, c.dialect, "")
			engine.KVEvents.ZMQ.BufferSteps = 2
			published := fmt.Sprintf("127.0.0.1:%d", engine.Events)
			cfg := fleet.GatewayConfig()
			cfg.Reannounce = c.ask
			cfg.Events.RetryMin, cfg.Events.RetryMax, cfg.Events.Relearn = 5*time.Millisecond, 50*time.Millisecond, 100*time.Millisecond
			cfg.Workers.Static = append(cfg.Workers.Static, engine.Endpoint(t, engine.Published()))
			f := fleet.NewStatic(t, cfg)
			f.Launch(engine)
			fleet.NetworkOf(t).CutOff(published, false)
			if c.role == pools.Prefill {
				f.Start(pools.Decode, "d1", fleet.Options{Speedup: 50}, slog.New(slog.DiscardHandler))
			}
			f.Healthy()
			turn := func(conversation int, further string) fleet.Answer {
				t.Helper()
				prompt := strings.Repeat(fmt.Sprintf("Conversation %d. %s", conversation, fleet.Long), 8) + further
				a := f.Good(fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":2,"nvext":{"extra_fields":["routing"]},`+
					`"prompt":"`+prompt+`"}`)
				return a
			}
			for i := range 6 {
				turn(i, "")
			}
			if s := f.Sources()["v1"]; s.State != "waiting" || s.Blocks != 0 {
				t.Fatalf("before any event it is %+v", s)
			}
			fleet.NetworkOf(t).Reopen(published)
			f.Eventually("what it published before is known to be lost", func() bool { return f.Sources()["v1"].State == "predicted" })
			began, turns := time.Now(), 0
			for ; turns < 60 || time.Since(began) < 300*time.Millisecond; turns++ {
				turn(turns%6, strings.Repeat(fmt.Sprint("Turn ", turns/6, ". "), 1+turns/6*8))
				if f.Sources()["v1"].State == "live" {
					break
				}
			}
			s := f.Sources()["v1"]
			t.Logf("after %d turns in %v: %+v", turns, time.Since(began).Round(time.Millisecond), s)
			if !c.heals {
				assert.True(t, s.State == "predicted" && s.Reason == "loss" && s.Repaired["chains"] == 0, "it is %+v", s)
				return
			}
			require.True(t, s.State == "live" && s.Reason == "" && s.Repaired["chains"] == 1 && s.Losses == 1, "it is %+v", s)
			// What was computed before the first event is in the view by now, to the block.
			for i := range 6 {
				if r := f.Nvext(turn(i, "")).Routing; *r.Actual < 300 || r.Predicted < *r.Actual || r.Predicted > *r.Actual+16 {
					t.Errorf("conversation %d: %d tokens cached, %d believed", i, *r.Actual, r.Predicted)
				}
			}
			assert.Contains(t, f.Logs.String(), "KV events repaired", "the log does not report the repair")
			f.Idle()
		})
	}
}

// A prompt whose tokens the gateway does not have, because of tools, is known
// again by its text, turn by turn; another salt is another conversation.
func TestTextIsPredicted(t *testing.T) {
	t.Parallel()
	t.Run("without events", func(t *testing.T) { textIsPredicted(t, fleet.WithoutEvents) })
	t.Run("beside events", func(t *testing.T) { textIsPredicted(t, nil) })
}

func textIsPredicted(t *testing.T, gateway func(c *stack.GatewayConfig)) {
	f := fleet.New(t, fleet.Options{Prefill: 3, Gateway: gateway, Decode: 1})
	messages := `{"role":"system","content":"` + strings.Repeat(fleet.Long, 6) + `"}`
	ask := func(turn int, salt string) fleet.Answer {
		id := fmt.Sprint("turn-", turn, salt)
		body := `{"model":"tandem-sim","max_tokens":2,"nvext":{"extra_fields":["worker_id"]},` + salt +
			`"tools":[{"type":"function","function":{"name":"look"}}],"messages":[` + messages + `]}`
		a := f.Good(fleet.ChatPath, body, "x-request-id", strings.NewReplacer(`"`, "", ",", "").Replace(id))
		return a
	}
	served := f.Parse(ask(0, "").Body).Nvext.WorkerID.Prefill
	before := 0
	for turn := 1; turn < 6; turn++ {
		before = (len(messages) + len(`[[{"type":"function","function":{"name":"look"}}]`)) / 64
		messages += fmt.Sprintf(`,{"role":"user","content":"And then, number %d? %s"}`, turn, fleet.Long)
		assert.Equal(t, served, f.Parse(ask(turn, "").Body).Nvext.WorkerID.Prefill,
			"the worker of turn %d", turn)
		assert.Equal(t, fmt.Sprint(before), f.OverlapOf(fmt.Sprint("turn-", turn)), "the overlap in turn %d", turn)
	}
	ask(9, `"cache_salt":"other",`)
	assert.Equal(t, "0", f.OverlapOf("turn-9cache_salt:other"), "the overlap under another salt")
	f.Idle()
}
