package fault

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/tandem-pd/tandem/pools"
)

// try makes a call that ends as told, and says whether it was let through.
// TestWarnedCircuitOpensAtTheNextFailure: a warning opens no circuit, and a success ends it.
func TestWarnedCircuitOpensAtTheNextFailure(t *testing.T) {
	b := NewBreakers(BreakerConfig{})
	call := func(result error) {
		done, err := b.Acquire("w", "1", pools.Decode, "", false)
		if err != nil {
			t.Fatal(err)
		}
		done(result)
	}
	call(nil)
	b.Warn("w", "1", pools.Decode)
	if s := b.State("w", pools.Decode); s != Closed {
		t.Errorf("warned, it is %s", s)
	}
	call(nil)
	call(Refused)
	if s := b.State("w", pools.Decode); s != Closed {
		t.Errorf("it has answered since the warning, and one failure has it %s", s)
	}
	b.Warn("w", "1", pools.Decode)
	call(Refused)
	if s := b.State("w", pools.Decode); s != Open {
		t.Errorf("warned, and it failed: it is %s", s)
	}
}

func try(t *testing.T, b *Breakers, class Class) bool {
	t.Helper()
	done, err := b.Acquire("d1", "i1", pools.Decode, "", false)
	if err != nil {
		if !errors.Is(err, ErrCircuitOpen) || done != nil {
			t.Fatalf("%v", err)
		}
		return false
	}
	done(class)
	return true
}

func expectState(t *testing.T, b *Breakers, want State) {
	t.Helper()
	if got := b.State("d1", pools.Decode); got != want {
		t.Errorf("state is %s, want %s", got, want)
	}
	if blocked := len(b.Blocked(pools.Decode, "")) > 0; blocked != (want == Open) {
		t.Errorf("blocked is %v while %s", blocked, want)
	}
}

// Every class counts as its name says: against the worker, for it, or not.
func TestBreakerCountsByClass(t *testing.T) {
	for _, class := range classes() {
		t.Run(class.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := NewBreakers(BreakerConfig{})
				try(t, b, Reset)
				try(t, b, Reset)
				try(t, b, class) // the third in a row, or the end of the row, or neither
				want := Closed
				if class.Blames() {
					want = Open
				}
				expectState(t, b, want)
				if want == Open {
					return
				}
				try(t, b, Reset)
				if class == None {
					expectState(t, b, Closed)
				} else {
					expectState(t, b, Open)
				}
			})
		})
	}
}

// A row is a row however long it takes: a worker that is seldom asked and
// always fails is left alone too.
func TestBreakerSeesSlowRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBreakers(BreakerConfig{})
		for range 3 {
			time.Sleep(time.Minute)
			try(t, b, Timeout)
		}
		expectState(t, b, Open)
	})
}

func TestBreakerOpensByRatio(t *testing.T) {
	for _, c := range []struct {
		name  string
		every time.Duration
		calls int // every second fails
		want  State
	}{
		{"too few", time.Millisecond, 19, Closed},
		{"enough", time.Millisecond, 20, Open},
		{"too few within the window", time.Second, 100, Closed},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := NewBreakers(BreakerConfig{})
				for i := range c.calls {
					time.Sleep(c.every)
					try(t, b, []Class{None, EngineError}[i%2])
				}
				expectState(t, b, c.want)
			})
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
		if try(t, b, None) {
			t.Error("a call before the time is over")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait() // the circuit reports by itself that it half-opens
		expectState(t, b, HalfOpen)
		trial, err := b.Acquire("d1", "i1", pools.Decode, "", false)
		if err != nil {
			t.Fatal(err)
		}
		if try(t, b, None) || !slices.Equal(b.Blocked(pools.Decode, ""), []string{"d1"}) {
			t.Error("a second call while the first tries")
		}
		trial(ClientGone) // says nothing: another may try
		expectState(t, b, HalfOpen)
		if !try(t, b, Reset) {
			t.Error("no call after a trial that said nothing")
		}
		expectState(t, b, Open)
		time.Sleep(time.Minute + 1)
		synctest.Wait()
		trial, err = b.Acquire("d1", "i1", pools.Decode, "", false)
		if err != nil {
			t.Fatal(err)
		}
		trial(None) // the first byte
		expectState(t, b, Closed)
		trial(Truncated) // and the end of the same call
		if got := b.States(); len(got) != 1 || got[0].Failures != 1 || got[0].Opened != 2 {
			t.Errorf("%+v", got)
		}
		trial(None)
		trial(ClientGone)
		expectState(t, b, Closed)
		want := []string{"closed>open", "open>half_open", "half_open>open", "open>half_open", "half_open>closed"}
		for i := range want {
			want[i] = "d1/i1/decode " + want[i]
		}
		if !slices.Equal(changes, want) {
			t.Errorf("changes %q", changes)
		}
	})
}

