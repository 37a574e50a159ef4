package service

import (
	"net/http"

	"github.com/tandem-pd/tandem/router/index"
)

// held is how many leading blocks of a prompt one worker's rank holds: on its
// device, and how many each slower tier adds to that run.
type held struct {
	Worker string `json:"worker"`
	Rank   int    `json:"rank"`
	Device int    `json:"device"`
	Host   int    `json:"host"`
	Disk   int    `json:"disk"`
	Shared int    `json:"shared"`
}

// found is the answer to a query.
type found struct {
	Model     string `json:"model"`
	BlockSize int    `json:"block_size"`
	Blocks    int    `json:"blocks"` // full blocks of the prompt
	Workers   []held `json:"workers"`
}

// query looks a prompt up by its tokens.
func (x *shared) query(r *http.Request) (int, any, error) {
	var q struct {
		Model string `json:"model"`
		prompt
	}
	if err := decode(r.Body, &q, false); err != nil {
		return 0, nil, err
	}
	if len(q.Hashes) > 0 {
		return 0, nil, invalid("sequence_hashes", "are for /query_by_hash")
	}
	return x.find(q.Model, &q.prompt)
}

// queryByHash looks a prompt up by its sequence hashes.
func (x *shared) queryByHash(r *http.Request) (int, any, error) {
	var q struct {
		Model  string `json:"model"`
		Hashes []Hash `json:"sequence_hashes"`
	}
	if err := decode(r.Body, &q, false); err != nil {
		return 0, nil, err
	}
	if len(q.Hashes) == 0 {
		return 0, nil, invalid("sequence_hashes", "must have at least one hash")
	}
	return x.find(q.Model, &prompt{Hashes: q.Hashes})
}

func (x *shared) find(model string, p *prompt) (int, any, error) {
	if err := checkModel(model); err != nil {
		return 0, nil, err
	}
	if err := p.check(false); err != nil {
		return 0, nil, err
	}
	x.mu.RLock()
	m := x.models[model]
	blockSize := 0
	if m != nil {
		blockSize = m.blockSize
	}
	x.mu.RUnlock()
	if blockSize == 0 {
		return 0, nil, &Error{Status: http.StatusNotFound, Code: "unknown_model", Param: "model", Message: "no worker of this model is registered"}
	}
	chain := p.chain(blockSize)
	answer := found{Model: model, BlockSize: blockSize, Blocks: len(chain), Workers: []held{}}
	var published, posted index.Matches
	m.published.Match(chain, &published)
	m.posted.Match(chain, &posted)
	for _, w := range x.all(model) {
		matches := &published
		if w.KVEvents == "post" {
			matches = &posted
		}
		for rank := range w.Registration.Ranks {
			o, _ := w.idx.Lookup(w.ID, rank)
			answer.Workers = append(answer.Workers, heldBy(matches, o, w.ID, rank))
		}
	}
	return http.StatusOK, answer, nil
}

// heldBy is an owner's part of an answer.
func heldBy(m *index.Matches, o index.Owner, worker string, rank int) held {
	h := held{Worker: worker, Rank: rank}
	if o != index.NoOwner {
		h.Device, h.Host, h.Disk, h.Shared = m.Leading(o), m.Tier(o, index.Host), m.Tier(o, index.Disk), m.Tier(o, index.Shared)
	}
	return h
}
