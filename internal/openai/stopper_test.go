package openai

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestStopper: what is shown of each piece, and by which stop string the answer ends. had is what the client has
// before.
func TestStopper(t *testing.T) {
	for _, c := range []struct {
		had  string
		s    Stopper
		in   []string
		out  []string
		stop string
	}{
		{"", Stopper{Stops: []string{"abc"}}, []string{"xa", "b", "d"}, []string{"x", "", "abd"}, ""},
		{"", Stopper{Stops: []string{"abc"}}, []string{"xa", "b", "c", "d"}, []string{"x", "", ""}, "abc"},
		{"", Stopper{Stops: []string{"aab"}}, []string{"aa", "a", "b"}, []string{"", "a", ""}, "aab"},
		{"", Stopper{Stops: []string{"zz"}}, []string{"plain", "text"}, []string{"plain", "text"}, ""},
		{"", Stopper{}, []string{"a", "b"}, []string{"a", "b"}, ""},
		{"x E", Stopper{Stops: []string{"END"}}, []string{"N", "D", "y"}, []string{"", ""}, "END"},
		{"x EN", Stopper{Stops: []string{"END"}, Include: true}, []string{"D y"}, []string{"D"}, "END"},
		{"x E", Stopper{Stops: []string{"END"}, Include: true}, []string{"N", "D"}, []string{"N", "D"}, "END"},
		{"x END", Stopper{Stops: []string{"END"}}, []string{"y"}, []string{"y"}, ""},         // it was complete before it counted (min_tokens)
		{"aba", Stopper{Stops: []string{"abab", "bb"}}, []string{"b"}, []string{""}, "abab"}, // overlapping beginnings
		{"ana", Stopper{Stops: []string{"nanas"}}, []string{"na", "s"}, []string{"", ""}, "nanas"},
		{"", Stopper{Stops: []string{"abcd", "bc"}}, []string{"xabcd"}, []string{"xa"}, "bc"},
		// vllm/v1/engine/detokenizer.py, check_stop_strings
		{"", Stopper{Stops: []string{"abcd", "bc"}, InOrder: true}, []string{"xabcd"}, []string{"x"}, "abcd"},
		{"\xf0\x9f\x98\x80\xf0", Stopper{Stops: []string{"😀😀"}}, []string{"\x9f\x98\x80!"}, []string{""}, "😀😀"},
	} {
		var out []string
		var stop string
		c.s.Pass(c.had)
		for _, in := range c.in {
			var shown string
			shown, stop, _ = c.s.Push(in)
			out = append(out, shown)
			if stop != "" {
				break
			}
		}
		assert.True(t, slices.Equal(out, c.out) && stop == c.stop,
			"%q, then %q with %v: %q, %q; want %q, %q", c.had, c.in, c.s.Stops, out, stop, c.out, c.stop)
	}
}

// A pattern that a backtracking matcher may take long for, and one that is not the same in Python, is refused.
func TestStopRegex(t *testing.T) {
	for pattern, good := range map[string]bool{
		`\n\nUser:`: true, `</?tool>`: true, `[0-9]+\.`: true, `yes|no|maybe`: true, `[]a|?*+{(]`: true, `[^]|?*+]x`: true,
		`a{2,5}`: true, `(?:ab)c`: true,
		`\(\*\+\?\|`: true, `.`: true, ``: true, `é+`: true,
		`(a|a|aa)*b`: false, `(a+)+b`: false, `a*a*b`: false, `a?a?a?a?a?`: false, `(a|a)(a|a)(a|a)(a|a)(a|a)b`: false,
		`(?:a|b){9}`: false, `a+b*`: false,
		`(`: false, `a**`: false, `(?P<a>b)`: false, `(?<=a)b`: false, `(?i)a`: false, `\z`: false, `\pL`: false, `\Qa`: false,
		`\1`: false, `[z-a]`: false, `a\`: false,
	} {
		for _, value := range []string{strconv.Quote(pattern), `["x",` + strconv.Quote(pattern) + `]`} {
			_, err := Limits{}.Scan(Completions, []byte(`{"model":"m","prompt":"x","stop_regex":`+value+`}`))
			e, refused := errors.AsType[*Error](err)
			assert.True(t, refused != good && (!refused || e.Status == http.StatusBadRequest && e.Param == "stop_regex"),
				"%s: %v", value, err)
		}
	}
}
