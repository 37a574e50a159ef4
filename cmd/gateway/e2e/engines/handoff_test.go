package engines

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/pools"
)

// A pair may differ in block size: each pool is looked up, and booked, in its own
// blocks, and a conversation is found where it was computed.
func TestPairOfDifferentBlockSizes(t *testing.T) {
	f := fleet.New(t, fleet.Options{Prefill: 2, Decode: 2, Worker: func(c *devfleet.WorkerConfig) {
		if c.Engine.Role == string(pools.Decode) {
			c.Engine.BlockSize = 64
		}
	}})
	prompt := strings.Repeat(fleet.Long, 20)
	ids := fleet.TextPrompt(prompt)
	ask := func() fleet.Answer {
		return f.Post(fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":8,"prompt":"`+prompt+`",`+
			`"nvext":{"extra_fields":["worker_id","routing"]}}`)
	}
	first := ask()
	require.True(t, first.Status == http.StatusOK && f.Text(first) == fleet.Expected(ids, 8), "%d %s", first.Status, first.Body)
	served := f.Parse(first.Body).Nvext.WorkerID
	f.Idle()
	f.Eventually("the prompt is known", func() bool {
		for _, pool := range f.Gateway.Fleet.Report() {
			for _, w := range pool.Workers {
				size := map[pools.Role]int{pools.Prefill: 16, pools.Decode: 64}[pool.Role]
				if (w.ID == served.Prefill || w.ID == served.Decode) && w.CachedBlocks < len(ids)/size {
					return false
				}
			}
		}
		return true
	})
	again := ask()
	assert.Equal(t, served.Prefill, f.Parse(again.Body).Nvext.WorkerID.Prefill, "the prefill worker of the prompt sent again")
	assert.Contains(t, string(again.Body), fmt.Sprintf(`"predicted_cached_tokens":%d`, len(ids)/16*16))
	f.Idle()
}

// TestBodiesOfRealClientsAreServed sends small bodies of the forms that clients send to strict engines of each kind,
// prefill and decode apart: what the engines would refuse though it means nothing does not reach them.
func TestBodiesOfRealClientsAreServed(t *testing.T) {
	files, err := filepath.Glob("../../../../internal/openai/testdata/bodies/*.json")
	require.True(t, err == nil && len(files) >= 8, "%d bodies, %v", len(files), err)
	limits := regexp.MustCompile(`("(?:max|min)(?:_completion)?_tokens" ?: ?)\d+`)
	model := regexp.MustCompile(`"model" ?: ?"m"`)
	for _, engine := range []string{"vllm", "sglang", "trtllm"} {
		t.Run(engine, func(t *testing.T) {
			o := fleet.Of(engine)
			o.Prefill, o.Decode = 1, 1
			f := fleet.New(t, o)
			for _, file := range files {
				raw, err := os.ReadFile(file)
				require.NoError(t, err)
				body := model.ReplaceAllString(limits.ReplaceAllString(string(raw), "${1}6"), `"model":"tandem-sim"`)
				path := "/v1/chat/completions"
				if !strings.Contains(body, `"messages"`) {
					path = fleet.CompletionPath
				}
				f.Good(path, body)
			}
			f.Idle()
		})
	}
}

// With two concurrent legs each form of an answer reports what prefill had cached: prefill's own answer may be read
// after decode's, and may lack the number, where decode's has it.
func TestCachedTokensOfAPair(t *testing.T) {
	for _, reports := range []bool{true, false} {
		f := sglangFleet(t, 1, 1, func(w *devfleet.WorkerConfig) {
			w.Engine.NoCacheReport = !reports && w.Engine.Role == "prefill"
		}, nil)
		for i, form := range []string{"", `"stream":true,`, `"stream":true,"stream_options":{"include_usage":true},`} {
			for _, tokens := range []int{1, 8} {
				prompt := strings.Repeat(fmt.Sprintf("%d.%d. %s", i, tokens, fleet.Long), 2)
				body := fmt.Sprintf(`{"model":"tandem-sim","max_tokens":%d,%s"prompt":%q,"nvext":{"extra_fields":["routing",`+
					`"timing"]}}`, tokens, form, prompt)
				f.Post(fleet.CompletionPath, body)
				a := f.Post(fleet.CompletionPath, body)
				got := string(a.Body) + strings.Join(a.Events, "\n")
				known := reports || form != `"stream":true,` // a stream without usage does not have it
				if strings.Contains(got, `"actual_cached_tokens":0`) || strings.Contains(got, `"actual_cached_tokens":`) != known ||
					strings.Contains(got, `"usage":{`) && strings.Contains(got, `"cached_tokens":0}`) {
					t.Errorf("prefill reports: %v, %s%d tokens: %s", reports, form, tokens, got)
				}
			}
		}
		freed(f, t, "at the end")
	}
}

