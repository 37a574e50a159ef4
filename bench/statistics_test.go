package main

import (
	"slices"
	"testing"

	"github.com/tandem-pd/tandem/lab/replay"
)

func TestQuantile(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = 100 - i
	}
	tests := []struct {
		values []int
		q      float64
		want   int
	}{
		{nil, 0.5, 0},
		{[]int{7}, 0.99, 7},
		{[]int{3, 1, 2}, 0.5, 2},
		{[]int{4, 3, 1, 2}, 0.5, 2},
		{hundred, 0.5, 50},
		{hundred, 0.99, 99},
		{hundred, 0.991, 100},
		{hundred, 1, 100},
		{hundred, 0, 1},
	}
	for _, tt := range tests {
		was := slices.Clone(tt.values)
		if got := replay.NearestRank(tt.values, tt.q); got != tt.want {
			t.Errorf("quantile of %d values at %v: got %d, want %d", len(tt.values), tt.q, got, tt.want)
		}
		if !slices.Equal(was, tt.values) {
			t.Error("quantile changed its argument")
		}
	}
}

func TestSpread(t *testing.T) {
	tests := []struct {
		values []float64
		want   spread
	}{
		{nil, spread{}},
		{[]float64{2}, spread{2, 2, 2}},
		{[]float64{9, 1, 4}, spread{4, 1, 9}},
		{[]float64{9, 1, 4, 6}, spread{5, 1, 9}},
	}
	for _, tt := range tests {
		if got := spreadOf(tt.values); got != tt.want {
			t.Errorf("%v: got %v, want %v", tt.values, got, tt.want)
		}
	}
}

// Baselines are subtracted round by round: noise that both arms of a round had
// is gone, where the difference of the medians would keep it.
func TestFinishSubtractsRoundByRound(t *testing.T) {
	r := &report{Arms: []*figures{
		{Key: "direct", Steps: []*step{{PerSecond: 5, P50s: []float64{1, 100, 3}, P99s: []float64{2, 2, 2}}}},
		{Key: "gateway", Baseline: "direct", Steps: []*step{{PerSecond: 5, P50s: []float64{11, 112, 11}, P99s: []float64{2, 3, 4}, CPUs: []float64{7}}}},
	}}
	r.finish()
	s := r.Arms[1].Steps[0]
	if want := (spread{10, 8, 12}); *s.AddedP50 != want {
		t.Errorf("added p50: got %v, want %v", *s.AddedP50, want)
	}
	if want := (spread{1, 0, 2}); *s.AddedP99 != want {
		t.Errorf("added p99: got %v, want %v", *s.AddedP99, want)
	}
	if direct := r.Arms[0].Steps[0]; direct.AddedP50 != nil || direct.CPUPerRequest != nil {
		t.Error("the baseline itself has something added, or a CPU time that nobody measured")
	}
}
