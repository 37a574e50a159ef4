package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Baselines are subtracted round by round: noise that both arms of a round had
// is gone, where the difference of the medians would keep it.
func TestFinishSubtractsRoundByRound(t *testing.T) {
	r := &report{Arms: []*figures{
		{Key: "gateway", Baseline: "direct", Rounds: map[string][]float64{"ttft_p50_us@5": {11, 112, 11}, "short_us": {7}}},
		{Key: "direct", Rounds: map[string][]float64{"ttft_p50_us@5": {1, 100, 3}}},
	}}
	r.finish()
	f := r.find("gateway")
	if got, want := f.Of["added_ttft_p50_us@5"], (spread{10, 8, 12}); got != want {
		t.Errorf("added p50: got %v, want %v", got, want)
	}
	if got, want := f.Of["short_us"], (spread{7, 7, 7}); got != want {
		t.Errorf("short: got %v, want %v", got, want)
	}
	if _, ok := r.find("direct").Of["added_ttft_p50_us@5"]; ok {
		t.Error("the baseline itself has something added")
	}
}

// A figure has a row, an arm a column; the ratios are of the same round.
func TestWrite(t *testing.T) {
	r := &report{Arms: []*figures{
		{Name: "gateway, two legs", Key: gateway2Key, Rounds: map[string][]float64{"saturated_us": {60, 75}, "stream_kib": {12}}},
		{Name: "against, two legs", Key: againstKey, Rounds: map[string][]float64{"saturated_us": {120, 100}}},
		{Name: "nginx, one leg", Key: nginxKey, Rounds: map[string][]float64{"saturated_us": {20, 30}, "stream_kib": {0}}},
	}}
	r.finish()
	var b strings.Builder
	require.NoError(t, r.write(&b))
	for _, want := range []string{
		"HAProxy absent",
		"| figure | gateway, two legs | against, two legs | nginx, one leg | gateway / nginx, one leg | gateway / against, two legs |\n|---|---|---|---|---|---|\n",
		"| saturated_us | 67.5 (60.0–75.0) | 110 (100–120) | 25.0 (20.0–30.0) | 2.75 (2.50–3.00) | 0.625 (0.500–0.750) |\n",
		"| stream_kib | 12.0 |  | 0.000 |  |  |\n",
	} {
		assert.Contains(t, b.String(), want)
	}
}

func TestRatiosAndSlope(t *testing.T) {
	if got := ratios([]float64{4, 9}, []float64{2, 3}); !slices.Equal(got, []float64{2, 3}) {
		t.Errorf("ratios: got %v", got)
	}
	if got := ratios([]float64{4, 9, 8}, []float64{2}); !slices.Equal(got, []float64{4}) {
		t.Errorf("ratios of medians: got %v", got)
	}
	for _, tt := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{7}, 0}, {[]float64{1, 3, 5, 7}, 2}, {[]float64{5, 5, 5}, 0}, {[]float64{0, 2, 1}, 0.5}} {
		assert.Equal(t, tt.want, slope(tt.values), "slope of %v", tt.values)
	}
}

// User time is split off by rounds where each has ticks enough, and otherwise once for all of them.
func TestSplit(t *testing.T) {
	f := &figures{Rounds: map[string][]float64{}, used: map[string][]usage{}}
	for _, user := range []int64{80, 40} {
		f.cost("busy", usage{time.Second, user, 100 - user}, 10_000)
	}
	for _, user := range []int64{9, 3} {
		f.cost("calm", usage{100 * time.Millisecond, user, 12 - user}, 1000)
	}
	f.cost("still", usage{time.Millisecond, 1, 0}, 10)
	f.split()
	for name, want := range map[string][]float64{"busy_user_us": {80, 40}, "calm_user_us": {50}, "still_user_us": nil, "busy_us": {100, 100}} {
		if got := f.Rounds[name]; !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}
