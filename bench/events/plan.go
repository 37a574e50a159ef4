package main

import (
	"cmp"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/internal/kvevents/natsbus"
)

// action is something that goes wrong at a moment of the trace.
type action struct {
	at   time.Duration
	what string
	do   func() error
}

// plan decides by the seed alone what goes wrong and when.
func (s *session) plan() []action {
	var all []action
	span := s.cfg.trace.Span()
	draws := uint64(0)
	at := func(from, to float64) time.Duration { // between two shares of the trace
		draws++
		return time.Duration(float64(span) * (from + (to-from)*float64(chance(s.cfg.stream.Seed, draws, 12)>>11)/(1<<53)))
	}
	anyone := func(pool string) int {
		for {
			draws++
			if i := int(chance(s.cfg.stream.Seed, draws, 13) % uint64(len(s.links))); poolOf(i) == pool {
				return i
			}
		}
	}
	add := func(at time.Duration, what string, do func() error) { all = append(all, action{at, what, do}) }
	later := span / 50

	for n := range s.cfg.restarts {
		i, when := anyone(natsPool), at(0.05, 0.9)
		l := s.links[i].(*overNATS)
		add(when, "restart", func() error { return s.restart(i) })
		if n%4 == 0 { // of a process in between nothing is heard but what comes after its end
			add(when, "blackout", func() error { l.bus.blackout(true); return nil })
			add(when+later, "second restart", func() error { defer l.bus.blackout(false); return s.restart(i) })
		}
		j, when := anyone(zmqPool), at(0.05, 0.9)
		z := s.links[j].(*overZMQ)
		if n%2 == 0 { // while no view can follow it
			add(when, "link down", func() error { s.counts[zmqPool].down.Add(1); z.live.refuse(true); return nil })
			add(when+later/2, "restart", func() error { return s.restart(j) })
			add(when+later, "link up", func() error { z.live.refuse(false); return nil })
		} else {
			add(when, "restart", func() error { return s.restart(j) })
		}
	}
	for range s.cfg.cuts {
		z := s.links[anyone(zmqPool)].(*overZMQ)
		add(at(0.02, 0.98), "cut", func() error { s.counts[zmqPool].cuts.Add(uint64(z.live.cut())); return nil })
	}
	for i := range s.links { // more is missed than the ring of an engine holds
		if z, overZ := s.links[i].(*overZMQ); overZ && z.ring > 0 {
			add(span/2, "link down", func() error { s.counts[zmqPool].down.Add(1); z.live.refuse(true); return nil })
			add(span*3/4, "link up", func() error { z.live.refuse(false); return nil })
		}
	}
	for range s.cfg.clears {
		for _, pool := range []string{natsPool, zmqPool} {
			m := s.stream.engines[anyone(pool)]
			add(at(0.1, 0.8), "clear", func() error { s.clear(m); return nil })
		}
	}
	for n := range s.cfg.outages {
		when := time.Duration(float64(span) * (float64(n) + 0.5) / float64(s.cfg.outages))
		add(when, "NATS ends", func() error { s.server.Close(); s.result.Outages++; return nil })
		add(when+2*later, "NATS begins", func() (err error) { s.server, err = natsbus.StartCore(s.port); return err })
	}
	for n := range s.cfg.stalls {
		when := time.Duration(float64(span) * (float64(n) + 0.25) / float64(s.cfg.stalls))
		add(when, "slow subscriber", func() error { s.counts[natsPool].stalls.Add(1); s.bus.gate.close(); return nil })
		add(when+time.Duration(float64(span)*s.cfg.stallFor), "its end", func() error { s.bus.gate.open(); return nil })
		for i := range s.links {
			z, overZ := s.links[i].(*overZMQ)
			if !overZ || !s.slow(i) {
				continue
			}
			add(when, "slow receiver", func() error { s.counts[zmqPool].stalls.Add(1); z.stall.close(); return nil })
			add(when+span*7/10/time.Duration(s.cfg.stalls), "its end", func() error { z.stall.open(); return nil })
		}
	}
	slices.SortStableFunc(all, func(a, b action) int { return cmp.Compare(a.at, b.at) })
	return all
}

// restart ends an engine and begins another in its place.
func (s *session) restart(i int) error {
	s.result.half(i).Restarts++
	if err := s.stream.restart(s.stream.engines[i]); err != nil {
		return err
	}
	s.marks[i] = marker{epoch: s.status(i).Epoch}
	if _, seq := s.links[i].last(); seq == 0 {
		s.marks[i] = marker{} // of a process that published nothing its successor cannot be distinguished
	}
	return s.links[i].restart()
}

// clear has an engine drop its cache once nothing runs on it.
func (s *session) clear(m *machine) {
	m.clear = true
	if es := s.stream.run(m); len(es) > 0 {
		s.tell(m, es)
	}
}

// blackout holds all messages back until the end of the process.
func (b *unreliable) blackout(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.odds = b.usual
	if on {
		b.odds = chances{Drop: 1, Straggler: 1}
	}
}
