package openai

import (
	"errors"
	"net/http"
	"strconv"
	"testing"
)

// A pattern that a backtracking matcher may take long for, and one that is not the same in Python, is refused.
func TestStopRegex(t *testing.T) {
	for pattern, good := range map[string]bool{
		`\n\nUser:`: true, `</?tool>`: true, `[0-9]+\.`: true, `yes|no|maybe`: true, `[]a|?*+{(]`: true, `[^]|?*+]x`: true, `a{2,5}`: true, `(?:ab)c`: true,
		`\(\*\+\?\|`: true, `.`: true, ``: true, `é+`: true,
		`(a|a|aa)*b`: false, `(a+)+b`: false, `a*a*b`: false, `a?a?a?a?a?`: false, `(a|a)(a|a)(a|a)(a|a)(a|a)b`: false, `(?:a|b){9}`: false, `a+b*`: false,
		`(`: false, `a**`: false, `(?P<a>b)`: false, `(?<=a)b`: false, `(?i)a`: false, `\z`: false, `\pL`: false, `\Qa`: false, `\1`: false, `[z-a]`: false, `a\`: false,
	} {
		for _, value := range []string{strconv.Quote(pattern), `["x",` + strconv.Quote(pattern) + `]`} {
			_, err := Limits{}.Scan(Completions, []byte(`{"model":"m","prompt":"x","stop_regex":`+value+`}`))
			e, refused := errors.AsType[*Error](err)
			if refused == good || refused && (e.Status != http.StatusBadRequest || e.Param != "stop_regex") {
				t.Errorf("%s: %v", value, err)
			}
		}
	}
}
