package failures

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
)

// What an engine reports of the client's own mistake, in an event as vLLM does after its head has left, or in an answer with status 200, and an answer
// for which the gateway has no memory: the client gets it with its status, one call is made for it, and no circuit opens.
func TestAnswersThatBlameNoWorker(t *testing.T) {
	const mistake = `{"error":{"message":"n must be 1","type":"BadRequestError","param":"n","code":400}}`
	large := `{"choices":[{"index":0,"text":" a","logprobs":{"tokens":["` + strings.Repeat("x", 12<<20) + `"]},"finish_reason":"length"}]}`
	small := func(c *stack.GatewayConfig) { c.Edge.MaxBodyBytes, c.Edge.BodyBudgetBytes = 1<<20, 32<<20 }
	for _, c := range []struct {
		name, answer string
		status       int
		code, param  string
	}{
		{"a mistake", mistake, http.StatusBadRequest, "rejected_by_engine", "n"},
		{"no memory", large, http.StatusServiceUnavailable, "body_budget_exhausted", ""},
	} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprint(c.name, ", stream ", stream), func(t *testing.T) {
				serve := fleet.Says(c.answer)
				if stream {
					serve = fleet.Streams(c.answer, "[DONE]")
				}
				f, e := fleet.NewFake(t, pools.Both, 4, serve, small)
				for range 5 {
					a := f.Post(fleet.CompletionPath, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":1,"echo":true,"logprobs":5,"stream":%v,"prompt":"hi"}`, stream))
					f.Refused(a, c.status, c.code, c.param)
				}
				if n, open := e.Calls.Load(), f.Circuits(); n != 5 || len(open) > 0 {
					t.Errorf("%d calls for 5 requests, circuits %v", n, open)
				}
				f.Idle()
			})
		}
	}
	t.Run("prefill's", func(t *testing.T) {
		f, p := fleet.NewFake(t, pools.Prefill, 2, fleet.Says(`{"error":{"message":"no","type":"BadRequestError","code":422}}`))
		d := fleet.NewEngines(f, pools.Decode, 1, fleet.Streams("[DONE]"))
		for range 4 {
			f.Refused(f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 4)), http.StatusUnprocessableEntity, "", "")
		}
		if n := p.Calls.Load(); n != 4 || d.Calls.Load() != 0 || len(f.Circuits()) > 0 {
			t.Errorf("%d calls to prefill, %d to decode, circuits %v", n, d.Calls.Load(), f.Circuits())
		}
		f.Idle()
	})
}

// A worker that lost its key, its model or its route answers every call at once,
// and so draws requests. It is the worker's failure: another one answers, and no
// client is refused for its own key.
func TestWorkersOwn4xx(t *testing.T) {
	for status, code := range map[int]string{401: "engine_error", 404: "not_served", 408: "engine_error"} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			f, bad := fleet.NewFake(t, pools.Both, 1, fleet.Fails(status))
			f.Refused(f.Post(fleet.CompletionPath, fleet.Ask("hi", 4)), http.StatusBadGateway, code, "")
			f.Start(pools.Both, "good", fleet.Options{Speedup: 1000}, slog.New(slog.DiscardHandler))
			for i := range 40 {
				f.Exact(fmt.Sprint(i, fleet.Long), 2)
			}
			// A 408 on a connection that had been idle is answered to by one more call.
			most := map[int]int64{408: 6}[status]
			if n := bad.Calls.Load(); n < 3 || n > max(3, most) || f.Circuits()["engine-both-1"] != fault.Open {
				t.Errorf("it was called %d times, circuits %v", n, f.Circuits())
			}
			f.Idle()
		})
	}
}
