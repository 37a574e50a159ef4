package fault

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Those that wait for a retry get it in their order, each once, and one that waits no longer keeps none.
func TestBudgetWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := new(Budget)
		for range 10 {
			require.True(t, b.Wait(t.Context()), "there is a place")
		}
		came := make(chan int, 3)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for i, ctx := range []context.Context{t.Context(), short, t.Context()} {
			go func() {
				if !b.Wait(ctx) {
					i = -i
				}
				came <- i
			}()
			synctest.Wait()
		}
		assert.False(t, b.Take(), "a place past the limit")
		assert.Equal(t, -1, <-came)
		b.Return()
		b.Return()
		first, second := <-came, <-came
		assert.True(t, first+second == 2 && b.Stats().Retrying == 10 && b.Stats().Refused == 2,
			"%d, %d came; %+v", first, second, b.Stats())
		for range 10 {
			b.Return()
		}
		assert.Zero(t, b.Stats().Retrying)
	})
}

// The floor of the budget is divided among the gateways of a group: an outage gets no more retries of three than of one.
func TestBudgetAmongGateways(t *testing.T) {
	var b Budget
	for gateways, want := range map[int]int{0: 10, 1: 10, 3: 3, 4: 2, 20: 2} {
		b.SetReplicaCount(gateways)
		assert.Equal(t, want, b.Stats().Limit, "retries of one of %d gateways", gateways)
	}
}

func TestBudget(t *testing.T) {
	for _, c := range []struct {
		name    string
		live    int
		granted int // of ever so many
	}{
		{"a quiet gateway", 1, 10},
		{"no request", 0, 10},
		{"where the share begins to count", 50, 10},
		{"a part does not count", 54, 10},
		{"the next", 55, 11},
		{"a busy gateway", 1000, 200},
	} {
		b, granted := new(Budget), 0
		for range c.live {
			b.Begin()
		}
		for range 1200 {
			if b.Take() {
				granted++
			}
		}
		want := BudgetStats{Live: c.live, Retrying: c.granted, Limit: c.granted, Refused: uint64(1200 - c.granted)}
		assert.Equal(t, want, b.Stats(), c.name)
		assert.Equal(t, c.granted, granted, c.name)
		b.Return()
		assert.True(t, b.Take() && !b.Take(), "%s: one return is not one retry", c.name)
		for range c.live {
			b.End()
		}
		for range c.granted {
			b.Return()
		}
		got := b.Stats()
		assert.True(t, got.Live == 0 && got.Retrying == 0, "%s: at the end %+v", c.name, got)
	}
}
