package fault

import (
	"bytes"
	"net/http"
	"slices"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/pools"
)

func init() {
	register(Registered{
		Name: "kv_gone",
		Help: "decode cannot load the KV it was handed: 500 before the first byte, or an error event where it streams; " +
			"calls without a hand-off are spared",
		legs: []pools.Role{pools.Decode},
		call: kvGone,
	})
}

const kvGoneError = `{"error":{"message":"KV load failure","type":"InternalServerError","param":null,"code":500}}`

// kvGone fails as vLLM's decode does under kv_load_failure_policy=fail when the producer no longer holds the blocks:
// with a status while there is no answer, else with an error event and, in spite of it, the end marker.
func kvGone(c *injected) (http1.Stream, error) {
	const key = `"kv_transfer_params":` // lies whole in one segment: it is the gateway's own
	if !slices.ContainsFunc(c.leg.Body, func(segment []byte) bool { return bytes.Contains(segment, []byte(key)) }) {
		return c.pass()
	}
	if c.leg.Stream && pick(c.rng, true, false) {
		return newCanned(http.StatusOK, "text/event-stream", "data: "+kvGoneError+"\n\ndata: [DONE]\n\n"), nil
	}
	return newCanned(http.StatusInternalServerError, "application/json", kvGoneError), nil
}
