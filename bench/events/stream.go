package main

import (
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/replay"
)

// stream is the engines' side of the replay: simulated engines under virtual time that a trace is sent to, and what
// each of them says. It is a core: the same trace, settings and calls give the same events.
type stream struct {
	cfg      streamConfig
	requests []replay.Request
	at       int // of the next request
	now      time.Time
	engines  []*machine
	last     map[uint64]int // prefix of spans to the engine that computed it last
	chains   []uint64       // for use within one call
}

// streamConfig is what engines there are.
type streamConfig struct {
	Engines int
	// Block is the size of a KV block and Cache the size of an engine's cache, in tokens.
	Block, Cache int
	// Spread is the share of requests that go anywhere instead of where their prefix was last.
	Spread float64
	// OutputTokens above 0 bounds each answer.
	OutputTokens int
	Seed         uint64
}

// machine is one engine.
type machine struct {
	id    int
	core  *engine.Core
	truth *truth
	wake  time.Time // of its next step; zero for none
	runs  uint64    // incarnations so far
	clear bool      // its cache is to be cleared once nothing runs
	live  int       // requests on it
}

// step is an engine's events at a moment of the trace.
type step struct {
	at     time.Duration
	engine *machine
	events []engine.Event
}

// begun is the moment of virtual time at which the trace begins.
var begun = time.Unix(1_700_000_000, 0)

func newStream(cfg streamConfig, requests []replay.Request) (*stream, error) {
	s := &stream{cfg: cfg, requests: requests, now: begun, last: map[uint64]int{}}
	for i := range cfg.Engines {
		m := &machine{id: i}
		s.engines = append(s.engines, m)
		if err := s.restart(m); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// restart is a new process of m: an empty cache, and requests in flight are lost.
func (s *stream) restart(m *machine) error {
	m.runs++
	core, err := engine.NewCore(engine.Config{
		ID: name(m.id), Incarnation: fmt.Sprint(m.runs), BlockSize: s.cfg.Block, TotalKVBlocks: s.cfg.Cache / s.cfg.Block,
		ContextLength: s.cfg.Cache, HashSeed: chance(s.cfg.Seed, uint64(m.id), m.runs),
	}, engine.Vocabulary{Words: answerWords, EOS: vocabulary})
	if err != nil {
		return err
	}
	m.core, m.truth, m.wake, m.clear, m.live = core, newTruth(s.cfg.Block), time.Time{}, false, 0
	return nil
}

// answerWords are the tokens of answers.
var answerWords = []uint32{11, 12, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97}

// name is what an engine is called.
func name(i int) string { return fmt.Sprintf("e%02d", i) }

// next advances to the next moment with events. It reports false when the trace has ended and all
// engines rest, or when until has come.
func (s *stream) next(until time.Duration) (step, bool, error) {
	for {
		m := s.soonest()
		arrival, more := time.Time{}, s.at < len(s.requests)
		if more {
			arrival = begun.Add(s.requests[s.at].At)
		}
		due := arrival
		if m != nil && (!more || m.wake.Before(arrival)) {
			due = m.wake
		} else if !more {
			return step{}, false, nil
		}
		if due.Sub(begun) >= until {
			s.now = begun.Add(until)
			return step{}, false, nil
		}
		s.now = latest(s.now, due)
		if m == nil || !due.Equal(m.wake) {
			var err error
			r := &s.requests[s.at]
			m = s.choose(r)
			if err = s.give(m, r); err != nil {
				return step{}, false, err
			}
			s.at++
		}
		if events := s.run(m); len(events) > 0 {
			return step{at: s.now.Sub(begun), engine: m, events: events}, true, nil
		}
	}
}

// done says that the trace has ended and all engines rest.
func (s *stream) done() bool { return s.at == len(s.requests) && s.soonest() == nil }

// soonest is the engine whose turn comes first; nil when all rest.
func (s *stream) soonest() *machine {
	var first *machine
	for _, m := range s.engines {
		if !m.wake.IsZero() && (first == nil || m.wake.Before(first.wake)) {
			first = m
		}
	}
	return first
}

// choose is the engine for a request: most go where the longest part of their prompt was computed last.
func (s *stream) choose(r *replay.Request) *machine {
	s.chains = s.chains[:0]
	prefix := s.cfg.Seed
	for _, span := range r.Spans {
		prefix = chance(prefix, span.ID, uint64(span.Tokens))
		s.chains = append(s.chains, prefix)
	}
	draw := chance(s.cfg.Seed, uint64(r.Index), 2)
	to := int(draw % uint64(len(s.engines)))
	if !hits(chance(draw, 0, 3), s.cfg.Spread) {
		for i := len(s.chains) - 1; i >= 0; i-- {
			if at, ok := s.last[s.chains[i]]; ok {
				to = at
				break
			}
		}
	}
	if s.engines[to].live > 8 { // a prefix that everybody has must not make one engine's queue
		to = s.idlest()
	}
	for _, c := range s.chains {
		s.last[c] = to
	}
	return s.engines[to]
}

// give has an engine begin with a request. A prompt that is longer than its cache is cut.
func (s *stream) give(m *machine, r *replay.Request) error {
	answer := r.OutputTokens
	if s.cfg.OutputTokens > 0 {
		answer = min(answer, s.cfg.OutputTokens)
	}
	prompt := promptOf(s.cfg.Seed, r.Spans)
	if most := s.cfg.Cache - answer - s.cfg.Block; len(prompt) > most {
		prompt = prompt[:most]
	}
	err := m.core.Add(engine.Request{ID: fmt.Sprint(r.Index), Prompt: prompt, MaxTokens: answer, IgnoreEOS: true})
	if err != nil {
		return fmt.Errorf("request %d: %w", r.Index, err)
	}
	m.live++
	return nil
}

func (s *stream) idlest() int {
	best := 0
	for i, m := range s.engines {
		if m.live < s.engines[best].live {
			best = i
		}
	}
	return best
}

// run lets an engine do its due steps and returns its events.
func (s *stream) run(m *machine) []engine.Event {
	r := m.core.Step(s.now)
	events := append([]engine.Event(nil), r.Events...)
	m.wake = r.Next
	for _, o := range r.Outputs {
		if o.Reason != engine.Unfinished {
			m.live--
		}
	}
	if m.clear && m.core.ClearCache() {
		m.clear = false
		r = m.core.Step(s.now)
		events, m.wake = append(events, r.Events...), r.Next
	}
	for i := range events {
		m.truth.apply(&events[i])
	}
	return events
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
