package main

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
)

// noteBus keeps what is published.
type noteBus struct {
	wire.Bus
	seen []string
}

func (b *noteBus) Publish(m *nats.Msg) error {
	b.seen = append(b.seen, m.Header.Get(wire.HeaderEpoch)+":"+m.Header.Get(wire.HeaderSeq))
	return nil
}

// told100 publishes a hundred messages of one epoch and the beginning of another through what makes them go wrong.
func told100(t *testing.T, seed uint64, odds chances) (*noteBus, *injected) {
	t.Helper()
	var on atomic.Bool
	on.Store(true)
	to, count := &noteBus{}, &injected{}
	b := &unreliable{Bus: to, seed: seed, window: 4, wait: time.Hour, count: count, on: &on, odds: odds, usual: odds}
	say := func(epoch, n int) {
		m := nats.NewMsg(wire.Source{Pool: "m/both", Worker: "w"}.EventsSubject())
		m.Header.Set(wire.HeaderEpoch, fmt.Sprint(epoch))
		m.Header.Set(wire.HeaderSeq, fmt.Sprint(n))
		m.Data = []byte("x")
		if err := b.Publish(m); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 100 {
		say(1, i+1)
	}
	b.succeed()
	for i := range 30 {
		say(2, i+1)
	}
	on.Store(false)
	if err := b.settle(); err != nil {
		t.Fatal(err)
	}
	return to, count
}

func TestMessagesGoWrong(t *testing.T) {
	plain, _ := told100(t, 1, chances{})
	if len(plain.seen) != 130 || !slices.Contains(plain.seen, "2:30") {
		t.Fatalf("%d messages where nothing goes wrong", len(plain.seen))
	}
	odds := chances{Drop: 0.1, Double: 0.1, Reorder: 0.1, Delay: 0.1, Straggler: 0.2}
	a, count := told100(t, 1, odds)
	b, _ := told100(t, 1, odds)
	c, _ := told100(t, 2, odds)
	if !slices.Equal(a.seen, b.seen) || slices.Equal(a.seen, c.seen) {
		t.Error("what goes wrong does not follow from the seed")
	}
	dropped, doubled := int(count.dropped.Load()), int(count.doubled.Load())
	if dropped == 0 || doubled == 0 || count.reordered.Load() == 0 || count.delayed.Load() == 0 || count.stragglers.Load() == 0 {
		t.Errorf("not all of it went wrong: %d dropped, %d doubled", dropped, doubled)
	}
	if want := 130 - dropped + doubled + int(count.stragglers.Load()); len(a.seen) != want {
		t.Errorf("%d messages came, want %d: what is late is not lost", len(a.seen), want)
	}
	first := slices.Index(a.seen, "2:1")
	if first < 0 {
		first = slices.Index(a.seen, "2:2")
	}
	late := 0
	for _, m := range a.seen[first:] {
		if m[:2] == "1:" {
			late++
		}
	}
	if late < int(count.stragglers.Load()) {
		t.Errorf("%d messages of the process before came late", late)
	}
}