// A circuit is one worker's, one leg's and one process's.
func TestBreakersAreApart(t *testing.T) {
	b := NewBreakers(BreakerConfig{Consecutive: 1})
	fail := func(worker, incarnation string, leg pools.Role) {
		t.Helper()
		done, err := b.Acquire(worker, incarnation, leg, "", false)
		if err != nil {
			t.Fatal(err)
		}
		done(Refused)
	}
	fail("w1", "a", pools.Prefill)
	fail("w2", "a", pools.Decode)
	if got := b.Blocked(pools.Prefill, ""); !slices.Equal(got, []string{"w1"}) {
		t.Errorf("blocked for prefill: %q", got)
	}
	if _, err := b.Acquire("w1", "a", pools.Decode, "", false); err != nil {
		t.Error("the other leg is blocked too")
	}
	if _, err := b.Acquire("w1", "b", pools.Prefill, "", false); err != nil || b.State("w1", pools.Prefill) != Closed || b.Blocked(pools.Prefill, "") != nil {
		t.Errorf("the next incarnation inherits: %v", err)
	}
	want := []string{
		"breaker_opened_total w1 decode 0", "breaker_opened_total w1 prefill 0", "breaker_opened_total w2 decode 1",
		"breaker_state w1 decode closed 1", "breaker_state w1 decode half_open 0", "breaker_state w1 decode open 0",
		"breaker_state w1 prefill closed 1", "breaker_state w1 prefill half_open 0", "breaker_state w1 prefill open 0",
		"breaker_state w2 decode closed 0", "breaker_state w2 decode half_open 0", "breaker_state w2 decode open 1",
	}
	if got := series(t, b); !slices.Equal(got, want) {
		t.Errorf("series %q", got)
	}
	b.Forget(func(w, _ string) bool { return w == "w2" })
	if b.State("w2", pools.Decode) != Closed || b.Blocked(pools.Decode, "") != nil || len(b.States()) != 2 {
		t.Errorf("not forgotten: %+v", b.States())
	}
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
			if got := len(b.Blocked(pools.Decode, adapter)) > 0; got != slices.Contains(want, adapter) {
				t.Errorf("adapter %q: blocked %v", adapter, got)
			}
		}
	}
	for _, c := range []Class{EngineError, Reset, Timeout, Garbled, Overloaded, Truncated, Stalled} {
		for range 20 {
			call("sql", c)
			call("math", NotServed)
		}
		blocked("sql")
	}
	if s := b.States(); len(s) != 3 || s[0].Failures != 0 || len(series(t, b)) != 4 {
		t.Errorf("%+v", s)
	}
	b.Forget(func(_, adapter string) bool { return adapter != "" })
	if blocked(); len(b.States()) != 1 || len(b.tripped) != 0 {
		t.Errorf("%+v", b.States())
	}
	for range 3 {
		call("math", Refused) // nothing listens there
	}
	blocked("", "sql", "math")
}

// series lists what breakers export, one line each.
func series(t *testing.T, b *Breakers) []string {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	b.Export(reg)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, family := range families {
		for _, m := range family.GetMetric() {
			label := map[string]string{}
			for _, l := range m.GetLabel() {
				label[l.GetName()] = l.GetValue()
			}
			line := []string{family.GetName(), label["worker"], label["leg"]}
			if label["state"] != "" {
				line = append(line, label["state"])
			}
			list = append(list, fmt.Sprint(strings.Join(line, " "), " ", m.GetGauge().GetValue()+m.GetCounter().GetValue()))
		}
	}
	slices.Sort(list)
	return list
}

// A call that ends after its worker was forgotten changes nobody else's state.
func TestBreakersForgetCallsInFlight(t *testing.T) {
	b := NewBreakers(BreakerConfig{Consecutive: 1})
	done, err := b.Acquire("w", "a", pools.Decode, "", false)
	if err != nil {
		t.Fatal(err)
	}
	b.Forget(func(w, _ string) bool { return w == "w" })
	done(Reset)
	if b.Blocked(pools.Decode, "") != nil || len(b.States()) != 0 {
		t.Errorf("%+v", b.States())
	}
}

func TestNilBreakersLetEverythingThrough(t *testing.T) {
	var b *Breakers
	for range 5 {
		if !try(t, b, Refused) {
			t.Fatal("blocked")
		}
	}
	b.Forget(func(w, _ string) bool { return w == "d1" })
	if b.State("d1", pools.Decode) != Closed || b.States() != nil || b.Blocked(pools.Decode, "") != nil {
		t.Error("a state of nothing")
	}
}

func TestBreakersTogether(t *testing.T) {
	b := NewBreakers(BreakerConfig{OpenFor: time.Millisecond, OnChange: func(Circuit, State) {}})
	ended := make(chan bool)
	for g := range 8 {
		go func() {
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
			ended <- true
		}()
	}
	for range 8 {
		<-ended
	}
	for _, c := range b.States() {
		if c.Leg != pools.Decode || stateOrder(c.State) < 0 {
			t.Errorf("%+v", c)
		}
	}
}

func stateOrder(s State) int { return slices.Index([]State{Closed, HalfOpen, Open}, s) }

func TestBreakerConfigValidate(t *testing.T) {
	for _, c := range []BreakerConfig{{Consecutive: -1}, {Ratio: -1}, {Ratio: 1.5}, {MinCalls: -1}, {Window: -1}, {OpenFor: -1}} {
		if c.Validate() == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	if err := (BreakerConfig{}).Validate(); err != nil {
		t.Error(err)
	}
}

// What asking costs where nothing is wrong, and where one of a hundred
// workers is.
func BenchmarkBreakers(b *testing.B) {
	all := NewBreakers(BreakerConfig{Consecutive: 1})
	for i := range 100 {
		done, _ := all.Acquire(fmt.Sprint("w", i), "a", pools.Decode, "", false)
		done(None)
	}
	call := func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			all.Blocked(pools.Decode, "")
			done, err := all.Acquire("w7", "a", pools.Decode, "", false)
			if err != nil {
				b.Fatal(err)
			}
			done(None)
		}
	}
	b.Run("closed", call)
	done, _ := all.Acquire("w8", "a", pools.Decode, "", false)
	done(Reset)
	b.Run("one open", call)
}
