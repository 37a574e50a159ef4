package queue

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// benchPlace is a booking without an allocation of its own.
type benchPlace struct {
	free *atomic.Int64
	q    *Queue[struct{}, *benchPlace]
}

func (p *benchPlace) Release() {
	p.free.Add(1)
	p.q.Wake()
}

// BenchmarkAdmit is an admission and its release: alone, and by 5,008 callers for eight places, so that each
// release grants the next of 5,000 that wait. Booking is an atomic counter.
func BenchmarkAdmit(b *testing.B) {
	for _, waiters := range []int{0, 5000} {
		b.Run(fmt.Sprintf("waiters=%d", waiters), func(b *testing.B) {
			cfg := DefaultConfig()
			cfg.Limit, cfg.Timeout = 10_000, time.Hour
			places := min(8, waiters) + 1 - min(1, waiters)
			var free atomic.Int64
			free.Store(int64(places))
			held := &benchPlace{free: &free}
			reserve := func(struct{}, Drain[struct{}], time.Time) (*benchPlace, error) {
				if free.Load() <= 0 {
					return nil, ErrWait
				}
				free.Add(-1)
				return held, nil
			}
			q, err := New(cfg, reserve, (*benchPlace).Release)
			if err != nil {
				b.Fatal(err)
			}
			held.q = q
			var turns atomic.Int64
			work := func() {
				for turns.Add(1) <= int64(b.N) {
					held, err := q.Admit(context.Background(), Item{ISL: 1024, Uncached: 512, Bytes: 4096}, struct{}{})
					if err != nil {
						b.Error(err)
						return
					}
					held.Release()
				}
			}
			b.ReportAllocs()
			b.ResetTimer()
			if waiters == 0 {
				work()
				return
			}
			var all sync.WaitGroup
			for range waiters + places {
				all.Go(work)
			}
			all.Wait()
		})
	}
}

// BenchmarkDrainPlans is a drain in which all go on waiting for a worker, one millisecond after the other, and what of it is one
// request's.
func BenchmarkDrainPlans(b *testing.B) {
	for _, waiting := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			cfg := DefaultConfig()
			cfg.Limit, cfg.Policy, cfg.Timeout = waiting, "hrrn", 24*time.Hour
			core := newCore(b, cfg, func(*Ticket[string], error) {})
			for i := range waiting {
				push(b, core, start, &Ticket[string]{Item: Item{Uncached: i % 997}})
			}
			later := &laterError{plan{starts: time.Hour, takes: time.Second}}
			now, asked := start, 0
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(time.Millisecond)
				core.Drain(now, func(_ *Ticket[string], d Drain[string]) error { asked++; return later })
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(asked), "ns/asked")
		})
	}
}
