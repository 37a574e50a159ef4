package service

import (
	"errors"
	"net/http"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

const (
	maxIDBytes = 256 // of a reservation's id
	maxExclude = 1024
)

// selection is what a request to choose says.
type selection struct {
	// ID names the reservation; of a choice that is only told it seeds the draws.
	ID    string `json:"id"`
	Model string `json:"model"`
	// Legs is which pools to choose from: "both", "prefill", "decode", "pair" for
	// prefill and decode together, or empty: a pair where both pools have
	// workers, else both.
	Legs string `json:"legs"`
	prompt
	// PromptTokens is the prompt's length; 0 takes that of token_ids.
	PromptTokens int      `json:"prompt_tokens"`
	Exclude      []string `json:"exclude"`
	// Worker must be chosen, of a pair for prefill; DecodeWorker for decode.
	Worker       *wanted `json:"worker"`
	DecodeWorker *wanted `json:"decode_worker"`
	Explain      bool    `json:"explain"` // every candidate's terms
}

// wanted is a worker, a rank, or a worker's rank.
type wanted struct {
	ID   string `json:"id"`
	Rank *int   `json:"rank"`
}

// leg is a worker that was chosen.
type leg struct {
	Role          pools.Role  `json:"role"`
	Worker        string      `json:"worker"`
	Address       string      `json:"address"`
	Rank          int         `json:"rank"`
	Policy        string      `json:"policy"`
	Cost          float64     `json:"cost"`
	OverlapBlocks int         `json:"overlap_blocks"`
	PrefillTokens int         `json:"prefill_tokens"` // booked
	Candidates    int         `json:"candidates"`
	Terms         []candidate `json:"terms,omitempty"`
}

// candidate is what a worker's rank would have, were it chosen.
type candidate struct {
	Worker        string  `json:"worker"`
	Rank          int     `json:"rank"`
	Cost          float64 `json:"cost"`
	PrefillBlocks float64 `json:"prefill_blocks"`
	ActiveBlocks  float64 `json:"active_blocks"`
	CachedBlocks  int     `json:"cached_blocks"`
}

// read reads a request and finds its pools.
func (c *chooser) read(r *http.Request, named bool) (*selection, []*pools.Pool, error) {
	var q selection
	if err := decode(r.Body, &q, false); err != nil {
		return nil, nil, err
	}
	if err := q.check(named); err != nil {
		return nil, nil, err
	}
	ps, err := c.poolsOf(q.Model, q.Legs)
	return &q, ps, err
}

// check finds what is wrong with a request by itself, and fills in defaults.
func (q *selection) check(named bool) error {
	if err := checkModel(q.Model); err != nil {
		return err
	}
	if err := q.prompt.check(q.PromptTokens > 0); err != nil {
		return err
	}
	switch {
	case named && q.ID == "", len(q.ID) > maxIDBytes:
		return invalid("id", "must have 1 to %d bytes", maxIDBytes)
	case q.PromptTokens < 0 || q.PromptTokens > pools.MaxCount:
		return invalid("prompt_tokens", "must be 0 to %d", pools.MaxCount)
	case q.PromptTokens == 0 && len(q.Hashes) > 0:
		return invalid("prompt_tokens", "must be given with sequence_hashes")
	case len(q.TokenIDs) > 0 && q.PromptTokens != 0 && q.PromptTokens != len(q.TokenIDs):
		return invalid("prompt_tokens", "is not the number of token_ids")
	case len(q.Exclude) > maxExclude:
		return invalid("exclude", "may have %d workers", maxExclude)
	}
	if q.PromptTokens == 0 {
		q.PromptTokens = len(q.TokenIDs)
	}
	for param, w := range map[string]*wanted{"worker": q.Worker, "decode_worker": q.DecodeWorker} {
		if w != nil && w.Rank != nil && (*w.Rank < 0 || *w.Rank >= pools.MaxRanks) {
			return invalid(param+".rank", "must be 0 to %d", pools.MaxRanks-1)
		}
	}
	return nil
}

// poolsOf are the pools that the legs of a request are chosen from.
func (c *chooser) poolsOf(model, legs string) ([]*pools.Pool, error) {
	pool := func(role pools.Role) *pools.Pool { return c.roster.Snapshot(model, role) }
	p, d, b := pool(pools.Prefill), pool(pools.Decode), pool(pools.Both)
	if len(p.Members)+len(d.Members)+len(b.Members) == 0 {
		return nil, &Error{Status: http.StatusNotFound, Code: "unknown_model", Param: "model", Message: "no worker of this model is registered"}
	}
	switch legs {
	case "":
		if len(p.Members) > 0 && len(d.Members) > 0 {
			return []*pools.Pool{p, d}, nil
		}
		return []*pools.Pool{b}, nil
	case "pair":
		return []*pools.Pool{p, d}, nil
	case "prefill":
		return []*pools.Pool{p}, nil
	case "decode":
		return []*pools.Pool{d}, nil
	case "both":
		return []*pools.Pool{b}, nil
	}
	return nil, invalid("legs", "must be both, prefill, decode, pair or left out")
}

// request is what the routers are asked, for a prompt hashed as p's workers do.
func (q *selection) request(p *pools.Pool) router.Request {
	blockSize := 1
	if len(p.Members) > 0 {
		blockSize = max(1, p.Members[0].Worker.BlockSize)
	}
	return router.Request{
		ID: q.ID, ISL: q.PromptTokens, Hashes: q.chain(blockSize), Exclude: q.Exclude,
		Pin: q.Worker.pin(), DecodePin: q.DecodeWorker.pin(), Explain: q.Explain,
	}
}

func (w *wanted) pin() *router.Pin {
	if w == nil {
		return nil
	}
	p := &router.Pin{Worker: w.ID}
	if w.Rank != nil {
		p.Ranked, p.Rank = true, *w.Rank
	}
	return p
}

func legOf(role pools.Role, w *pools.Worker, rank int, why router.Why, prefillTokens int) leg {
	return leg{
		Role: role, Worker: w.ID, Address: w.Address, Rank: rank, Policy: why.Policy, Cost: why.Cost,
		OverlapBlocks: why.Overlap, PrefillTokens: prefillTokens, Candidates: why.Candidates, Terms: candidatesOf(why),
	}
}

func candidatesOf(why router.Why) []candidate {
	var cs []candidate
	for _, t := range why.Terms {
		cs = append(cs, candidate{t.Worker, t.Rank, t.Cost, t.PrefillBlocks, t.ActiveBlocks, t.CachedBlocks})
	}
	return cs
}

// refusal is a router's error as an answer. Statuses are the gateway's own.
func refusal(err error) error {
	var big *router.TooBigError
	var pool *router.PoolError
	var over *router.OverloadedError
	e := &Error{Message: err.Error()}
	if errors.As(err, &pool) {
		e.Message = string(pool.Role) + ": " + pool.Err.Error() // the model is the client's own
	}
	switch {
	case errors.As(err, &big):
		e.Status, e.Code, e.Param = http.StatusBadRequest, "prompt_too_long", "prompt_tokens"
	case errors.Is(err, router.ErrBooked):
		e.Status, e.Code, e.Param = http.StatusConflict, "duplicate_id", "id"
	case errors.Is(err, router.ErrBusy), errors.Is(err, router.ErrNoRoom), errors.As(err, &over):
		e.Status, e.Code, e.RetryAfter = 529, "overloaded", time.Second
	case errors.Is(err, router.ErrNoWorkers), errors.Is(err, router.ErrDeclined):
		e.Status, e.Code, e.RetryAfter = http.StatusServiceUnavailable, "no_workers", time.Second
	default:
		return err
	}
	return e
}
