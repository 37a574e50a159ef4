package service

import (
	"mime"
	"net/http"
	"strconv"

	"github.com/tandem-pd/tandem/kv/wire"
)

// postedEvents is a JSON body of /events.
type postedEvents struct {
	Worker string        `json:"worker"`
	Rank   int           `json:"rank"`
	Events []postedEvent `json:"events"`
}

type postedEvent struct {
	Type      string   `json:"type"`
	Hashes    []Hash   `json:"block_hashes"`
	Parent    *Hash    `json:"parent_block_hash"`
	TokenIDs  []uint32 `json:"token_ids"`
	BlockSize int      `json:"block_size"`
	LoraName  string   `json:"lora_name"`
	CacheSalt string   `json:"cache_salt"`
	Medium    string   `json:"medium"`
}

// maxEvents bounds the events of one post.
const maxEvents = 1 << 16

// post applies events in order: JSON, or an engine's msgpack batch with worker and rank in the query.
func (x *shared) post(r *http.Request) (int, any, error) {
	var reported []wire.Event
	var worker string
	var rank, skipped int
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch kind {
	case "application/msgpack", "application/x-msgpack", "application/vnd.msgpack":
		raw, err := readAll(r.Body)
		if err != nil {
			return 0, nil, err
		}
		var b wire.Batch
		if err := wire.DecodeBatch(&b, raw); err != nil {
			return 0, nil, invalid("", "the body is not a batch of KV events")
		}
		worker = r.URL.Query().Get("worker")
		if text := r.URL.Query().Get("rank"); text != "" {
			if rank, err = strconv.Atoi(text); err != nil {
				return 0, nil, invalid("rank", "must be a number")
			}
		} else if b.Rank != wire.NoRank {
			rank = b.Rank
		}
		reported, skipped = b.Events, b.Skipped
	default:
		var body postedEvents
		if err := decode(r.Body, &body, false); err != nil {
			return 0, nil, err
		}
		worker, rank = body.Worker, body.Rank
		if len(body.Events) > maxEvents {
			return 0, nil, invalid("events", "may have %d events", maxEvents)
		}
		for i := range body.Events {
			e, err := body.Events[i].event("events[" + strconv.Itoa(i) + "].")
			if err != nil {
				return 0, nil, err
			}
			reported = append(reported, e)
		}
	}
	p, err := x.rank(worker, rank)
	if err != nil {
		return 0, nil, err
	}
	took, first := p.apply(reported)
	if first {
		x.changes.Add(1)
	}
	if !took {
		return 0, nil, conflict("too_many_blocks", "events", "the rank holds as many blocks as are kept: post what was removed")
	}
	return http.StatusOK, struct {
		Applied int `json:"applied"`
		Skipped int `json:"skipped"`
	}{len(reported), skipped}, nil
}

// event checks an event; at prefixes the names of its fields.
func (p *postedEvent) event(at string) (wire.Event, error) {
	e := wire.Event{LoraName: p.LoraName, CacheSalt: p.CacheSalt, Medium: p.Medium, BlockSize: p.BlockSize, Tokens: p.TokenIDs}
	switch {
	case len(p.Hashes) > maxBlockHashes:
		return e, invalid(at+"block_hashes", "may have %d hashes", maxBlockHashes)
	case len(p.LoraName) > maxNameBytes || len(p.CacheSalt) > maxNameBytes || len(p.Medium) > maxNameBytes:
		return e, invalid(at+"lora_name", "lora_name, cache_salt and medium may have %d bytes", maxNameBytes)
	}
	for _, h := range p.Hashes {
		e.Hashes = append(e.Hashes, wire.Hash(h))
	}
	if p.Parent != nil {
		e.Parent, e.HasParent = wire.Hash(*p.Parent), true
	}
	switch p.Type {
	case "stored":
		e.Kind = wire.Stored
		switch {
		case len(p.TokenIDs) == 0: // more blocks of the same hash chain
		case p.BlockSize < 1 || p.BlockSize > 1<<16-1:
			return e, invalid(at+"block_size", "must be 1 to 65535 tokens")
		case len(p.TokenIDs) != len(p.Hashes)*p.BlockSize:
			return e, invalid(at+"token_ids", "must be block_size tokens for each of block_hashes")
		}
	case "removed":
		e.Kind = wire.Removed
	case "cleared":
		e.Kind = wire.Cleared
	default:
		return e, invalid(at+"type", "must be stored, removed or cleared")
	}
	return e, nil
}

// rank returns the rank of a worker whose events are posted.
func (x *shared) rank(worker string, rank int) (*posted, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	w := x.workers[worker]
	switch {
	case w == nil:
		return nil, unknownWorker("worker")
	case w.KVEvents != "post":
		return nil, conflict("not_posted", "worker", "the worker's events come over NATS")
	case rank < 0 || rank >= len(w.ranks):
		return nil, invalid("rank", "must be 0 to %d", len(w.ranks)-1)
	}
	return w.ranks[rank], nil
}

// maxPosted bounds the blocks of a rank whose events are posted.
const maxPosted = 1 << 22

// apply applies events, unless they exceed the limit of blocks, and reports whether they are the first.
func (p *posted) apply(reported []wire.Event) (took, first bool) {
	stored := 0
	for i := range reported {
		if reported[i].Kind == wire.Stored {
			stored += len(reported[i].Hashes)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if stored > 0 && p.view.Blocks()+stored > p.limit {
		return false, false
	}
	p.view.Apply(reported)
	first, p.spoke = !p.spoke, true
	return true, first
}

// begun reports whether anything was posted for the rank.
func (p *posted) begun() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.spoke
}
