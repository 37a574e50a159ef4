package fault

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/pools"
)

// A warning opens no circuit, and a success ends it.
func TestWarnedCircuitOpensAtTheNextFailure(t *testing.T) {
	b := NewBreakers(BreakerConfig{})
	try(t, b, None)
	b.Warn("d1", "i1", pools.Decode)
	expectState(t, b, Closed)
	try(t, b, None)
	try(t, b, Refused) // it has answered since the warning
	expectState(t, b, Closed)
	b.Warn("d1", "i1", pools.Decode)
	try(t, b, Refused)
	expectState(t, b, Open)
}

// try makes a call that ends as given, and returns whether it was let through.
func try(t *testing.T, b *Breakers, class Class) bool {
	t.Helper()
	done, err := b.Acquire("d1", "i1", pools.Decode, "", false)
	if err != nil {
		require.ErrorIs(t, err, ErrCircuitOpen)
		require.Nil(t, done)
		return false
	}
	done(class)
	return true
}

func expectState(t *testing.T, b *Breakers, want State) {
	t.Helper()
	assert.Equal(t, want, b.State("d1", pools.Decode))
	assert.Equal(t, want == Open, len(b.Blocked(pools.Decode, "")) > 0, "blocked while %s", want)
}

// Every class counts as its name says: against the worker, for it, or not.
func TestBreakerCountsByClass(t *testing.T) {
	for _, class := range classes() {
		bubble(t, class.String(), func(t *testing.T) {
			b := NewBreakers(BreakerConfig{})
			try(t, b, Reset)
			try(t, b, Reset)
			try(t, b, class) // the third in a row, or the end of the row, or neither
			if class.Blames() {
				expectState(t, b, Open)
				return
			}
			expectState(t, b, Closed)
			try(t, b, Reset)
			expectState(t, b, map[bool]State{true: Closed, false: Open}[class == None])
		})
	}
}

// A circuit opens by the share of failures within the window, and by a row of them however long it takes: a worker that is
// seldom asked and always fails is left alone too.
func TestBreakerOpensByRatio(t *testing.T) {
	half, all := []Class{None, EngineError}, []Class{Timeout, Timeout}
	for _, c := range []struct {
		name  string
		every time.Duration
		calls int
		ends  []Class // in turns
		want  State
	}{
		{"too few", time.Millisecond, 19, half, Closed},
		{"enough", time.Millisecond, 20, half, Open},
		{"too few within the window", time.Second, 100, half, Closed},
		{"a slow row", time.Minute, 3, all, Open},
		{"not yet a row", time.Minute, 2, all, Closed},
	} {
		bubble(t, c.name, func(t *testing.T) {
			b := NewBreakers(BreakerConfig{})
			for i := range c.calls {
				time.Sleep(c.every)
				try(t, b, c.ends[i%2])
			}
			expectState(t, b, c.want)
		})
	}
}

func TestBreakerHalfOpensByOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes []string
		b := NewBreakers(BreakerConfig{OpenFor: time.Minute, OnChange: func(c Circuit, from State) {
			changes = append(changes, fmt.Sprintf("%s/%s/%s %s>%s", c.Worker, c.Incarnation, c.Leg, from, c.State))
		}})
		for range 3 {
			try(t, b, Reset)
		}
		time.Sleep(time.Minute)
		assert.False(t, try(t, b, None), "a call before the time is over")
		time.Sleep(time.Nanosecond)
		synctest.Wait() // the circuit reports by itself that it half-opens
		expectState(t, b, HalfOpen)
		trial := begin(t, b)
		assert.False(t, try(t, b, None), "a second call while the first tries")
		assert.Equal(t, []string{"d1"}, b.Blocked(pools.Decode, ""))
		trial(ClientGone) // says nothing: another may try
		trial(ClientGone) // a permit that is returned after its call ended
		expectState(t, b, HalfOpen)
		assert.True(t, try(t, b, Reset), "a call after a trial that said nothing")
		expectState(t, b, Open)
		time.Sleep(time.Minute + 1)
		synctest.Wait()
		trial = begin(t, b)
		trial(None) // the first byte
		expectState(t, b, Closed)
		trial(Truncated) // and the end of the same call
		got := b.States()
		assert.True(t, len(got) == 1 && got[0].Failures == 1 && got[0].Opened == 2, "%+v", got)
		trial(None)
		trial(ClientGone)
		expectState(t, b, Closed)
		assert.Equal(t, []string{
			"d1/i1/decode closed>open", "d1/i1/decode open>half_open", "d1/i1/decode half_open>open",
			"d1/i1/decode open>half_open", "d1/i1/decode half_open>closed",
		}, changes)
	})
}

