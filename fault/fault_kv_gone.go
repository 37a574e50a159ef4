package fault

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net/http"
	"slices"

	"github.com/tandem-pd/tandem/internal/upstream"
)

func init() {
	Register(Registered{
		Name:  "kv_gone",
		Help:  "decode cannot load the KV it was handed: 500 before the first byte, or an error event where it streams; calls without a hand-off are spared",
		Kinds: []upstream.Kind{upstream.Decode},
		New:   func(Rule) (Fault, error) { return kvGone{}, nil },
	})
}

// kvGone fails as vLLM's decode does under kv_load_failure_policy=fail when the
// producer no longer holds the blocks: with a status while there is no answer,
// else with an error event and, in spite of it, the end marker.
type kvGone struct{}

const kvGoneError = `{"error":{"message":"KV load failure","type":"InternalServerError","param":null,"code":500}}`

func (kvGone) Call(ctx context.Context, leg upstream.Leg, next upstream.Transport, rng *rand.Rand) (upstream.Stream, error) {
	const key = `"kv_transfer_params":` // lies whole in one segment: it is the gateway's own
	if !slices.ContainsFunc(leg.Body, func(segment []byte) bool { return bytes.Contains(segment, []byte(key)) }) {
		return next.Call(ctx, leg)
	}
	if leg.Stream && pick(rng, true, false) {
		return newCanned(http.StatusOK, "text/event-stream", "data: "+kvGoneError+"\n\ndata: [DONE]\n\n"), nil
	}
	return newCanned(http.StatusInternalServerError, "application/json", kvGoneError), nil
}
