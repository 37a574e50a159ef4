package handoff

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// warmer is engines of role both. It answers chats; ahead answers calls that warm, whose bodies it keeps.
type warmer struct {
	ahead func(ctx context.Context, leg http1.Leg) (http1.Stream, error)

	answered func() // before a chat's answer

	mu     sync.Mutex
	warm   []string // bodies of the calls that warm
	now    int      // such calls under way
	most   int      // of them at a time
	served []string // the workers of the others
}

const hint = `,"nvext":{"agent_hints":{"speculative_prefill":true}}`

var (
	greeting    = strings.Repeat("Good day to you. ", 50)
	wholeAnswer = `{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"` + greeting + `"},` +
		`"finish_reason":"stop"}],"usage":{"prompt_tokens":40,"completion_tokens":250,"total_tokens":290}}`
)

func (e *warmer) Call(ctx context.Context, leg http1.Leg) (http1.Stream, error) {
	e.mu.Lock()
	warms := leg.Purpose == string(pools.Prefill)
	if warms {
		var body strings.Builder
		for _, b := range leg.Body {
			body.Write(b)
		}
		e.warm = append(e.warm, body.String())
		e.now++
		e.most = max(e.most, e.now)
	} else {
		e.served = append(e.served, leg.Worker)
	}
	e.mu.Unlock()
	if !warms && e.answered != nil {
		e.answered()
	}
	if !warms || e.ahead == nil {
		return answer(200, wholeAnswer), nil
	}
	defer func() {
		e.mu.Lock()
		e.now--
		e.mu.Unlock()
	}()
	return e.ahead(ctx, leg)
}

// hangs is an engine that computes until its caller leaves.
func hangs(ctx context.Context, leg http1.Leg) (http1.Stream, error) {
	<-ctx.Done()
	return nil, broken(leg, context.Cause(ctx))
}

// counts observes what became of next turns' prompts.
type counts struct {
	unobserved
	mu  sync.Mutex
	all map[string]int
}

func (c *counts) Warmed(_, outcome string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all[outcome]++
}

// warmed is a house whose requests are counted.
type warmed struct {
	*house
	asked int
}

// warmHouse is a house of workers of role both.
func warmHouse(t *testing.T, e *warmer, workers ...string) (*warmed, *counts) {
	t.Helper()
	roles := map[string]pools.Role{}
	for _, w := range workers {
		roles[w] = pools.Both
	}
	seen := &counts{all: map[string]int{}}
	h := build(t, roles, e, nil)
	h.observer, h.cleanup.observer = seen, seen
	return &warmed{house: h}, seen
}