// A circuit is one worker's, one leg's and one process's.
func TestBreakersAreApart(t *testing.T) {
	b := NewBreakers(BreakerConfig{Consecutive: 1})
	for worker, leg := range map[string]pools.Role{"w1": pools.Prefill, "w2": pools.Decode} {
		done, err := b.Acquire(worker, "a", leg, "", false)
		require.NoError(t, err)
		done(Refused)
	}
	assert.Equal(t, []string{"w1"}, b.Blocked(pools.Prefill, ""))
	_, err := b.Acquire("w1", "a", pools.Decode, "", false)
	assert.NoError(t, err, "the other leg")
	_, err = b.Acquire("w1", "b", pools.Prefill, "", false)
	assert.True(t, err == nil && b.State("w1", pools.Prefill) == Closed && b.Blocked(pools.Prefill, "") == nil,
		"the next incarnation inherits: %v", err)
	assert.Equal(t, []string{
		`breaker_state{leg="decode",state="closed",worker="w1"}=1`, `breaker_state{leg="decode",state="closed",worker="w2"}=0`,
		`breaker_state{leg="decode",state="half_open",worker="w1"}=0`, `breaker_state{leg="decode",state="half_open",worker="w2"}=0`,
		`breaker_state{leg="decode",state="open",worker="w1"}=0`, `breaker_state{leg="decode",state="open",worker="w2"}=1`,
		`breaker_state{leg="prefill",state="closed",worker="w1"}=1`, `breaker_state{leg="prefill",state="half_open",worker="w1"}=0`,
		`breaker_state{leg="prefill",state="open",worker="w1"}=0`,
	}, series(t, b))
	b.Forget(func(w, _ string) bool { return w == "w2" })
	assert.True(t, b.State("w2", pools.Decode) == Closed && b.Blocked(pools.Decode, "") == nil && len(b.States()) == 2,
		"not forgotten: %+v", b.States())
}

// An adapter's failures are its own on that worker: no model and no other adapter loses the worker by them. Where the worker itself
// fails, so does every adapter on it; and one that was unloaded leaves nothing behind.
func TestAdaptersFailAlone(t *testing.T) {
	b := NewBreakers(BreakerConfig{Consecutive: 3, MinCalls: 5})
	call := func(adapter string, end error) {
		t.Helper()
		if done, err := b.Acquire("w", "a", pools.Decode, adapter, false); err == nil {
			done(end)
		}
	}
	blocked := func(want ...string) {
		t.Helper()
		for _, adapter := range []string{"", "sql", "math"} {
			assert.Equal(t, slices.Contains(want, adapter), len(b.Blocked(pools.Decode, adapter)) > 0, "adapter %q: blocked", adapter)
		}
	}
	for _, c := range []Class{EngineError, Reset, Timeout, Garbled, Overloaded, Truncated, Stalled} {
		for range 20 {
			call("sql", c)
			call("math", NotServed)
		}
		blocked("sql")
	}
	assert.Zero(t, b.States()[0].Failures)
	assert.Equal(t, [2]int{3, 3}, [2]int{len(b.States()), len(series(t, b))}, "circuits and series")
	b.Forget(func(_, adapter string) bool { return adapter != "" })
	blocked()
	assert.True(t, len(b.States()) == 1 && len(b.tripped) == 0, "%+v", b.States())
	for range 3 {
		call("math", Refused) // nothing listens there
	}
	blocked("", "sql", "math")
}

// series lists what breakers export, one line each.
func series(t *testing.T, b *Breakers) []string {
	t.Helper()
	reg, scrape := prometheus.NewPedanticRegistry(), httptest.NewRecorder()
	b.Export(reg)
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(scrape, httptest.NewRequest(http.MethodGet, "/", nil))
	return slices.DeleteFunc(strings.Fields(strings.ReplaceAll(scrape.Body.String(), "} ", "}=")),
		func(s string) bool { return !strings.Contains(s, "=") })
}

// A call that ends after its worker was forgotten changes no other state.
func TestBreakersForgetCallsInFlight(t *testing.T) {
	b := NewBreakers(BreakerConfig{Consecutive: 1})
	done := begin(t, b)
	b.Forget(func(w, _ string) bool { return w == "d1" })
	done(Reset)
	expectState(t, b, Closed)
	assert.Empty(t, b.States())
}

func TestNilBreakersLetEverythingThrough(t *testing.T) {
	var b *Breakers
	for range 5 {
		require.True(t, try(t, b, Refused))
	}
	b.Forget(func(w, _ string) bool { return w == "d1" })
	expectState(t, b, Closed)
	assert.Nil(t, b.States())
	assert.Nil(t, b.OnTrial(pools.Decode, ""))
}

func TestBreakersTogether(t *testing.T) {
	b := NewBreakers(BreakerConfig{OpenFor: time.Millisecond, OnChange: func(Circuit, State) {}})
	var group sync.WaitGroup
	for g := range 8 {
		group.Go(func() {
			for i := range 500 {
				worker := fmt.Sprintf("w%d", (g+i)%3)
				if done, err := b.Acquire(worker, fmt.Sprint(i/250), pools.Decode, "", false); err == nil {
					done(classes()[(g*7+i)%len(classes())])
				}
				b.Blocked(pools.Decode, "")
				b.States()
				if i%100 == 0 {
					b.Forget(func(w, _ string) bool { return w == worker })
				}
			}
		})
	}
	group.Wait()
	for _, c := range b.States() {
		assert.Equal(t, pools.Decode, c.Leg)
		assert.Contains(t, []State{Closed, HalfOpen, Open}, c.State)
	}
}

// begin is a call of decode worker d1 that its circuit lets through.
func begin(t *testing.T, b *Breakers) func(error) {
	t.Helper()
	done, err := b.Acquire("d1", "i1", pools.Decode, "", false)
	require.NoError(t, err)
	return done
}

// bubble runs a subtest in virtual time.
func bubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}
