package replay

import (
	"cmp"
	"math"
	"slices"
)

// Quantile returns the value below which a share q, from 0 to 1, of sorted values lies: between two of them on the
// line that joins them, as NumPy's default does. Whole numbers are rounded. 0 for none.
func Quantile[T ~int64 | ~float64](sorted []T, q float64) T {
	if len(sorted) == 0 {
		return 0
	}
	rank := q * float64(len(sorted)-1)
	below := int(rank)
	if below+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	a, b := sorted[below], sorted[below+1]
	step := float64((rank - float64(below)) * float64(b-a)) // the conversion keeps the sum below from being fused
	if whole := T(1) / 2; whole == 0 {
		step = math.Round(step)
	}
	return a + T(step)
}

// NearestRank returns the smallest value that at least a share q of all do not exceed: always one that was measured.
// The values need not be sorted. The zero value for none.
func NearestRank[T cmp.Ordered](values []T, q float64) T {
	if len(values) == 0 {
		var zero T
		return zero
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(max(int(math.Ceil(q*float64(len(sorted)))), 1), len(sorted))-1]
}