// chat serves a chat with more fields.
func (h *warmed) chat(t *testing.T, more string) error {
	t.Helper()
	h.asked++
	text := strings.Repeat(fmt.Sprintf("Where is prompt %d? ", h.asked), 20)
	body := fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]%s}`, text, more)
	return h.Serve(t.Context(), &Call{ID: "x", Request: scanned(t, openai.Chat, body), Arrival: time.Now()}, new(written))
}

// pause lets time pass: a prompt waits as long for an idle worker in these tests, or a little less.
func pause() {
	<-time.After(3 * warmEvery)
	synctest.Wait()
}

// holdsNothing checks that nothing is booked.
func (h *house) holdsNothing(t *testing.T) {
	t.Helper()
	for _, l := range h.rooms.Routers.For("m", pools.Both).Loads(h.rooms.Roster.Snapshot("m", pools.Both)) {
		assert.Zero(t, [3]int{l.Requests, l.ActiveBlocks, l.PrefillTokens}, l.Worker)
	}
}

func TestWarm(t *testing.T) {
	bubble(t, "the next turn's prompt is computed once the worker is idle", func(t *testing.T) {
		e := new(warmer)
		h, seen := warmHouse(t, e, "b1")
		require.NoError(t, h.chat(t, hint+`,"max_tokens":9,"stop":["x"],"tool_choice":"required",`+
			`"tools":[{"type":"function","function":{"name":"f"}}]`))
		pause()
		require.NoError(t, h.Close(t.Context()))
		require.Len(t, e.warm, 1)
		next := scanned(t, openai.Chat, e.warm[0])
		messages := next.Prompt.Messages()
		require.Len(t, messages, 3)
		assert.Equal(t, greeting, messages[1].Content)
		assert.Equal(t, []any{"assistant", "user", "", 1, false, false}, []any{messages[1].Role, messages[2].Role, messages[2].Content,
			next.MaxTokens, next.Has("nvext"), next.Has("kv_transfer_params")})
		assert.Equal(t, map[string]int{Warmed: 1}, seen.all)
		h.holdsNothing(t)
	})
	bubble(t, "nothing without the hint, or where the next prompt is not known", func(t *testing.T) {
		e := new(warmer)
		h, seen := warmHouse(t, e, "b1")
		require.NoError(t, h.chat(t, ""))
		require.NoError(t, h.chat(t, `,"n":2`+hint))
		require.NoError(t, h.chat(t, `,"continue_final_message":true,"add_generation_prompt":false`+hint))
		pause()
		require.NoError(t, h.Close(t.Context()))
		assert.Empty(t, e.warm)
		assert.Equal(t, 0, seen.all[Warmed])
		h.holdsNothing(t)
	})
	bubble(t, "a request ends the call on its worker, and steers clear of none", func(t *testing.T) {
		e := &warmer{ahead: hangs}
		h, seen := warmHouse(t, e, "b1")
		require.NoError(t, h.chat(t, hint))
		pause()
		require.Equal(t, 1, e.now)
		before := time.Now()
		require.NoError(t, h.chat(t, ""))
		synctest.Wait()
		assert.Equal(t, map[string]int{WarmYield: 1}, seen.all)
		assert.Zero(t, time.Since(before), "the request waited")
		h.holdsNothing(t)
		assert.Equal(t, fault.Closed, h.breakers.State("b1", pools.Decode), "a call that ends for a request blames nobody")
	})
	bubble(t, "a worker dies of it, and requests go on elsewhere", func(t *testing.T) {
		e := &warmer{ahead: func(_ context.Context, leg http1.Leg) (http1.Stream, error) { return nil, broken(leg, io.EOF) }}
		h, seen := warmHouse(t, e, "b1", "b2")
		require.NoError(t, h.chat(t, hint))
		pause()
		assert.Equal(t, map[string]int{WarmFailed: 1}, seen.all)
		died := e.served[0]
		assert.Equal(t, fault.Open, h.breakers.State(died, pools.Decode))
		for range 4 {
			require.NoError(t, h.chat(t, ""))
		}
		assert.NotContains(t, e.served[1:], died)
		assert.Len(t, e.warm, 1, "not tried again")
		h.holdsNothing(t)
	})
	bubble(t, "a worker on trial is left to requests", func(t *testing.T) {
		e := new(warmer)
		h, seen := warmHouse(t, e, "b1")
		e.answered = func() { h.open(t, pools.Decode, "b1") }
		require.NoError(t, h.chat(t, hint))
		e.answered = nil
		<-time.After(openFor)
		pause()
		assert.Equal(t, map[string]int{WarmFailed: 1}, seen.all)
		assert.Empty(t, e.warm)
		require.NoError(t, h.chat(t, ""), "the trial was free")
	})
	bubble(t, "a shutdown ends calls and waits", func(t *testing.T) {
		e := &warmer{ahead: hangs}
		h, seen := warmHouse(t, e, "b1", "b2")
		for range 8 {
			require.NoError(t, h.chat(t, hint))
		}
		pause()
		before := time.Now()
		require.NoError(t, h.Close(t.Context()))
		assert.Zero(t, time.Since(before))
		assert.Equal(t, map[string]int{WarmYield: 8}, seen.all)
		h.holdsNothing(t)
	})
	bubble(t, "a drained worker gets no call", func(t *testing.T) {
		e := new(warmer)
		h, seen := warmHouse(t, e, "b1")
		e.answered = func() { h.drain(t, "b1") }
		require.NoError(t, h.chat(t, hint))
		pause()
		assert.Equal(t, map[string]int{WarmFailed: 1}, seen.all)
		assert.Empty(t, e.warm)
	})
	bubble(t, "hints of every request cost a bounded list, a call a worker, and no request its time", func(t *testing.T) {
		e := &warmer{ahead: hangs}
		h, seen := warmHouse(t, e, "b1", "b2")
		before := time.Now()
		for range 200 {
			require.NoError(t, h.chat(t, hint))
			<-time.After(time.Millisecond)
			synctest.Wait()
			assert.LessOrEqual(t, h.warming.list, warmAtOnce)
		}
		assert.Equal(t, 200*time.Millisecond, time.Since(before), "requests wait for none")
		assert.LessOrEqual(t, e.most, 2)
		require.NoError(t, h.Close(t.Context()))
		total := 0
		for _, n := range seen.all {
			total += n
		}
		assert.Equal(t, 200, total, "%v", seen.all)
		assert.GreaterOrEqual(t, seen.all[WarmBusy], 200-2*warmAtOnce, "%v", seen.all)
		h.holdsNothing(t)
	})
}

// A request that has to wait ends all of its model's calls, those on workers that it may not take too.
func TestWarmYieldsToTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &warmer{ahead: hangs}
		h, seen := warmHouse(t, e, "b1", "b2")
		require.NoError(t, h.chat(t, hint))
		pause()
		require.Equal(t, 1, e.now)
		_, err := h.reserve(h.ask("b1", "b2"))
		require.Error(t, err)
		synctest.Wait()
		assert.Equal(t, map[string]int{WarmYield: 1}, seen.all)
		h.holdsNothing(t)
	})
}

// A request that another gateway places on the worker ends the call.
func TestWarmYieldsToOtherGateways(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &warmer{ahead: hangs}
		h, seen := warmHouse(t, e, "b1")
		require.NoError(t, h.chat(t, hint))
		pause()
		require.Equal(t, 1, e.now)
		cfg := router.DefaultConfig()
		cfg.OnBooking = func(bool) {}
		theirs, err := router.New(cfg.For(pools.Both), index.New(index.Config{}))
		require.NoError(t, err)
		pool := h.rooms.Roster.Snapshot("m", pools.Both)
		_, err = theirs.Reserve(pool, router.Request{ID: "1", ISL: 100}, time.Now())
		require.NoError(t, err)
		h.rooms.Routers.For("m", pools.Both).ApplyShares("other", changed(theirs.Changes), time.Now())
		<-time.After(warmEvery)
		synctest.Wait()
		assert.Equal(t, map[string]int{WarmYield: 1}, seen.all)
		require.NoError(t, h.Close(t.Context()))
	})
}

// changed returns what a router sends to other gateways.
func changed[T any](changes func(time.Time, func(T))) (all []T) {
	changes(time.Now(), func(s T) { all = append(all, s) })
	return all
}

// A request that is served elsewhere leaves the call alone; but what is booked for nobody kept no request away.
func TestWarmKeepsNobodyAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &warmer{ahead: hangs}
		h, seen := warmHouse(t, e, "b1", "b2")
		require.NoError(t, h.chat(t, hint))
		pause()
		at := e.served[0]
		booked := func() (tokens int) {
			for _, l := range h.rooms.Routers.For("m", pools.Both).Loads(h.rooms.Roster.Snapshot("m", pools.Both)) {
				if l.Worker == at {
					tokens = l.PrefillTokens
				}
			}
			return tokens
		}
		assert.Positive(t, booked(), "granting is booking")
		other := map[string]string{"b1": "b2", "b2": "b1"}[at]
		require.NoError(t, h.chat(t, fmt.Sprintf(`,"nvext":{"backend_instance_id":%q}`, other)))
		assert.Equal(t, []string{at, other}, e.served)
		assert.Zero(t, booked(), "when a request chooses")
		assert.Equal(t, 1, e.now, "calls")
		require.NoError(t, h.Close(t.Context()))
		assert.Equal(t, map[string]int{WarmYield: 1}, seen.all)
		h.holdsNothing(t)
	})
}
