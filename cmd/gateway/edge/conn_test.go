package edge

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/http1"
)

// Clients that send half a head keep nobody else out: at the bound their
// connections give way like idle ones. A request whose head has come is kept.
func TestHalfHeadsGiveWay(t *testing.T) {
	running, end := make(chan struct{}), make(chan struct{})
	sv := serve(t, loopback(t), func(ctx context.Context, c *handoff.Call, out handoff.Sink) error {
		close(running)
		<-end
		return answerJSON(ctx, c, out)
	}, func(c *Config) { c.MaxConnections = 3 })
	body := `{"model":"tandem-sim","prompt":"` + strings.Repeat("x", 2*prefetchBytes) + `"}`
	long := sv.dial()
	long.send(post(body))
	<-running
	for range 2 {
		sv.dial().send("GET /live HTTP/1.1\r\nHost:")
	}
	eventually(t, "three connections with something of a request", func() bool {
		return len(slices.DeleteFunc(sv.main.server.Conns.All(), func(c *http1.ServerConn) bool { return !c.Busy() })) == 3
	})
	for range 3 { // above the bound, each of them
		c := sv.dial()
		resp, _ := c.ask(get("GET /live"))
		assert.Equal(t, http.StatusOK, resp.StatusCode)
	}
	close(end)
	resp, text := long.receive()
	assert.Equal(t, http.StatusOK, resp.StatusCode, "the request in hand: %s", text)
}
