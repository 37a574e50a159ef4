package admission

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
)

// A client's key learns nothing of what another one's prompts have left in caches: the
// query for workers and the routing of a request are an operator's, and a query has
// its line in the log as any request has.
func TestNoPrefixOracleForClients(t *testing.T) {
	f := fleet.New(t, fleet.Options{Gateway: fleet.Keyed(t)})
	send := func(nvext string, headers []string) fleet.Answer {
		t.Helper()
		a := f.Post(fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":2,"prompt":"`+fleet.Long+`","nvext":{`+nvext+`}}`, headers...)
		return a
	}
	if a := send(``, fleet.AsClient); a.Status != http.StatusOK {
		t.Fatalf("status %d: %s", a.Status, a.Body)
	}
	const query = `"annotations":["query_instance_id"],"extra_fields":["routing"]`
	f.Refused(send(query, fleet.AsClient), http.StatusForbidden, "hint_forbidden", "nvext.annotations", "--client-hints")
	f.Refused(send(`"extra_fields":["routing"]`, fleet.AsClient), http.StatusForbidden, "hint_forbidden", "nvext.extra_fields")
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
