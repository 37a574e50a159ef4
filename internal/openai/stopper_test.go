package openai

import (
	"slices"
	"testing"
)

func TestStopperHoldsBackNoMoreThanItMust(t *testing.T) {
	for _, tc := range []struct {
		stops []string
		in    []string
		out   []string
		stop  string
	}{
		{[]string{"abc"}, []string{"xa", "b", "d"}, []string{"x", "", "abd"}, ""},
		{[]string{"abc"}, []string{"xa", "b", "c", "d"}, []string{"x", "", ""}, "abc"},
		{[]string{"aab"}, []string{"aa", "a", "b"}, []string{"", "a", ""}, "aab"},
		{[]string{"b", "ab"}, []string{"xab"}, []string{"x"}, "ab"},
		{[]string{"zz"}, []string{"plain", "text"}, []string{"plain", "text"}, ""},
		{nil, []string{"a", "b"}, []string{"a", "b"}, ""},
	} {
		s := Stopper{Stops: tc.stops}
		var out []string
		var stop string
		for _, in := range tc.in {
			var shown string
			shown, stop = s.Push(in)
			out = append(out, shown)
			if stop != "" {
				break
			}
		}
		if !slices.Equal(out, tc.out) || stop != tc.stop {
			t.Errorf("%v over %q: %q, %q; want %q, %q", tc.stops, tc.in, out, stop, tc.out, tc.stop)
		}
	}
}
