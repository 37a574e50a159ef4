package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
)

// keyed is a setting of a gateway that asks for keys: a client's and an operator's.
func keyed(t *testing.T) func(c *stack.GatewayConfig) {
	t.Helper()
	write := func(name, key string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(key), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	client, admin := write("clients", "sk-client-0123456789"), write("operators", "sk-operator-0123456789")
	return func(c *stack.GatewayConfig) { c.Edge.APIKeyFile, c.Edge.AdminKeyFile = client, admin }
}

var (
	asClient   = []string{"Authorization", "Bearer sk-client-0123456789"}
	asOperator = []string{"Authorization", "Bearer sk-operator-0123456789"}
)

// look is a GET, with the operator's key where there is one.
func (f *fleet) look(path string) (*http.Response, error) {
	req, err := http.NewRequest(http.MethodGet, f.url+path, nil)
	if err != nil {
		return nil, err
	}
	if f.adminKey != "" {
		req.Header.Set("Authorization", "Bearer "+f.adminKey)
	}
	return f.http().Do(req)
}

// Where keys are configured a client's priorities do not put it before others, and an
// operator's do.
func TestAClientsKeyDoesNotOvertake(t *testing.T) {
	f := newFleet(t, options{prefill: 1, decode: 1, speedup: 1,
		worker: func(c *devfleet.WorkerConfig) {
			c.Engine.MaxNumSeqs, c.Engine.ContextLength, c.Engine.TotalKVBlocks = 1, 1<<17, 1<<14
		},
		gateway: func(c *stack.GatewayConfig) { keyed(t)(c); c.Flow.Queue.Timeout = time.Minute }})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var group sync.WaitGroup
	begun := make(chan struct{})
	once := sync.OnceFunc(func() { close(begun) })
	group.Go(func() { _, _ = f.try(ctx, completionPath, ask(long, 100_000), func(string) { once() }, asClient...) })
	<-begun
	var mu sync.Mutex
	var order []string
	for i, c := range []struct {
		name, hints string
		headers     []string
	}{
		{"first", ``, asClient},
		{"greedy", `"nvext":{"agent_hints":{"strict_priority":4294967295,"priority":2147483647}},`, asClient},
		{"greedy by header", ``, append([]string{"x-dynamo-request-strict-priority", "9", "x-dynamo-request-priority", "9000"}, asClient...)},
		{"operator", `"nvext":{"agent_hints":{"strict_priority":1}},`, asOperator},
	} {
		group.Go(func() {
			text := fmt.Sprintf(`{"model":"tandem-sim","max_tokens":2,"stream":true,%s"prompt":%q}`, c.hints, long)
			served := sync.OnceFunc(func() {
				mu.Lock()
				defer mu.Unlock()
				order = append(order, c.name)
			})
			if _, err := f.try(context.Background(), completionPath, text, func(string) { served() }, c.headers...); err != nil {
				t.Error(err)
			}
		})
		f.eventually(c.name+" waits", func() bool { return f.waiting() == i+1 })
	}
	cancel()
	group.Wait()
	if got, want := strings.Join(order, ", "), "operator, first, greedy, greedy by header"; got != want {
		t.Errorf("served %s; want %s", got, want)
	}
	if !strings.Contains(f.logs.String(), `ignored_hints=nvext.agent_hints.priority,nvext.agent_hints.strict_priority`) {
		t.Error("the log does not name the hints that were ignored")
	}
	f.idle()
}

// A client's key learns nothing of what another one's prompts have left in caches: the
// query for workers and the routing of a request are an operator's, and a query has
// its line in the log as any request has.
func TestNoPrefixOracleForClients(t *testing.T) {
	f := newFleet(t, options{gateway: keyed(t)})
	send := func(nvext string, headers []string) answer {
		t.Helper()
		a, err := f.try(context.Background(), completionPath, `{"model":"tandem-sim","max_tokens":2,"prompt":"`+long+`","nvext":{`+nvext+`}}`, nil, headers...)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := send(``, asClient); a.status != http.StatusOK {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	const query = `"annotations":["query_instance_id"],"extra_fields":["routing"]`
	f.refused(t, send(query, asClient), http.StatusForbidden, "hint_forbidden", "nvext.annotations", "--client-hints")
	f.refused(t, send(`"extra_fields":["routing"]`, asClient), http.StatusForbidden, "hint_forbidden", "nvext.extra_fields")
	a := send(query, asOperator)
	if a.status != http.StatusOK || !strings.Contains(string(a.body), `"routing"`) {
		t.Errorf("an operator's query: status %d: %s", a.status, a.body)
	}
	id := a.header.Get("X-Request-Id")
	f.eventually("the query is logged", func() bool {
		for line := range strings.Lines(f.logs.String()) {
			if strings.Contains(line, "request_id="+id) && strings.Contains(line, "msg=request ") && strings.Contains(line, "query=true") {
				return true
			}
		}
		return false
	})
	f.idle()
}
