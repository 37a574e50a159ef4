package edge

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/handoff"
)

// TestRequestsThatComeBackAreRefused: each gateway knows its own id again, and says it in every answer.
func TestRequestsThatComeBackAreRefused(t *testing.T) {
	calls := make(chan handoff.Call, 1)
	sv := serve(t, loopback(t), func(ctx context.Context, c handoff.Call, out handoff.Sink) error {
		calls <- c
		return answerJSON(ctx, c, out)
	})
	id := ""
	for _, request := range []string{
		"GET /health HTTP/1.1\r\nHost: t\r\n\r\n", "GET /v1/models HTTP/1.1\r\nHost: t\r\n\r\n", "GET /none HTTP/1.1\r\nHost: t\r\n\r\n",
	} {
		c := sv.dial()
		c.send(request)
		resp, _ := c.receive()
		if id = resp.Header.Get("Tandem-Gateway"); len(id) != 16 {
			t.Errorf("%q: the answer has the gateway's id %q", request, id)
		}
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
		head := []string{}
		if came != "" {
			head = append(head, "tandem-gateway: "+came)
		}
		c := sv.dial()
		c.send(post(goodBody, head...))
		resp, body := c.receive()
		if want == "" {
			if resp.StatusCode != http.StatusLoopDetected || !strings.Contains(body, `"gateway_loop"`) {
				t.Errorf("%q: status %d, %s", came, resp.StatusCode, body)
			}
			continue
		}
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%q: status %d, %s", came, resp.StatusCode, body)
			continue
		}
		if call := <-calls; len(call.Forward) != 1 || call.Forward[0].Name != "Tandem-Gateway" || call.Forward[0].Value != want {
			t.Errorf("%q is passed on as %v, want %q", came, call.Forward, want)
		}
	}
}
