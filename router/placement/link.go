package placement

import (
	"slices"
	"time"
)

// takes is how long a prompt's transfer takes at least, behind those under way. While one is, the highest bound counts as well: a
// pair that may be slow is tried by one at a time.
func (k *link) takes(tokens int, now time.Time) time.Duration {
	bounds := k.known(now, nil)
	seconds := bounds[0] * float64(k.ahead()+tokens)
	if len(k.under) > 0 {
		seconds = max(seconds, bounds[few-1]*float64(tokens))
	}
	return time.Duration(seconds * float64(time.Second))
}

// known are the bounds, those of transfers under way but one included.
func (k *link) known(now time.Time, but *Transfer) [few]float64 {
	bounds, ahead := k.bounds, k.ahead()
	for _, t := range k.under {
		if t != but {
			raise(&bounds, k.least(t, ahead, now))
		}
	}
	return bounds
}

// ahead is the tokens under way.
func (k *link) ahead() (tokens int) {
	for _, t := range k.under {
		tokens += t.tokens
	}
	return tokens
}

// least is the seconds that a token takes at least by the age of t, if all that is under way had been moved by now.
func (k *link) least(t *Transfer, ahead int, now time.Time) float64 {
	return (now.Sub(t.began) - t.own).Seconds() / float64(max(1, k.moved-t.before+ahead))
}

// raise puts a lower bound in place of the least of those that are known, if it is higher.
func raise(bounds *[few]float64, low float64) {
	if low > bounds[0] {
		bounds[0] = low
		slices.Sort(bounds[:])
	}
}