// The log and the metric report what the worker that computed the prompt had cached, whether another decodes or not.
func TestCachedTokensOfTheWorkerThatComputed(t *testing.T) {
	for name, o := range map[string]fleet.Options{
		"two legs": {Prefill: 1, Decode: 1}, "one leg": {Both: 1},
		"prefill's usage has no details": {Prefill: 1, Decode: 1, Worker: func(w *devfleet.WorkerConfig) {
			w.Engine.Engine, w.Engine.NoCacheReport = "vllm", w.Engine.Role == "prefill"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			o.Gateway = func(c *stack.GatewayConfig) { c.Flow.Seed = 19 } // names the second request 1ddb4fcdd7c6d93a: its answer's id has -1 twice
			f := fleet.New(t, o)
			body := `{"model":"tandem-sim","max_tokens":2,"prompt":"` + strings.Repeat(fleet.Long, 4) + `"}`
			f.Post(fleet.CompletionPath, body)
			again := f.Parse(f.Post(fleet.CompletionPath, body).Body)
			require.NotZero(t, again.Usage.Details.Cached, "the second time nothing was cached")
			f.Eventually("both requests are counted", func() bool { return f.Value("tandem_frontend_cached_tokens") == 2 })
			id, _, _ := strings.Cut(strings.TrimPrefix(again.ID, "cmpl-"), "-")
			if logged := f.Logged("engine_request_id="+id, "cached_tokens"); logged == "" || logged == "0" {
				t.Errorf("%d cached tokens in the answer, %q in the log", again.Usage.Details.Cached, logged)
			}
		})
	}
}

// The decode workers cannot pull KV from a prefill worker: no answer fails, the other prefill worker or decode itself
// prefills, no circuit but that worker's opens, and what it holds goes with its lease.
func TestKVCannotBePulled(t *testing.T) {
	for name, silent := range map[string]bool{"refused": false, "silent": true} {
		for _, c := range []struct {
			prefills, decodes int
			by                string // prefills instead
		}{{2, 1, "prefill-2"}, {2, 2, "prefill-2"}, {1, 1, ""}} {
			fleet.VirtualRun(t, fmt.Sprintf("%s, %dP%dD", name, c.prefills, c.decodes), func(t *testing.T) {
				f := fleet.New(t, fleet.Options{Prefill: c.prefills, Decode: c.decodes, Worker: func(c *devfleet.WorkerConfig) {
					c.Engine.CallTimeout, c.Engine.Lease = 200*time.Millisecond, 2500*time.Millisecond
				}, Gateway: func(c *stack.GatewayConfig) { c.Breakers.OpenFor = time.Hour }})
				round := func(n string) (by map[string]int) {
					t.Helper()
					by = map[string]int{}
					for i := range 20 {
						p, _ := f.Served(f.Exact(fmt.Sprint(n, i, fleet.Long), 6))
						by[p]++
					}
					return by
				}
				require.NotZero(t, round("first")["prefill-1"], "prompts that prefill-1 computed")
				fleet.NetworkOf(t).CutOff(f.Workers["prefill-1"].Record().Transfer, silent)
				by := round("second")
				assert.GreaterOrEqual(t, by[c.by], 15, "prefilled by %v", by)
				for id, s := range f.Circuits() {
					assert.Equal(t, "prefill-1", id, "the worker whose circuit is %s", s)
				}
				if n := strings.Count(f.Logs.String(), `msg="leg failed"`); n == 0 || n > 3*c.decodes+1 &&
					c.prefills > 1 { // one by itself is called all the same
					t.Errorf("%d legs failed", n)
				}
				f.Idle()
			})
		}
	}
}
