package fault

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/pools"
)

func init() {
	register(Registered{
		Name:   "lost_handoff",
		Help:   "prefill answers well and without usable hand-off metadata: none, null, or with a part missing",
		legs:   []pools.Role{pools.Prefill},
		answer: loseHandoff,
	})
}

// loseHandoff takes kv_transfer_params, or one field that decode needs, out of a prefill's answer. The worker holds the
// blocks until its lease ends.
func loseHandoff(c *injected, s http1.Stream) (http1.Stream, error) {
	var answer, params map[string]json.RawMessage
	body, err := io.ReadAll(s)
	if err != nil {
		_ = s.Close() // the failure to report is the read's
		var failed *http1.Error
		if !errors.As(err, &failed) {
			err = c.broken(http1.OpBody, err)
		}
		return nil, err
	}
	const key = "kv_transfer_params"
	if json.Unmarshal(body, &answer) == nil && json.Unmarshal(answer[key], &params) == nil {
		switch field := pick(c.rng, key, "null", "remote_block_ids", "remote_engine_id", "remote_request_id", "remote_port"); field {
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

// replaced is a worker's answer with another body.
type replaced struct {
	http1.Stream
	body io.Reader
}

// Read reads the other body.
func (r *replaced) Read(p []byte) (int, error) { return r.body.Read(p) }
