package admission

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
)

// Where keys are configured a client's priorities do not put it before others, and an
// operator's do.
func TestAClientsKeyDoesNotOvertake(t *testing.T) {
	f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1, Speedup: 1,
		Worker: func(c *devfleet.WorkerConfig) {
			c.Engine.MaxNumSeqs, c.Engine.ContextLength, c.Engine.TotalKVBlocks = 1, 1<<17, 1<<14
		},
		Gateway: func(c *stack.GatewayConfig) { fleet.Keyed(t)(c); c.Flow.Queue.Timeout = time.Minute }})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var group sync.WaitGroup
	begun := make(chan struct{})
	once := sync.OnceFunc(func() { close(begun) })
	group.Go(func() {
		_, _ = f.Try(ctx, fleet.CompletionPath, fleet.Ask(fleet.Long, 100_000), func(string) { once() }, fleet.AsClient...)
	})
	<-begun
	var mu sync.Mutex
	var order []string
	for i, c := range []struct {
		name, hints string
		headers     []string
	}{
		{"first", ``, fleet.AsClient},
		{"greedy", `"nvext":{"agent_hints":{"strict_priority":4294967295,"priority":2147483647}},`, fleet.AsClient},
		{"greedy by header", ``, append([]string{"x-dynamo-request-strict-priority", "9", "x-dynamo-request-priority", "9000"}, fleet.AsClient...)},
		{"operator", `"nvext":{"agent_hints":{"strict_priority":1}},`, fleet.AsOperator},
	} {
		group.Go(func() {
			text := fmt.Sprintf(`{"model":"tandem-sim","max_tokens":2,"stream":true,%s"prompt":%q}`, c.hints, fleet.Long)
			served := sync.OnceFunc(func() {
				mu.Lock()
				defer mu.Unlock()
				order = append(order, c.name)
			})
			if _, err := f.Try(context.Background(), fleet.CompletionPath, text, func(string) { served() }, c.headers...); err != nil {
				t.Error(err)
			}
		})
		f.Eventually(c.name+" waits", func() bool { return waitingAt(f) == i+1 })
	}
	cancel()
	group.Wait()
	if got, want := strings.Join(order, ", "), "operator, first, greedy, greedy by header"; got != want {
		t.Errorf("served %s; want %s", got, want)
	}
	if !strings.Contains(f.Logs.String(), `ignored_hints=nvext.agent_hints.priority,nvext.agent_hints.strict_priority`) {
		t.Error("the log does not name the hints that were ignored")
	}
	f.Idle()
}

// A client's key learns nothing of what another one's prompts have left in caches: the
// query for workers and the routing of a request are an operator's, and a query has
// its line in the log as any request has.
func TestNoPrefixOracleForClients(t *testing.T) {
	f := fleet.New(t, fleet.Options{Gateway: fleet.Keyed(t)})
	send := func(nvext string, headers []string) fleet.Answer {
		t.Helper()
		a, err := f.Try(context.Background(), fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":2,"prompt":"`+fleet.Long+`","nvext":{`+nvext+`}}`, nil, headers...)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := send(``, fleet.AsClient); a.Status != http.StatusOK {
		t.Fatalf("status %d: %s", a.Status, a.Body)
	}
	const query = `"annotations":["query_instance_id"],"extra_fields":["routing"]`
	f.Refused(t, send(query, fleet.AsClient), http.StatusForbidden, "hint_forbidden", "nvext.annotations", "--client-hints")
	f.Refused(t, send(`"extra_fields":["routing"]`, fleet.AsClient), http.StatusForbidden, "hint_forbidden", "nvext.extra_fields")
	a := send(query, fleet.AsOperator)
	if a.Status != http.StatusOK || !strings.Contains(string(a.Body), `"routing"`) {
		t.Errorf("an operator's query: status %d: %s", a.Status, a.Body)
	}
	id := a.Header.Get("X-Request-Id")
	f.Eventually("the query is logged", func() bool {
		for line := range strings.Lines(f.Logs.String()) {
			if strings.Contains(line, "request_id="+id) && strings.Contains(line, "msg=request ") && strings.Contains(line, "query=true") {
				return true
			}
		}
		return false
	})
	f.Idle()
}
