// Package overlap finds how much of a prompt each slot of a pool has cached. A slot
// is one data-parallel rank of a worker.
//
// An overlap comes from a [Source]. Two of them report what workers hold: the workers' own KV events, and a remote
// index. Two assume it, because prompts were sent there: predictions, for workers whose events are missing or stale,
// and recent sends, for the moment until a worker's first event. [Sources] asks them in this order and merges their
// answers.
//
// An engine that publishes events and reports cached prompt tokens in its answers reports the same thing twice.
// [Sources.Compare] compares the two; a rank that disagrees too often is predicted instead.
package overlap

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
)

// Config of a pool's [Sources].
type Config struct {
	Ignored     bool                  // overlaps change no choice: nothing is looked up
	RestOnly    bool                  // but those that events report of workers that fetch the rest of a prompt alone
	Events      bool                  // the index is fed by what workers publish. Without it every slot is predicted.
	RemoteIndex bool                  // prompts come with a remote index's report
	Predictions index.PredictorConfig // how long and how much is predicted; MaxBlocks 0 predicts nothing
	Recent      index.PredictorConfig // the same of recent sends; MaxBlocks 0 is none
	OnMarking   func(Marking)         // called when a rank's mark has changed; nil is nothing
	// EngineBlock returns the tokens in a block of a rank's engine by its events, 0 unknown. It runs when an answer
	// differs from the expected hit, and may be nil.
	EngineBlock func(w *pools.Worker, rank int) int
}

// Sources merges the sources of one pool. It is safe for concurrent use.
type Sources struct {
	cfg Config
	idx *index.Index // of events; nil: none are followed

	reported, assumed []Source // in the order in which they are asked
	predicted         *assumed // nil where nothing is predicted
	recent            *assumed // nil where recent sends do not count

	// Replaced, never changed: the ranks whose events are lost, and the same with those whose events are wrong.
	lost, stale atomic.Pointer[map[Rank]struct{}]
	changes     atomic.Uint64 // of what is assumed

	mu     sync.Mutex // guards parity, predicted, recent and room
	room   []uint64   // of one prompt's granules
	parity *parity    // nil where nothing is compared
}

// New returns the sources of one pool. The index may be nil.
func New(cfg Config, idx *index.Index) *Sources {
	s := &Sources{cfg: cfg, idx: idx}
	none := map[Rank]struct{}{}
	s.lost.Store(&none)
	s.stale.Store(&none)
	if cfg.Ignored {
		return s
	}
	if idx != nil {
		s.reported = append(s.reported, events{idx})
	}
	if cfg.RestOnly {
		return s
	}
	s.reported = append(s.reported, remote{})
	if cfg.Predictions.MaxBlocks > 0 {
		s.predicted = newAssumed(cfg.Predictions)
		s.assumed = append(s.assumed, predicted{s.predicted})
	}
	if cfg.Recent.MaxBlocks > 0 && (cfg.Events || cfg.RemoteIndex) {
		s.recent = newAssumed(cfg.Recent)
		s.assumed = append(s.assumed, recent{s.recent})
	}
	if cfg.Events && idx != nil && s.predicted != nil {
		s.parity = &parity{ranks: map[Rank]*record{}}
	}
	return s
}

