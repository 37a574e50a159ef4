package replay

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// scale maps values to places along an axis.
type scale struct {
	least, most float64
	log         bool
	from, to    float64 // the places of least and most
	ticks       []float64
}

// newScale makes a scale that holds every value, with about so many marks at round numbers. zero has it begin at 0.
func newScale(a Axis, values []float64, from, to float64, marks int, zero bool) scale {
	s := scale{log: a.Log, from: from, to: to}
	least, most := 0.0, 1.0
	if a.Log {
		least, most = 1, 10
	}
	if len(values) > 0 {
		least, most = slices.Min(values), slices.Max(values)
	}
	switch {
	case a.Log:
		s.logarithmic(least, most, marks)
	case a.Unit == "%" && least >= 0 && most <= 100:
		s.least, s.most, s.ticks = 0, 100, []float64{0, 25, 50, 75, 100}
	default:
		if zero {
			least = min(least, 0)
		}
		s.linear(least, most, marks)
	}
	// On a logarithm's axis the first two marks may be too close to be read.
	if n := len(s.ticks); n > 2 && math.Abs(s.at(s.ticks[1])-s.at(s.ticks[0])) < closest {
		s.ticks = s.ticks[1:]
	}
	return s
}

// closest is how far apart marks are at least, in the drawing's units: the height of one number, the width of two.
const closest = 24

// linear has marks at multiples of 1, 2 or 5 times a power of ten, and the outermost of them as its ends.
func (s *scale) linear(least, most float64, marks int) {
	if most <= least {
		most = least + max(1, math.Abs(least)/10)
	}
	rough := (most - least) / float64(marks)
	power := math.Pow(10, math.Floor(math.Log10(rough)))
	step := 10 * power
	for _, m := range []float64{1, 2, 5} {
		if m*power >= rough {
			step = m * power
			break
		}
	}
	first, last := math.Floor(least/step), math.Ceil(most/step)
	for k := first; k <= last; k++ {
		s.ticks = append(s.ticks, k*step)
	}
	s.least, s.most = first*step, last*step
}

// logarithmic has marks at 1, 2 and 5 times powers of ten, or at the powers alone where those are enough, or at every
// digit where those would be too few.
func (s *scale) logarithmic(least, most float64, marks int) {
	first, last := int(math.Floor(math.Log10(least))), int(math.Ceil(math.Log10(most)))
	digits := []string{"1", "2", "5"}
	if most < 5*least { // less than a decade needs more of them
		digits = []string{"1", "2", "3", "4", "5", "6", "7", "8", "9"}
	}
	var all []float64
	for power := first; power <= last; power++ {
		for _, digit := range digits {
			v, _ := strconv.ParseFloat(digit+"e"+strconv.Itoa(power), 64) // exact, as math.Pow is not
			all = append(all, v)
		}
	}
	from, to := 0, len(all)-1
	for from+1 < len(all) && all[from+1] <= least {
		from++
	}
	for to > 0 && all[to-1] >= most {
		to--
	}
	if from >= to { // one value that is a mark itself
		from, to = max(0, to-1), min(len(all)-1, from+1)
	}
	s.least, s.most = all[from], all[to]
	s.ticks = all[from : to+1]
	if len(s.ticks) > marks+1 && len(digits) == 3 {
		s.ticks = slices.DeleteFunc(slices.Clone(s.ticks), func(v float64) bool {
			digit := strconv.FormatFloat(v, 'e', -1, 64)[0]
			return digit != '1'
		})
	}
	for len(s.ticks) > marks+1 {
		var half []float64
		for i := 0; i < len(s.ticks); i += 2 {
			half = append(half, s.ticks[i])
		}
		s.ticks = half
	}
}

// at is a value's place.
func (s *scale) at(v float64) float64 {
	share := (v - s.least) / (s.most - s.least)
	if s.log {
		share = math.Log(v/s.least) / math.Log(s.most/s.least)
	}
	return s.from + share*(s.to-s.from)
}

// Number writes a value with a comma between thousands and only the digits that distinguish it.
func Number(v float64) string {
	size := math.Abs(v)
	switch {
	case size != 0 && size < 0.0005:
		return strconv.FormatFloat(v, 'g', 2, 64)
	case size >= 1e9:
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	decimals := 0
	for ; decimals < 4 && size < 1000; decimals++ {
		if scaled := size * math.Pow10(decimals); math.Abs(scaled-math.Round(scaled)) < 1e-6*max(1, scaled) || scaled >= 1000 {
			break
		}
	}
	text := strconv.FormatFloat(v, 'f', decimals, 64)
	whole, rest, fraction := strings.Cut(text, ".")
	for at := len(whole) - 3; at > 0 && whole[at-1] != '-'; at -= 3 {
		whole = whole[:at] + "," + whole[at:]
	}
	if fraction {
		return whole + "." + rest
	}
	return whole
}
