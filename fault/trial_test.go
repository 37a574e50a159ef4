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
			if try(t, b, None) {
				t.Errorf("round %d: a second call beside the trial", round)
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

// A trial that says nothing, as an answer that is not streamed until its end, keeps
// the others off for a bounded time: the next begins after a tenth of OpenFor, the
// one after it after twice that, and none later than OpenFor. The first sign of
// life closes the circuit; so a hung worker holds few calls.
func TestSilentTrialsMakePlace(t *testing.T) {
	const openFor = time.Second
	synctest.Test(t, func(t *testing.T) {
		b := NewBreakers(BreakerConfig{Consecutive: 1, OpenFor: openFor})
		var woken atomic.Int64
		b.OnRoom(func() { woken.Add(1) })
		try(t, b, Reset)
		time.Sleep(openFor + 1)
		synctest.Wait()
		if woken.Load() != 1 {
			t.Errorf("whoever waits was woken %d times by a circuit that half-opened", woken.Load())
		}
		began := time.Now()
		var trials []func(Class)
		var at []time.Duration
		for time.Since(began) < 4*openFor {
			if done, err := b.Allow("d1", "i1", Decode); err == nil {
				trials, at = append(trials, done), append(at, time.Since(began))
			}
			time.Sleep(10 * time.Millisecond)
		}
		want := []time.Duration{0, 100 * time.Millisecond, 300 * time.Millisecond, 700 * time.Millisecond, 1500 * time.Millisecond, 2500 * time.Millisecond, 3500 * time.Millisecond}
		if !slices.Equal(at, want) {
			t.Errorf("trials began after %v, want %v", at, want)
		}
		if n := woken.Load(); n != int64(len(want)) { // the last has the worker to itself still
			t.Errorf("whoever waits was woken %d times, want %d", n, len(want))
		}
		trials[1](ClientGone)
		if b.State("d1", Decode) != HalfOpen || try(t, b, None) {
			t.Errorf("a trial that left beside others: %s", b.State("d1", Decode))
		}
		trials[2](None)
		if got := b.State("d1", Decode); got != Closed || b.OnTrial(Decode) != nil {
			t.Errorf("after a sign of life it is %s", got)
		}
		trials[0](Timeout) // it was sent to the worker that hung
		if got := b.State("d1", Decode); got != Closed {
			t.Errorf("an earlier trial's end: %s", got)
		}
	})
}

// The second of two silent trials may fail; the worker is then left alone again, and
// what becomes of the first says nothing new.
func TestSecondTrialFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBreakers(BreakerConfig{Consecutive: 1, OpenFor: time.Second})
		try(t, b, Reset)
		time.Sleep(time.Second + 1)
		first, err := b.Allow("d1", "i1", Decode)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if !try(t, b, Reset) || b.State("d1", Decode) != Open {
			t.Errorf("it is %s", b.State("d1", Decode))
		}
		first(None)
		first(ClientGone)
		if got := b.States()[0]; got.State != Open || got.Opened != 2 {
			t.Errorf("%+v", got)
		}
		time.Sleep(time.Second + 1)
		if !try(t, b, None) || b.State("d1", Decode) != Closed {
			t.Errorf("it is %s", b.State("d1", Decode))
		}
	})
}
