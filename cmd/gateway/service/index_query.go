package service

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/overlap"
)

// held is how many leading blocks of a prompt a worker's rank holds: on its device, and how many each slower tier
// adds.
type held struct {
	Worker string `json:"worker"`
	Rank   int    `json:"rank"`
	Device int    `json:"device"`
	Host   int    `json:"host"`
	Disk   int    `json:"disk"`
	Shared int    `json:"shared"`
}

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

// queryByHash looks a prompt up by its sequence hashes, as JSON or in gateways' compact form: see
// [HashesType].
func (x *shared) queryByHash(w http.ResponseWriter, r *http.Request) int {
	if r.Header.Get("Content-Type") == HashesType {
		return x.compact(w, r)
	}
	var q struct {
		Model  string `json:"model"`
		Hashes []Hash `json:"sequence_hashes"`
	}
	if err := decode(r.Body, &q, false); err != nil {
		return refuse(w, err)
	}
	if len(q.Hashes) == 0 {
		return refuse(w, invalid("sequence_hashes", "must have at least one hash"))
	}
	code, answer, err := x.find(q.Model, &prompt{Hashes: q.Hashes})
	if err != nil {
		return refuse(w, err)
	}
	return write(w, code, answer)
}

// compact answers a gateway without names, which cost more than the lookup if a thousand workers hold a prompt: both
// sides know the registrations, and the answer identifies the list.
func (x *shared) compact(w http.ResponseWriter, r *http.Request) int {
	raw, err := readAll(r.Body)
	if err != nil {
		return refuse(w, err)
	}
	chain, err := Hashes(raw)
	if err != nil || len(chain) == 0 || len(chain) > maxBlockHashes {
		return refuse(w, invalid("", "the body must be 1 to %d hashes of 8 bytes", maxBlockHashes))
	}
	query := r.URL.Query()
	m, l, err := x.lookup(query.Get("model"))
	if err != nil {
		return refuse(w, err)
	}
	if size, err := strconv.Atoi(query.Get("block_size")); err != nil || size != l.blockSize {
		return refuse(w, &openai.Error{
			Status: http.StatusConflict, Code: "block_size_differs", Param: "block_size",
			Message: fmt.Sprintf("the model's workers have blocks of %d tokens", l.blockSize),
		})
	}
	into := x.looks.Get().(*looked)
	defer x.looks.Put(into)
	l.look(m, chain, into)
	into.wire = AppendAnswer(into.wire[:0], l.sum, into.held)
	w.Header().Set("Content-Type", AnswerType)
	w.Header().Set("Content-Length", strconv.Itoa(len(into.wire)))
	_, _ = w.Write(into.wire) // fails only if the client has left
	return http.StatusOK
}

// lookup returns the model of a query.
func (x *shared) lookup(model string) (*indexed, *layout, error) {
	if err := checkModel(model); err != nil {
		return nil, nil, err
	}
	m, l := x.see(model)
	if m == nil || l.blockSize == 0 {
		return nil, nil, &openai.Error{Status: http.StatusNotFound, Code: "unknown_model", Param: "model",
			Message: "no worker of this model is registered"}
	}
	return m, l, nil
}

func (x *shared) find(model string, p *prompt) (int, any, error) {
	if err := p.check(false); err != nil {
		return 0, nil, err
	}
	m, l, err := x.lookup(model)
	if err != nil {
		return 0, nil, err
	}
	chain := p.chain(l.blockSize)
	into := x.looks.Get().(*looked)
	defer x.looks.Put(into)
	l.look(m, chain, into)
	answer := found{Model: model, BlockSize: l.blockSize, Blocks: len(chain), Workers: make([]held, len(into.held))}
	for i, h := range into.held {
		answer.Workers[i] = heldBy(l.ranks.Rank(i), h)
	}
	return http.StatusOK, answer, nil
}

// heldBy returns a rank's part of an answer.
func heldBy(r overlap.Rank, t overlap.Tiers) held {
	return held{r.Worker, r.Rank, int(t.Device), int(t.Host), int(t.Disk), int(t.Shared)}
}

// tiersOf returns how many of the looked-up blocks an owner holds by tier.
func tiersOf(m *index.Matches, o index.Owner) (t overlap.Tiers) {
	if o != index.NoOwner {
		t.Device, t.Host = int32(m.Leading(o)), int32(m.Tier(o, index.Host))
		t.Disk, t.Shared = int32(m.Tier(o, index.Disk)), int32(m.Tier(o, index.Shared))
	}
	return t
}
