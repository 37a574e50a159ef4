package fault

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/pools"
)

// Of any number that ask a half-open circuit at once one gets through, in each
// OpenFor again while the trials fail, and none more until it has ended.
func TestOneTrialInOpenFor(t *testing.T) {
	const asking, rounds, openFor = 200, 10, time.Second
	synctest.Test(t, func(t *testing.T) {
		b := NewBreakers(BreakerConfig{Consecutive: 1, OpenFor: openFor})
		try(t, b, Reset)
		for round := range rounds {
			time.Sleep(openFor + 1)
			assert.Empty(t, b.OnTrial(pools.Decode, ""), "round %d: on trial before a call", round)
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
			require.EqualValues(t, 1, through.Load(), "round %d got through", round)
			onTrial := [2][]string{b.OnTrial(pools.Prefill, ""), b.OnTrial(pools.Decode, "")}
			assert.Equal(t, [2][]string{nil, {"d1"}}, onTrial, "round %d: on trial by leg", round)
			assert.False(t, try(t, b, None), "round %d: a second call beside the trial", round)
			trial(Timeout)
			assert.Nil(t, b.OnTrial(pools.Decode, ""), "round %d: on trial after its end", round)
			assert.Equal(t, Open, b.State("d1", pools.Decode), "round %d", round)
		}
	})
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
		assert.EqualValues(t, 1, woken.Load(), "how often a circuit that half-opens wakes whoever waits")
		began := time.Now()
		var trials []func(error)
		var at []time.Duration
		for time.Since(began) < 4*openFor {
			if done, err := b.Acquire("d1", "i1", pools.Decode, "", false); err == nil {
				trials, at = append(trials, done), append(at, time.Since(began))
			}
			time.Sleep(10 * time.Millisecond)
		}
		const ms = time.Millisecond
		require.Equal(t, []time.Duration{0, 100 * ms, 300 * ms, 700 * ms, 1500 * ms, 2500 * ms, 3500 * ms}, at, "when trials began")
		assert.EqualValues(t, len(at), woken.Load()) // the last has the worker to itself still
		trials[1](ClientGone)
		assert.True(t, b.State("d1", pools.Decode) == HalfOpen && !try(t, b, None),
			"a trial that left while others ran: %s", b.State("d1", pools.Decode))
		trials[2](None) // a sign of life
		expectState(t, b, Closed)
		assert.Nil(t, b.OnTrial(pools.Decode, ""))
		trials[0](Timeout) // it was sent to the worker that hung
		expectState(t, b, Closed)
	})
}

// The second of two silent trials may fail; the worker is then left alone again, and
// what becomes of the first says nothing new.
func TestSecondTrialFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := halfOpen(t)
		first := begin(t, b)
		time.Sleep(time.Second)
		assert.True(t, try(t, b, Reset))
		expectState(t, b, Open)
		first(None)
		first(ClientGone)
		got := b.States()[0]
		assert.True(t, got.State == Open && got.Opened == 2, "%+v", got)
		time.Sleep(time.Second + 1)
		assert.True(t, try(t, b, None))
		expectState(t, b, Closed)
	})
}

// halfOpen is d1's circuit, open for a second once and half-open now.
func halfOpen(t *testing.T) *Breakers {
	t.Helper()
	b := NewBreakers(BreakerConfig{Consecutive: 1, OpenFor: time.Second})
	try(t, b, Reset)
	time.Sleep(time.Second + 1)
	return b
}
