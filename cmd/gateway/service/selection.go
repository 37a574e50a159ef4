package service

import (
	"errors"
	"net/http"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/placement"
)

const (
	maxIDBytes = 256 // of a reservation's id
	maxExclude = 1024
)

// selection is a request to choose workers.
type selection struct {
	// ID names the reservation; without a booking it seeds the draws.
	ID    string `json:"id"`
	Model string `json:"model"`
	// Legs is the pools to choose from: "both", "prefill", "decode", "pair" for prefill and decode, or empty: a pair
	// if both pools have workers, else both.
	Legs string `json:"legs"`
	prompt
	// PromptTokens is the prompt's length; 0 is that of token_ids.
	PromptTokens int      `json:"prompt_tokens"`
	Exclude      []string `json:"exclude"`
	// Worker pins the choice, of a pair the prefill worker; DecodeWorker pins decode.
	Worker       *wanted `json:"worker"`
	DecodeWorker *wanted `json:"decode_worker"`
	Explain      bool    `json:"explain"` // return every candidate's terms
}

// wanted is a worker, a rank, or a worker's rank.
type wanted struct {
	ID   string `json:"id"`
	Rank *int   `json:"rank"`
}

// leg is a chosen worker.
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

// candidate is what a worker's rank would have booked if chosen.
type candidate struct {
	Worker        string  `json:"worker"`
	Rank          int     `json:"rank"`
	Cost          float64 `json:"cost"`
	PrefillBlocks float64 `json:"prefill_blocks"`
	ActiveBlocks  float64 `json:"active_blocks"`
	CachedBlocks  int     `json:"cached_blocks"`
}

// read reads a request, and finds the workers of its model.
func (c *chooser) read(r *http.Request, named bool) (*selection, pools.Fleet, error) {
	var q selection
	if err := decode(r.Body, &q, false); err != nil {
		return nil, pools.Fleet{}, err
	}
	if err := q.check(named); err != nil {
		return nil, pools.Fleet{}, err
	}
	fleet := c.roster.Fleet(q.Model)
	if fleet.Empty() {
		return nil, fleet, &openai.Error{Status: http.StatusNotFound, Code: "unknown_model", Param: "model",
			Message: "no worker of this model is registered"}
	}
	return &q, fleet, nil
}

// check validates a request, and fills in defaults.
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
	if _, ok := wants[q.Legs]; !ok {
		return invalid("legs", "must be both, prefill, decode, pair or left out")
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

// wants maps legs to placements.
var wants = map[string]placement.Want{
	"": placement.Any, "pair": placement.Pair, "prefill": placement.Prefill, "decode": placement.Decode, "both": placement.Alone,
}

// want returns the placement for a fleet: without legs, a pair if both pools have workers.
func (q *selection) want(fleet pools.Fleet) placement.Want {
	if q.Legs == "" && (len(fleet.Prefill.Members) == 0 || len(fleet.Decode.Members) == 0) {
		return placement.Alone
	}
	return wants[q.Legs]
}

func poolsOf(fleet pools.Fleet, want placement.Want) []*pools.Pool {
	switch want {
	case placement.Prefill:
		return []*pools.Pool{fleet.Prefill}
	case placement.Decode:
		return []*pools.Pool{fleet.Decode}
	case placement.Alone:
		return []*pools.Pool{fleet.Both}
	}
	return []*pools.Pool{fleet.Prefill, fleet.Decode}
}

// ask returns the placement query. The prompt is hashed in each pool's block size.
func (q *selection) ask(fleet pools.Fleet, want placement.Want) *placement.Ask {
	ps := poolsOf(fleet, want)
	a := &placement.Ask{Model: q.Model, Want: want, DecodePin: q.DecodeWorker.pin(), Request: router.Request{
		ID: q.ID, Attempt: 1, ISL: q.PromptTokens, Hashes: q.chain(blockSize(ps[0])), Exclude: q.Exclude,
		Pin: q.Worker.pin(), Explain: q.Explain,
	}}
	switch {
	case len(ps) == 2 && blockSize(ps[1]) != blockSize(ps[0]):
		a.DecodeHashes = q.chain(blockSize(ps[1]))
	case len(ps) == 1 && want != placement.Prefill:
		a.Pin, a.DecodePin = nil, a.Pin
	}
	return a
}

// blockSize returns the block size of a pool's workers, in tokens.
func blockSize(p *pools.Pool) int {
	if len(p.Members) == 0 {
		return 1
	}
	return max(1, p.Members[0].Worker.BlockSize)
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

func legsOf(p *placement.Placement) (legs []leg) {
	for _, l := range p.Leases() {
		legs = append(legs, leg{
			Role: l.Worker.Role, Worker: l.Worker.ID, Address: l.Worker.Address, Rank: l.Rank, Policy: l.Policy, Cost: l.Cost,
			OverlapBlocks: l.Overlap, PrefillTokens: l.PrefillTokens, Candidates: l.Candidates, Terms: candidatesOf(l.Why),
		})
	}
	return legs
}

func candidatesOf(why router.Why) []candidate {
	var cs []candidate
	for _, t := range why.Terms {
		cs = append(cs, candidate{t.Worker, t.Rank, t.Cost, t.PrefillBlocks, t.ActiveBlocks, t.CachedBlocks})
	}
	return cs
}

// refusal returns a placement's error as an answer, with the gateway's statuses.
func refusal(err error) error {
	var big *router.TooBigError
	var pool *router.PoolError
	var over *router.OverloadedError
	var pin *placement.PinError
	var alone *placement.AloneError
	e := &openai.Error{Message: err.Error()}
	if errors.As(err, &pool) {
		e.Message = string(pool.Role) + ": " + pool.Err.Error() // the model is the client's own
	}
	switch {
	case errors.As(err, &big):
		e.Status, e.Code, e.Param = http.StatusBadRequest, "prompt_too_long", "prompt_tokens"
	case errors.Is(err, router.ErrBooked):
		e.Status, e.Code, e.Param = http.StatusConflict, "duplicate_id", "id"
	case errors.As(err, &alone):
		e.Status, e.Code, e.Param = http.StatusBadRequest, "pairs_only", alone.Reason
	case placement.Waits(err), errors.As(err, &over):
		e.Status, e.Code, e.RetryAfter = http.StatusServiceUnavailable, "server_is_overloaded", time.Second
	case errors.Is(err, placement.ErrNoDecode), errors.Is(err, placement.ErrNoPrefill), errors.As(err, &pin),
		errors.Is(err, router.ErrDeclined):
		e.Status, e.Code, e.RetryAfter = http.StatusServiceUnavailable, "no_workers", time.Second
	default:
		return err
	}
	return e
}
