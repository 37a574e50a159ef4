package edge

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/handoff"
)

// TestRequestsThatComeBackAreRefused: each gateway knows its own id again, and says it in every answer.
func TestRequestsThatComeBackAreRefused(t *testing.T) {
	calls := make(chan handoff.Call, 1)
	sv := serve(t, loopback(t), keeps(calls))
	id := ""
	for _, path := range []string{"/health", "/v1/models", "/none"} {
		resp, _ := sv.ask(get("GET " + path))
		id = resp.Header.Get("Tandem-Gateway")
		assert.Len(t, id, 16, path)
	}
	const other = "00112233445566ff"
	for came, want := range map[string]string{
		"":                              id,
		other:                           other + ", " + id,
		other + ",  " + other:           other + ",  " + other + ", " + id,
		id:                              "",
		other + ", " + id:               "",
		id + "," + other:                "",
		strings.Repeat(other+",", 9):    "",
		"x" + strings.Repeat("x", 4000): id, // nobody's
	} {
		request := post(goodBody, "tandem-gateway: "+came)
		if came == "" {
			request = post(goodBody)
		}
		if want == "" {
			sv.refuses(request, http.StatusLoopDetected, "gateway_loop")
			continue
		}
		sv.serves(request)
		if call := <-calls; len(call.Forward) != 1 || call.Forward[0].Name != "Tandem-Gateway" || call.Forward[0].Value != want {
			t.Errorf("%q is passed on as %v, want %q", came, call.Forward, want)
		}
	}
}
