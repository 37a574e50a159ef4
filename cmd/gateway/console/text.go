package console

import (
	"fmt"
	"math"
	"time"
)

// clock is the format of a time of day.
const clock = "15:04:05"

func date(t time.Time, form string) string { return t.UTC().Format(form) }

// seconds returns a time for the charts' axis.
func seconds(t time.Time) float64 { return float64(t.Unix()) }

// short formats seconds to three digits in a fitting unit; a dash if unknown.
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

// unlessZero formats a figure that is 0 while unknown.
func unlessZero(v float64, format func(float64) string) string {
	if v == 0 {
		return "–"
	}
	return format(v)
}

// percent formats a share of 1.
func percent(share float64) string {
	if math.IsNaN(share) {
		return "–"
	}
	return fmt.Sprintf("%.0f %%", share*100)
}

func perSecond(rate float64) string {
	if rate >= 100 {
		return count(int(rate)) + "/s"
	}
	return fmt.Sprintf("%.1f/s", rate)
}

// plural formats n of something.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
