package fault

import (
	"math"
	"testing"
)

func TestBudget(t *testing.T) {
	for _, c := range []struct {
		name    string
		cfg     BudgetConfig
		live    int
		granted int // of ever so many
	}{
		{"a quiet gateway", BudgetConfig{}, 1, 10},
		{"nobody there", BudgetConfig{}, 0, 10},
		{"where the share begins to count", BudgetConfig{}, 50, 10},
		{"a part does not count", BudgetConfig{}, 54, 10},
		{"the next", BudgetConfig{}, 55, 11},
		{"a busy gateway", BudgetConfig{}, 1000, 200},
		{"another share", BudgetConfig{Share: .5, Least: 1}, 9, 4},
		{"all", BudgetConfig{Share: 1, Least: 1}, 300, 300},
		{"nonsense is the default", BudgetConfig{Share: math.NaN(), Least: -1}, 100, 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := NewBudget(c.cfg)
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

func TestBudgetConfigValidate(t *testing.T) {
	for _, c := range []BudgetConfig{{Share: -.1}, {Share: 1.1}, {Share: math.NaN()}, {Least: -1}} {
		if c.Validate() == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	if err := (BudgetConfig{Share: 1, Least: 0}).Validate(); err != nil {
		t.Error(err)
	}
}
