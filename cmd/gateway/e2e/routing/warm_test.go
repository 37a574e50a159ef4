package routing

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/fleet"
)

// dialogue is a conversation whose client goes on with each answer.
type dialogue struct {
	f        *fleet.Fleet
	messages []string
	hint     bool
}

// turned is what the client got of a turn.
type turned struct {
	ttft    time.Duration
	prefill string // the worker that computed the prompt
	cached  int    // prompt tokens that it had
}

// turn has the next message answered with so many tokens.
func (d *dialogue) turn(text string, tokens int) (got turned) {
	t := d.f.T
	t.Helper()
	d.messages = append(d.messages, fmt.Sprintf(`{"role":"user","content":%q}`, text))
	began := time.Now()
	a, err := d.f.Try(context.Background(), fleet.ChatPath, fmt.Sprintf(
		`{"model":"tandem-sim","stream":true,"ignore_eos":true,"max_tokens":%d,"messages":[%s],`+
			`"nvext":{"extra_fields":["worker_id","routing"],"agent_hints":{"speculative_prefill":%t}}}`,
		tokens, strings.Join(d.messages, ","), d.hint), func(data string) {
		if got.ttft == 0 && strings.Contains(data, `"content":"`) && !strings.Contains(data, `"content":""`) {
			got.ttft = time.Since(began)
		}
	})
	require.NoError(t, err)
	require.Equal(t, 200, a.Status, "%s", a.Body)
	d.messages = append(d.messages, fmt.Sprintf(`{"role":"assistant","content":%q}`, d.f.Text(a)))
	x := d.f.Nvext(a)
	if got.prefill = x.WorkerID.Prefill; x.Routing.Actual != nil {
		got.cached = *x.Routing.Actual
	}
	return got
}

// warms returns how many next turns' prompts had that outcome.
func warms(f *fleet.Fleet, outcome string) int {
	return int(f.Value("tandem_frontend_speculative_prefills_total", outcome))
}

// TestNextTurnIsWarm: a client that thinks for a second finds its answer's tokens cached where the next prompt is
// computed, and waits less for it. Without the hint it does not.
func TestNextTurnIsWarm(t *testing.T) {
	for _, engine := range []string{"sim", "vllm", "sglang", "trtllm"} {
		fleet.VirtualRun(t, engine, func(t *testing.T) {
			next := map[bool]turned{}
			for _, hint := range []bool{false, true} {
				f := fleet.New(t, fleet.Options{Prefill: 2, Decode: 2, Speedup: 1, Worker: func(c *devfleet.WorkerConfig) { c.Engine.Engine = engine }})
				d := &dialogue{f: f, hint: hint}
				first := d.turn(fleet.Long, 2000)
				<-time.After(time.Second)
				if hint {
					assert.Equal(t, 1, warms(f, "warmed"), "warmed")
				}
				next[hint] = d.turn("And then?", 4)
				assert.Equal(t, first.prefill, next[hint].prefill)
				f.Idle()
			}
			t.Logf("%s: without the hint %+v, with it %+v", engine, next[false], next[true])
			assert.GreaterOrEqual(t, next[true].cached, next[false].cached+1900)
			assert.Less(t, next[true].ttft, next[false].ttft*3/4)
		})
	}
}

// TestNextTurnOfOneLeg: a worker that does both has its answer's tokens cached and is not called for the rest.
func TestNextTurnOfOneLeg(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		next := map[bool]turned{}
		for _, hint := range []bool{false, true} {
			f := fleet.New(t, fleet.Options{Both: 2, Speedup: 1})
			d := &dialogue{f: f, hint: hint}
			d.turn(strings.Repeat(fleet.Long, 20), 300)
			<-time.After(time.Second)
			next[hint] = d.turn("And then?", 4)
			<-time.After(time.Second)
			t.Logf("hint %t: %+v; warmed %d, cached %d", hint, next[hint], warms(f, "warmed"), warms(f, "cached"))
			if hint {
				assert.Equal(t, 2, warms(f, "cached"))
			}
			f.Idle()
		}
		assert.Equal(t, next[true].ttft, next[false].ttft)
	})
}

// TestWarmingIsFree: requests wait no longer than without the hint where prompts are computed for nobody; a fleet that
// always has work gets no such call.
func TestWarmingIsFree(t *testing.T) {
	for _, c := range []struct {
		name     string
		clients  int
		thinking time.Duration
		tokens   int  // of an answer
		warm     bool // it happens
	}{
		{"now and then idle", 3, 400 * time.Millisecond, 100, true},
		{"busier", 6, 400 * time.Millisecond, 100, true},
		{"overload", 40, 0, 20, false},
	} {
		fleet.VirtualRun(t, c.name, func(t *testing.T) {
			mean := map[bool]time.Duration{}
			for _, hint := range []bool{false, true} {
				f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1, Speedup: 1})
				var mu sync.Mutex
				var all []time.Duration
				var group sync.WaitGroup
				calls := sync.OnceValue(func() int { return warms(f, "warmed") + warms(f, "yielded") + warms(f, "failed") })
				for i := range c.clients {
					group.Go(func() {
						d := &dialogue{f: f, hint: hint}
						for k := range 6 {
							if k == 5 {
								calls() // before the first client ends, and the fleet has time
							}
							got := d.turn(fmt.Sprintf("%d/%d: %s", i, k, strings.Repeat(fleet.Long, 4)), c.tokens)
							mu.Lock()
							all = append(all, got.ttft)
							mu.Unlock()
							<-time.After(c.thinking + time.Duration(i)*37*time.Millisecond)
						}
					})
				}
				group.Wait()
				sum := time.Duration(0)
				for _, d := range all {
					sum += d
				}
				mean[hint] = sum / time.Duration(len(all))
				t.Logf("hint %t: mean TTFT %v; calls under load %d; warmed %d, cached %d, yielded %d, busy %d",
					hint, mean[hint], calls(), warms(f, "warmed"), warms(f, "cached"), warms(f, "yielded"), warms(f, "busy"))
				if hint {
					assert.Equal(t, c.warm, calls() > 0, "calls")
				}
				f.Idle()
			}
			if c.warm { // else nothing differs but the order of goroutines, which is worth 3 % here
				assert.LessOrEqual(t, mean[true], mean[false]*110/100)
			}
		})
	}
}
