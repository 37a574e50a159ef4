package console

import (
	"fmt"
	"math"
	"time"
)

// clock is the form of a time of day.
const clock = "15:04:05"

// date is a moment for people to read, in UTC, as all operators' other tools have it.
func date(t time.Time, form string) string { return t.UTC().Format(form) }

// seconds is a moment for the charts' axis.
func seconds(t time.Time) float64 { return float64(t.Unix()) }

// short is a time in seconds, to three digits, in a unit that fits; a dash where it is not known.
func short(seconds float64) string {
	switch {
	case math.IsNaN(seconds):
		return "–"
	case seconds >= 100:
		return fmt.Sprintf("%.0f s", seconds)
	case seconds >= 10:
		return fmt.Sprintf("%.1f s", seconds)
	case seconds >= 1:
		return fmt.Sprintf("%.2f s", seconds)
	case seconds >= .1:
		return fmt.Sprintf("%.0f ms", seconds*1e3)
	case seconds == 0:
		return "0 ms"
	}
	return fmt.Sprintf("%.1f ms", seconds*1e3)
}

// percent is a share of 1.
func percent(share float64) string {
	if math.IsNaN(share) {
		return "–"
	}
	return fmt.Sprintf("%.0f %%", share*100)
}

// perSecond is a rate.
func perSecond(rate float64) string {
	if rate >= 100 {
		return count(int(rate)) + "/s"
	}
	return fmt.Sprintf("%.1f/s", rate)
}

// plural is n of something.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
