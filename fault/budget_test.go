package fault

import (
	"testing"
)

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
		t.Run(c.name, func(t *testing.T) {
			b := new(Budget)
			for range c.live {
				b.Begin()
			}
			granted := 0
			for range 1200 {
				if b.Take() {
					granted++
				}
			}
			want := BudgetStats{Live: c.live, Retrying: c.granted, Limit: c.granted, Refused: uint64(1200 - c.granted)}
			if got := b.Stats(); granted != c.granted || got != want {
				t.Errorf("granted %d, %+v; want %+v", granted, got, want)
			}
			b.Return()
			if !b.Take() || b.Take() {
				t.Error("one return is not one retry")
			}
			for range c.live {
				b.End()
			}
			for range c.granted {
				b.Return()
			}
			if got := b.Stats(); got.Live != 0 || got.Retrying != 0 {
				t.Errorf("at the end %+v", got)
			}
		})
	}
}
