package engine

import (
	"cmp"
	"slices"
	"time"
)

// Books is an engine's account of blocks and slots, as /debug/books shows it: the proof
// that a request which is gone has left nothing behind. It never shows prompts.
type Books struct {
	// Running, Waiting and Transferring count the live sequences by phase.
	Running      int `json:"running"`
	Waiting      int `json:"waiting"`
	Transferring int `json:"transferring"`
	// BusyMs is the time of the steps so far, in milliseconds, with the elapsed part of the present one.
	BusyMs float64 `json:"busy_ms"`
	// Requests are the ids of the live sequences, sorted.
	Requests []string `json:"requests"`
	// Blocks are the KV cache's.
	Blocks BlockBooks `json:"blocks"`
	// Pinned are the finished prefills whose blocks are kept, by id.
	Pinned []PinBooks `json:"pinned"`
	// Guests counts the decode engines that wait here for a prompt's KV.
	Guests int `json:"guests"`
}

// BlockBooks splits the KV cache's blocks: Total = Free + Cached + Active.
type BlockBooks struct {
	Total int `json:"total"`
	Free  int `json:"free"`
	// Cached blocks are reusable and held by no sequence.
	Cached int `json:"cached"`
	// Active blocks are held by sequences or pins.
	Active int `json:"active"`
	// ByOwner is what each live sequence and each pinned prefill holds. Shared
	// blocks count for each, so the sum may exceed Active.
	ByOwner map[string]int `json:"by_owner"`
}

// PinBooks is one finished prefill whose blocks are kept.
type PinBooks struct {
	Request string `json:"request"`
	Blocks  int    `json:"blocks"`
	// Reason is "awaiting decode" until a decode engine asks for the blocks, then "being pulled".
	Reason string `json:"reason"`
	// ExpiresInMs is the rest of the lease in milliseconds.
	ExpiresInMs int64 `json:"expires_in_ms"`
}

// Idle reports whether nothing runs, waits or is held.
func (b *Books) Idle() bool { return len(b.Requests) == 0 && b.Blocks.Active == 0 }

// workedBy returns the time of the steps by now.
func (c *Core) workedBy(now time.Time) time.Duration {
	if !c.busy {
		return c.worked
	}
	return c.worked + min(c.took, max(0, c.took-c.end.Sub(now)))
}

// Books are the core's.
func (c *Core) Books(now time.Time) Books {
	b := Books{
		Running: len(c.running), Waiting: c.waiting.n + len(c.expecting), Transferring: len(c.fetching),
		BusyMs:   c.workedBy(now).Seconds() * 1000,
		Requests: make([]string, 0, len(c.seqs)),
		Blocks: BlockBooks{
			Total: len(c.cache.blocks), Free: len(c.cache.free), Cached: c.cache.inactive, Active: c.cache.active(),
			ByOwner: make(map[string]int),
		},
		Pinned: make([]PinBooks, 0, len(c.pins)),
	}
	for id, s := range c.seqs {
		if s.gone {
			b.Transferring--
		} else {
			b.Requests = append(b.Requests, id)
		}
	}
	slices.Sort(b.Requests)
	for _, s := range c.seqs {
		if len(s.blocks) > 0 {
			b.Blocks.ByOwner[s.ID] = len(s.blocks)
		}
	}
	for _, p := range c.pins {
		reason := "awaiting decode"
		if p.asked {
			reason = "being pulled"
		}
		b.Blocks.ByOwner[p.id] = len(p.blocks)
		b.Pinned = append(b.Pinned, PinBooks{Request: p.id, Blocks: len(p.blocks), Reason: reason,
			ExpiresInMs: p.expires.Sub(now).Milliseconds()})
	}
	slices.SortFunc(b.Pinned, func(x, y PinBooks) int { return cmp.Compare(x.Request, y.Request) })
	return b
}
