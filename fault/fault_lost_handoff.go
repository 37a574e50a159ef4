package fault

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"

	"github.com/tandem-pd/tandem/internal/upstream"
)

func init() {
	Register(Registered{
		Name:  "lost_handoff",
		Help:  "prefill answers well and without usable hand-off metadata: none, null, or with a part missing",
		Kinds: []upstream.Kind{upstream.Prefill},
		New:   func(Rule) (Fault, error) { return lostHandoff{}, nil },
	})
}

// lostHandoff takes kv_transfer_params, or one field that decode needs, out of
// a prefill's answer. The worker holds the blocks until its lease ends.
type lostHandoff struct{}

func (lostHandoff) Call(ctx context.Context, leg upstream.Leg, next upstream.Transport, rng *rand.Rand) (upstream.Stream, error) {
	s, err := next.Call(ctx, leg)
	if err != nil {
		return nil, err
	}
	var answer, params map[string]json.RawMessage
	body, err := io.ReadAll(s)
	if err != nil {
		_ = s.Close() // the failure to report is the read's
		var failed *upstream.Error
		if !errors.As(err, &failed) {
			err = broken(leg, upstream.OpBody, err)
		}
		return nil, err
	}
	const key = "kv_transfer_params"
	if json.Unmarshal(body, &answer) == nil && json.Unmarshal(answer[key], &params) == nil {
		switch field := pick(rng, key, "null", "remote_block_ids", "remote_engine_id", "remote_request_id", "remote_port"); field {
		case key:
			delete(answer, key)
		case "null":
			answer[key] = json.RawMessage("null")
		default:
			delete(params, field)
			answer[key], _ = json.Marshal(params) // of raw JSON: cannot fail
		}
		body, _ = json.Marshal(answer)
	}
	return &replaced{Stream: s, body: bytes.NewReader(body)}, nil
}
