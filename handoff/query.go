package handoff

import (
	"encoding/json"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
)

// query answers with the workers that the request would go to now. It books nothing, does not queue and calls no
// worker.
func (f *Flow) query(r *request, out Sink) error {
	placed, err := f.placer.Pick(f.rooms.Roster.Fleet(r.ask.Model), r.ask, time.Now())
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

// queryAnswer builds the answer to a query: a completion without choices. Its nvext names the workers and has the
// prompt's token ids where they are known, so that the client need not tokenize.
func queryAnswer(r *request, chosen *workerID) []byte {
	type nvext struct {
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
		Nvext   nvext      `json:"nvext"`
	}{
		r.Call.ID, object, r.Call.Arrival.Unix(), r.Call.Request.Model, []struct{}{},
		nvext{WorkerID: chosen, TokenIDs: r.ids},
	}
	if r.Call.Request.Nvext.Wants("routing") {
		answer.Nvext.Routing = r.Routing(nil)
	}
	return []byte(marshalled(answer))
}

// marshalled returns v, of strings and finite numbers only, as JSON.
func marshalled(v any) string {
	raw, _ := json.Marshal(v)
	return string(raw)
}
