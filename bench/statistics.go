package main

import (
	"slices"
	"time"
)

// spread is a figure's median over the rounds with the least and the most.
type spread struct {
	Median float64
	Min    float64
	Max    float64
}

// spreadOf needs at least one value; with an even number the median is between the two in the middle.
func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	s := slices.Sorted(slices.Values(values))
	middle := s[len(s)/2]
	if len(s)%2 == 0 {
		middle = (middle + s[len(s)/2-1]) / 2
	}
	return spread{Median: middle, Min: s[0], Max: s[len(s)-1]}
}

// micros is a duration in microseconds.
func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// differences are a's values less b's of the same round.
func differences(a, b []float64) []float64 {
	return byRound(a, b, func(a, b float64) float64 { return a - b })
}

// ratios are a's values divided by b's of the same round.
func ratios(a, b []float64) []float64 {
	return byRound(a, b, func(a, b float64) float64 { return a / b })
}

// byRound combines the values of the same round. Where one has no value for each
// round of the other, it combines the medians.
func byRound(a, b []float64, combine func(a, b float64) float64) []float64 {
	if len(a) != len(b) {
		return []float64{combine(spreadOf(a).Median, spreadOf(b).Median)}
	}
	out := make([]float64, len(a))
	for i := range out {
		out[i] = combine(a[i], b[i])
	}
	return out
}

// slope is how fast the values rise from one to the next, by least squares.
func slope(values []float64) float64 {
	n := float64(len(values))
	if n < 2 {
		return 0
	}
	var sum, squares float64
	for i, v := range values {
		at := float64(i) - (n-1)/2
		sum += at * v
		squares += at * at
	}
	return sum / squares
}
