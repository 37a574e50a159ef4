package follow

import (
	"context"
	"time"
)

// step handles the next event of the loop.
func (s *Subscriber) step(ctx context.Context, look <-chan time.Time, drops <-chan int) {
	select {
	case <-ctx.Done():
	case m := <-s.messages:
		if s.take(m, time.Now()) {
			s.schedule(ctx, time.Now())
		}
	case a := <-s.arrivals:
		if s.arrive(a, time.Now()) {
			s.schedule(ctx, time.Now())
		}
	case f := <-s.fetched:
		s.finish(f, time.Now())
		s.schedule(ctx, time.Now())
	case <-s.kick:
		s.reconcile(ctx)
		s.schedule(ctx, time.Now())
	case <-s.timer.C:
		s.schedule(ctx, time.Now())
	case q := <-s.asked:
		q.answer <- s.view(q)
	case j := <-s.joined:
		s.peers.join(j, time.Now())
		s.schedule(ctx, time.Now())
	case now := <-look:
		s.listen(now)
		s.schedule(ctx, now)
	case dropped := <-drops:
		s.metrics.dropped.Add(float64(max(0, dropped-s.dropped)))
		s.dropped = dropped
		s.log.Warn("KV events arrive faster than they are applied: snapshots will repair the gaps", "dropped", dropped)
	}
}

// renew restarts every source after a step that panicked: their state may be half changed.
func (s *Subscriber) renew(ctx context.Context) {
	for _, f := range s.followers {
		s.indexFor(f.base().name.Pool).Drop(f.base().name.Worker)
	}
	s.mu.Lock()
	s.followers = nil
	s.mu.Unlock()
	s.reconcile(ctx)
	s.schedule(ctx, time.Now())
}