// Bind returns the slots of a snapshot of the pool, valid while [Sources.Current].
func (s *Sources) Bind(p *pools.Pool) *Slots {
	v := new(Slots)
	if s.idx != nil {
		v.epoch = s.idx.Epoch()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.parity != nil {
		s.parity.meet(p)
		s.restale()
	}
	v.stale = s.stale.Load()
	if s.predicted != nil {
		s.predicted.meet(p, true, s.Predicts)
	}
	if s.recent != nil {
		s.recent.meet(p, false, s.recents)
	}
	for i := range p.Members {
		w := p.Members[i].Worker
		for rank := range w.Ranks() {
			s.bind(v, w, rank)
		}
	}
	return v
}

func (s *Sources) bind(v *Slots, w *pools.Worker, rank int) {
	known, guess, text, sent := index.NoOwner, index.NoOwner, index.NoOwner, index.NoOwner
	predicted := s.Predicts(w, rank)
	if s.predicted != nil {
		text = s.predicted.owner(w, rank)
	}
	if predicted {
		guess = text
	} else if s.idx != nil {
		known, _ = s.idx.Lookup(w.ID, rank)
	}
	if s.recent != nil && s.recents(w, rank) {
		sent = s.recent.owner(w, rank)
	}
	counted, counts := known, !s.cfg.RestOnly || w.FetchesRest
	if !counts {
		counted = index.NoOwner
	}
	v.ranks = append(v.ranks, Rank{w.ID, rank})
	v.events, v.predicted = append(v.events, known), append(v.predicted, guess)
	v.text, v.recent, v.counted = append(v.text, text), append(v.recent, sent), append(v.counted, counted)
	v.anyPredicted = v.anyPredicted || predicted
	v.anyRecent = v.anyRecent || sent != index.NoOwner
	v.followed = v.followed || !predicted && counts || s.compares(w, rank)
}

// Current reports whether v is what Bind would return for the same snapshot now.
func (s *Sources) Current(v *Slots) bool {
	return v.stale == s.stale.Load() && (s.idx == nil || v.epoch == s.idx.Epoch())
}

// Find looks p up. A slot has cached what is reported, or else predicted, and at least what was sent a moment ago.
func (s *Sources) Find(v *Slots, p Prompt, now time.Time, l *Lookup) {
	l.start(v, p)
	for _, source := range s.reported {
		source.Add(l)
	}
	if !s.expire(l, now) {
		return
	}
	l.cut()
	l.base = append(l.base[:0], l.Blocks...)
	l.Reported = l.base
	for _, source := range s.assumed {
		source.Add(l)
	}
}

// expire drops expired predictions, and reports whether any others may add to l.
func (s *Sources) expire(l *Lookup, now time.Time) bool {
	guess, sent := s.predicted != nil && predicted{s.predicted}.knows(l), s.recent != nil && recent{s.recent}.knows(l)
	if !guess && !sent {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if guess {
		s.predicted.predictor.Expire(now)
	}
	if sent {
		s.recent.predictor.Expire(now)
	}
	return true
}

// Sent records that a prompt is about to be computed on a rank of w, and returns what takes that back.
func (s *Sources) Sent(w *pools.Worker, rank int, hashes []uint64, text bool, now time.Time) (n Noted) {
	if len(hashes) == 0 {
		return n
	}
	guess := s.predicted != nil && (text || s.Predicts(w, rank))
	sent := s.recent != nil && !text && s.recents(w, rank)
	if !guess && !sent {
		return n
	}
	n.hashes, n.text = hashes, text
	s.changes.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	granules := s.granules(&n)
	if guess {
		n.predicted = s.predicted.insert(w, rank, granules, now)
	}
	if sent {
		n.recent = s.recent.insert(w, rank, granules, now)
	}
	return n
}

// Noted is what one prompt's sending added to the assumptions. The zero value is nothing.
type Noted struct {
	hashes            []uint64
	text              bool
	predicted, recent sent
}

// Assumed returns a number that changes with every prompt that is assumed to be cached, or no longer is.
func (s *Sources) Assumed() uint64 { return s.changes.Load() }

// Any reports whether anything is assumed.
func (n *Noted) Any() bool { return n.hashes != nil }

// Invalidate takes back what n added, unless a later prompt with the same blocks was sent to the rank.
func (s *Sources) Invalidate(n *Noted) {
	if n.hashes == nil {
		return
	}
	s.changes.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	granules := s.granules(n)
	if s.predicted != nil {
		s.predicted.invalidate(granules, n.predicted)
	}
	if s.recent != nil {
		s.recent.invalidate(granules, n.recent)
	}
	*n = Noted{} // once
}

// granules are those of a prompt that was sent. The caller holds s.mu until it has read them.
func (s *Sources) granules(n *Noted) []uint64 {
	if n.text {
		return n.hashes
	}
	s.room = index.AppendGranules(s.room[:0], n.hashes)
	return s.room
}

// Predicts reports whether a rank is predicted rather than tracked by events.
func (s *Sources) Predicts(w *pools.Worker, rank int) bool {
	if s.predicted == nil {
		return false
	}
	if s.PredictsAlways(w) {
		return true
	}
	ranks := *s.stale.Load()
	if len(ranks) == 0 {
		return false
	}
	_, stale := ranks[Rank{w.ID, rank}]
	return stale
}

// PredictsAlways reports whether a worker is predicted because it publishes no KV events or they are not followed.
func (s *Sources) PredictsAlways(w *pools.Worker) bool {
	return s.predicted != nil && (!s.cfg.Events || !publishes(w))
}

// CanPredict reports whether anything is predicted; if not, prompts of text have no overlap.
func (s *Sources) CanPredict() bool { return s.predicted != nil }

// recents reports whether recent sends to a rank count.
func (s *Sources) recents(w *pools.Worker, rank int) bool {
	return publishes(w) && (s.cfg.RemoteIndex || !s.Predicts(w, rank))
}

// Cached returns the blocks that slot i of v holds, by its events or predicted.
func (s *Sources) Cached(v *Slots, i int) int {
	switch {
	case v.predicted[i] != index.NoOwner:
		return s.blocks(s.predicted, v.predicted[i])
	case s.idx != nil:
		return s.idx.Blocks(v.events[i])
	}
	return 0
}

// Recent is how many blocks slot i of v was sent a moment ago.
func (s *Sources) Recent(v *Slots, i int) int {
	if s.recent == nil {
		return 0
	}
	return s.blocks(s.recent, v.recent[i])
}

// blocks is how many an owner is assumed to hold.
func (s *Sources) blocks(a *assumed, o index.Owner) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return a.predictor.Blocks(o)
}

// Size is how much the sources of a pool hold. It is for metrics, not for a request's way.
type Size struct {
	Events            *index.Stats // of the index of events; nil where none counts
	Predicted, Recent int          // pairs of block and slot
}

// Size returns how much there is now.
func (s *Sources) Size() (size Size) {
	if s.idx != nil && !s.cfg.Ignored {
		events := s.idx.Stats()
		size.Events = &events
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.predicted != nil {
		size.Predicted = s.predicted.predictor.Len()
	}
	if s.recent != nil {
		size.Recent = s.recent.predictor.Len()
	}
	return size
}

// SetStale sets the ranks whose KV events are stale: they are predicted, from empty, until a later call leaves them
// out. The map is read-only from then on.
func (s *Sources) SetStale(ranks map[Rank]struct{}) {
	if s.predicted == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.parity != nil {
		s.parity.lose(*s.lost.Load(), ranks)
		s.parity.changed = true
	}
	s.lost.Store(&ranks)
	s.restale()
}
