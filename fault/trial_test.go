package fault

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Of any number that ask a half-open circuit at once one gets through, in each
// OpenFor anew while the trials fail, and none more until it has ended.
func TestOneTrialInOpenFor(t *testing.T) {
	const asking, rounds, openFor = 200, 10, time.Second
	synctest.Test(t, func(t *testing.T) {
		b := NewBreakers(BreakerConfig{Consecutive: 1, OpenFor: openFor})
		try(t, b, Reset)
		for round := range rounds {
			time.Sleep(openFor + 1)
			var through atomic.Int64
			var trial func(Class)
			var group sync.WaitGroup
			for range asking {
				group.Go(func() {
					if done, err := b.Allow("d1", "i1", Decode); err == nil {
						through.Add(1)
						trial = done
					}
				})
			}
			group.Wait()
			if n := through.Load(); n != 1 {
				t.Fatalf("round %d: %d got through", round, n)
			}
			if got := b.OnTrial(Decode); !slices.Equal(got, []string{"d1"}) {
				t.Errorf("round %d: on trial: %q", round, got)
			}
			time.Sleep(10 * openFor) // however long it takes
			if try(t, b, None) {
				t.Errorf("round %d: a second call beside a trial that lasts", round)
			}
			trial(Timeout)
			if got := b.OnTrial(Decode); got != nil || b.State("d1", Decode) != Open {
				t.Errorf("round %d: on trial after its end: %q, %s", round, got, b.State("d1", Decode))
			}
		}
	})
}

// A trial that says nothing makes place for exactly one other.
func TestTrialThatSaysNothing(t *testing.T) {
	for _, class := range Classes() {
		if class.Blames() || class == None {
			continue
		}
		t.Run(class.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := NewBreakers(BreakerConfig{Consecutive: 1, OpenFor: time.Second})
				try(t, b, Reset)
				time.Sleep(time.Second + 1)
				for i := range 5 {
					done, err := b.Allow("d1", "i1", Decode)
					if err != nil {
						t.Fatalf("trial %d: %v", i, err)
					}
					if _, err := b.Allow("d1", "i1", Decode); err == nil {
						t.Fatalf("two at once after trial %d", i)
					}
					done(class)
					done(class) // a leave that is given back after its call ended
				}
				if !try(t, b, None) || b.State("d1", Decode) != Closed {
					t.Error("the circuit did not close")
				}
			})
		})
	}
}

func TestOnTrialIsPerLeg(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBreakers(BreakerConfig{Consecutive: 1, OpenFor: time.Second})
		for i := range 3 {
			for _, leg := range []Leg{Prefill, Decode} {
				done, err := b.Allow(fmt.Sprint("w", i), "i", leg)
				if err != nil {
					t.Fatal(err)
				}
				done(Stalled)
			}
		}
		time.Sleep(time.Second + 1)
		if b.OnTrial(Prefill) != nil || b.OnTrial(Decode) != nil {
			t.Error("a trial that nobody has begun")
		}
		done, err := b.Allow("w1", "i", Prefill)
		if err != nil {
			t.Fatal(err)
		}
		if got := b.OnTrial(Prefill); !slices.Equal(got, []string{"w1"}) || b.OnTrial(Decode) != nil {
			t.Errorf("on trial: %q and %q", got, b.OnTrial(Decode))
		}
		done(None)
		if b.OnTrial(Prefill) != nil || len(b.Blocked(Prefill)) != 0 {
			t.Error("still on trial after its success")
		}
	})
	if (*Breakers)(nil).OnTrial(Decode) != nil {
		t.Error("nobody's circuits have a trial")
	}
}
