package router

import (
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
)

// waitingLine is a pair of pools in mode eft whose prefill workers are all busy, and n prompts that wait for them: a drain asks
// for one after the other.
type waitingLine struct {
	prefill, decode *Router
	pp, dp          *pools.Pool
	asks            []Request
	drain           uint64
}

func newWaitingLine(tb testing.TB, workers, n int) *waitingLine {
	tb.Helper()
	cfg, idx := lateConfig(), index.New(index.Config{})
	l := &waitingLine{
		prefill: newRouter(tb, cfg.For(pools.Prefill), idx), decode: newRouter(tb, cfg.For(pools.Decode), nil),
		pp: poolOf(pools.Prefill, fleet("p", workers)...), dp: poolOf(pools.Decode, fleet("d", workers)...),
	}
	prompts := make([][]uint64, 16)
	for i := range prompts {
		prompts[i] = chain(uint64(i), 128)
		for w := i; w < workers; w += len(prompts) {
			idx.Store(idx.Owner(l.pp.Members[w].Worker.ID, 0), index.Device, prompts[i][:64])
		}
	}
	for i := range workers {
		if _, _, err := ReservePair(l.prefill, l.decode, l.pp, l.dp, Request{ID: fmt.Sprint("busy", i), ISL: 1 << 20, DecodeLater: true},
			Request{ID: fmt.Sprint("busy", i), ISL: 1 << 20}, noon); err != nil {
			tb.Fatal(err)
		}
	}
	for i := range n {
		l.asks = append(l.asks, Request{ID: strconv.Itoa(i), ISL: 128 * 16, Hashes: prompts[i%len(prompts)], DecodeLater: true,
			Sliced: true, Later: new(LaterError)})
	}
	return l
}

// ask asks for prompt i of the line; with the first of them a drain begins.
func (l *waitingLine) ask(i int) error {
	if i == 0 {
		l.drain++
	}
	l.asks[i].Drain = l.drain
	_, _, err := ReservePair(l.prefill, l.decode, l.pp, l.dp, l.asks[i], l.asks[i], noon)
	if _, later := errors.AsType[*LaterError](err); !later {
		return fmt.Errorf("prompt %d does not wait: %w", i, err)
	}
	return nil
}

// BenchmarkWaiting is one choice of mode eft for a prompt that waits on, of a drain that plans all of them.
func BenchmarkWaiting(b *testing.B) {
	for _, n := range []struct{ workers, waiting int }{{64, 100}, {1000, 1000}} {
		b.Run(fmt.Sprintf("workers=%d/waiting=%d", n.workers, n.waiting), func(b *testing.B) {
			l := newWaitingLine(b, n.workers, n.waiting)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := l.ask(i % n.waiting); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
