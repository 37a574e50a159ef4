package main

import (
	"slices"
	"time"

	"github.com/tandem-pd/tandem/internal/kvevents/follow"
)

// marker knows when each message of an engine's present process was sent, as long as it was not seen to be applied.
type marker struct {
	epoch uint64 // the subscriber's when the process began: what it says of that epoch is of the process before
	sent  []moment
}

type moment struct {
	seq uint64
	at  time.Time
}

// mostMoments bounds a marker; of more, every second one is forgotten.
const mostMoments = 4096

func (m *marker) note(seq uint64, now time.Time) {
	if n := len(m.sent); n > 0 && m.sent[n-1].seq == seq {
		return
	}
	if len(m.sent) == mostMoments {
		kept := m.sent[:0]
		for i := 0; i < len(m.sent); i += 2 {
			kept = append(kept, m.sent[i])
		}
		m.sent = kept
	}
	m.sent = append(m.sent, moment{seq, now})
}

// age is how long the oldest message that is not applied has been under way, 0 for none.
func (m *marker) age(s *follow.SourceStatus, epoch uint64, now time.Time) time.Duration {
	heard := s.Epoch == epoch
	if epoch == 0 { // counted by the subscriber
		heard = s.Epoch > m.epoch
	}
	if heard {
		n := 0
		for n < len(m.sent) && m.sent[n].seq <= s.Seq {
			n++
		}
		m.sent = slices.Delete(m.sent, 0, n)
	}
	if len(m.sent) == 0 {
		return 0
	}
	return now.Sub(m.sent[0].at)
}

// staleness is what samples of one transport's engines have shown. A sample is one engine at one moment, in which
// nothing is published.
type staleness struct {
	Samples, Unbelieved int // the latter of engines that were predicted, whose view is not used
	True, Missing       int // pairs of a block and an engine
	Phantom             int
	missing, phantom    []float64 // share of a sample's pairs
	ages                []time.Duration
}

func (t *staleness) take(d difference, age time.Duration) {
	t.Samples++
	t.True += d.True
	t.Missing += d.Missing
	t.Phantom += d.Phantom
	t.ages = append(t.ages, age)
	if pairs := d.True + d.Phantom; pairs > 0 {
		t.missing = append(t.missing, float64(d.Missing)/float64(pairs))
		t.phantom = append(t.phantom, float64(d.Phantom)/float64(pairs))
	}
}

// sample compares the next engine's cache with its blocks in the index.
func (s *session) sample(now time.Time) {
	s.sampled = now
	i := s.nextTo
	s.nextTo = (s.nextTo + 1) % len(s.links)
	half := s.result.half(i)
	status := s.status(i)
	if status.State == follow.Predicted {
		half.Stale.Samples++
		half.Stale.Unbelieved++
		return
	}
	epoch, _ := s.links[i].last()
	half.Stale.take(s.compare(i), s.marks[i].age(&status, epoch, now))
}

func (s *session) compare(i int) difference {
	idx := s.idx[poolOf(i)]
	return s.stream.engines[i].truth.compare(idx, idx.Owner(name(i), 0))
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / max(1, float64(len(values)))
}
