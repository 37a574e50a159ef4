package handoff

import (
	"encoding/json"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
)

// query answers with the workers that the request would go to now. It books nothing, does not queue and asks no
// worker.
func (f *Flow) query(r *request, out Sink) error {
	ask := f.ask(r)
	placed, err := f.placer.Pick(f.rooms.Roster.Fleet(ask.Model), &ask, time.Now())
	if err != nil {
		return r.refusal(err)
	}
	d := placed.Decode.Lease
	chosen := workerID{Decode: d.Worker.ID, DecodeRank: &d.Rank}
	r.Decode, r.OverlapTokens = Choice{d.Worker.ID, d.Why}, r.reusable(d.Overlap, r.card.DecodeBlockSize)
	if p := placed.Prefill.Lease; p != nil {
		chosen.Prefill, chosen.PrefillRank = p.Worker.ID, &p.Rank
		r.Prefill = Choice{p.Worker.ID, p.Why}
		if p.Overlap > 0 {
			r.OverlapTokens = r.reusable(p.Overlap, r.card.BlockSize)
		}
	}
	body := queryAnswer(r, &chosen)
	if r.Call.Request.Stream {
		out.Start(openai.EventStream)
		return out.Write(append(openai.AppendEvent(nil, body), "data: [DONE]\n\n"...))
	}
	out.Start("application/json")
	return out.Write(body)
}

// queryAnswer is the body that answers a query for a request's workers: a completion without choices, whose nvext
// says who would serve it and, for a client that then tokenizes no more, the prompt's tokens where they are known.
func queryAnswer(r *request, chosen *workerID) []byte {
	type said struct {
		WorkerID *workerID `json:"worker_id"`
		TokenIDs []uint32  `json:"token_ids,omitempty"`
		Routing  *Routing  `json:"routing,omitempty"`
	}
	object := "text_completion"
	if req := r.Call.Request; req.Endpoint == openai.Chat {
		if object = "chat.completion"; req.Stream {
			object = "chat.completion.chunk"
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
		r.Call.ID, object, r.Call.Arrival.Unix(), r.Call.Request.Model, []struct{}{},
		said{WorkerID: chosen, TokenIDs: r.ids},
	}
	if r.Call.Request.Nvext.Wants("routing") {
		answer.Nvext.Routing = r.Routing(nil)
	}
	return []byte(marshalled(answer))
}

// marshalled is v in JSON; strings and finite numbers cannot fail.
func marshalled(v any) string {
	raw, _ := json.Marshal(v)
	return string(raw)
}
