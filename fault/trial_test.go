package fault

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-pd/tandem/pools"
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
			var trial func(error)
			var group sync.WaitGroup
			for range asking {
				group.Go(func() {
					if done, err := b.Acquire("d1", "i1", pools.Decode, "", false); err == nil {
						through.Add(1)
						trial = done
					}
				})
			}
			group.Wait()
			if n := through.Load(); n != 1 {
				t.Fatalf("round %d: %d got through", round, n)
			}
			if got := b.OnTrial(pools.Decode, ""); !slices.Equal(got, []string{"d1"}) {
				t.Errorf("round %d: on trial: %q", round, got)
			}
			if try(t, b, None) {
				t.Errorf("round %d: a second call beside the trial", round)
			}
			trial(Timeout)
			if got := b.OnTrial(pools.Decode, ""); got != nil || b.State("d1", pools.Decode) != Open {
				t.Errorf("round %d: on trial after its end: %q, %s", round, got, b.State("d1", pools.Decode))
			}
		}
	})
}

// A trial that says nothing makes place for exactly one other.
func TestTrialThatSaysNothing(t *testing.T) {
	for _, class := range classes() {
		if class.Blames() || class == None {
			continue
		}
		t.Run(class.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := NewBreakers(BreakerConfig{Consecutive: 1, OpenFor: time.Second})
				try(t, b, Reset)
				time.Sleep(time.Second + 1)
				for i := range 5 {
					done, err := b.Acquire("d1", "i1", pools.Decode, "", false)
					if err != nil {
						t.Fatalf("trial %d: %v", i, err)
					}
					if _, err := b.Acquire("d1", "i1", pools.Decode, "", false); err == nil {
						t.Fatalf("two at once after trial %d", i)
					}
					done(class)
					done(class) // a permit that is returned after its call ended
				}
				if !try(t, b, None) || b.State("d1", pools.Decode) != Closed {
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
			for _, leg := range []pools.Role{pools.Prefill, pools.Decode} {
				done, err := b.Acquire(fmt.Sprint("w", i), "i", leg, "", false)
				if err != nil {
					t.Fatal(err)
				}
				done(Stalled)
			}
		}
		time.Sleep(time.Second + 1)
		if b.OnTrial(pools.Prefill, "") != nil || b.OnTrial(pools.Decode, "") != nil {
			t.Error("a trial that nobody has begun")
		}
		done, err := b.Acquire("w1", "i", pools.Prefill, "", false)
		if err != nil {
			t.Fatal(err)
		}
		if got := b.OnTrial(pools.Prefill, ""); !slices.Equal(got, []string{"w1"}) || b.OnTrial(pools.Decode, "") != nil {
			t.Errorf("on trial: %q and %q", got, b.OnTrial(pools.Decode, ""))
		}
		done(None)
		if b.OnTrial(pools.Prefill, "") != nil || len(b.Blocked(pools.Prefill, "")) != 0 {
			t.Error("still on trial after its success")
		}
	})
	if (*Breakers)(nil).OnTrial(pools.Decode, "") != nil {
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
		b.OnAvailable(func() { woken.Add(1) })
		try(t, b, Reset)
		time.Sleep(openFor + 1)
		synctest.Wait()
		if woken.Load() != 1 {
			t.Errorf("whoever waits was woken %d times by a circuit that half-opened", woken.Load())
		}
		began := time.Now()
		var trials []func(error)
		var at []time.Duration
		for time.Since(began) < 4*openFor {
			if done, err := b.Acquire("d1", "i1", pools.Decode, "", false); err == nil {
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
		if b.State("d1", pools.Decode) != HalfOpen || try(t, b, None) {
			t.Errorf("a trial that left while others ran: %s", b.State("d1", pools.Decode))
		}
		trials[2](None)
		if got := b.State("d1", pools.Decode); got != Closed || b.OnTrial(pools.Decode, "") != nil {
			t.Errorf("after a sign of life it is %s", got)
		}
		trials[0](Timeout) // it was sent to the worker that hung
		if got := b.State("d1", pools.Decode); got != Closed {
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
		first, err := b.Acquire("d1", "i1", pools.Decode, "", false)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if !try(t, b, Reset) || b.State("d1", pools.Decode) != Open {
			t.Errorf("it is %s", b.State("d1", pools.Decode))
		}
		first(None)
		first(ClientGone)
		if got := b.States()[0]; got.State != Open || got.Opened != 2 {
			t.Errorf("%+v", got)
		}
		time.Sleep(time.Second + 1)
		if !try(t, b, None) || b.State("d1", pools.Decode) != Closed {
			t.Errorf("it is %s", b.State("d1", pools.Decode))
		}
	})
}
