package handoff

import (
	"encoding/json"

	"github.com/tandem-pd/tandem/internal/openai"
)

// queryAnswer is the body that answers a query for a request's workers: a
// completion without choices, whose nvext says who would serve it and, for a
// client that then tokenizes no more, the prompt's tokens where they are known.
func queryAnswer(r *request, chosen *workerID) []byte {
	type said struct {
		WorkerID *workerID `json:"worker_id"`
		TokenIDs []uint32  `json:"token_ids,omitempty"`
		Routing  *routing  `json:"routing,omitempty"`
	}
	object := "text_completion"
	if r.call.Request.Endpoint == openai.Chat {
		object = "chat.completion"
	}
	if r.call.Request.Stream {
		object = map[string]string{"chat.completion": "chat.completion.chunk"}[object]
		if object == "" {
			object = "text_completion"
		}
	}
	answer := struct {
		ID      string     `json:"id"`
		Object  string     `json:"object"`
		Created int64      `json:"created"`
		Model   string     `json:"model"`
		Choices []struct{} `json:"choices"`
		Nvext   said       `json:"nvext"`
	}{
		r.call.ID, object, r.call.Arrival.Unix(), r.call.Request.Model, []struct{}{},
		said{WorkerID: chosen, TokenIDs: r.ids},
	}
	if r.call.Request.Nvext.Wants("routing") {
		answer.Nvext.Routing = r.routing(nil)
	}
	return []byte(marshalled(answer))
}

// marshalled is v in JSON; strings and finite numbers cannot fail.
func marshalled(v any) string {
	raw, _ := json.Marshal(v)
	return string(raw)
}
