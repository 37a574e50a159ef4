package openai

import (
	"math"
	"regexp"
	"strconv"
	"strings"
)

// vLLM and SGLang parse requests with pydantic in lax mode, which converts scalars without loss. The gateway does the
// same and leaves the bytes unchanged. The rules are those of
// https://docs.pydantic.dev/latest/concepts/conversion_table/; testdata/lax.txt has pydantic's result for each form.

// wholeText is an integer in a string: pydantic-core's str_as_int (src/input/shared.rs).
var wholeText = regexp.MustCompile(`^[+-]?[0-9]+(_[0-9]+)*(\.0+)?$`)

// laxInt reads a scalar's JSON as an integer of 64 bits: 3, 3.0, "3", "3.0", and true for 1.
func laxInt(raw []byte) (int64, bool) {
	switch raw[0] {
	case 't', 'f':
		return int64(len("false") - len(raw)), true
	case '"':
		text := strings.TrimSpace(unquote(raw))
		if !wholeText.MatchString(text) {
			return 0, false
		}
		text, _, _ = strings.Cut(text, ".")
		v, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 64)
		return v, err == nil
	}
	v, err := strconv.ParseInt(string(raw), 10, 64)
	if err == nil {
		return v, true
	}
	f, floats := laxFloat(raw)
	fraction := strings.ContainsAny(string(raw), ".eE")
	return int64(f), floats && fraction && f == math.Trunc(f) && math.Abs(f) < 1<<63
}

// laxFloat reads a scalar's JSON as a finite number: 0.5, "0.5", and true for 1.
func laxFloat(raw []byte) (float64, bool) {
	text := string(raw)
	switch raw[0] {
	case 't', 'f':
		return float64(len("false") - len(raw)), true
	case '"':
		text = strings.TrimSpace(unquote(raw))
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil && !strings.HasPrefix(text, "_") && !strings.HasSuffix(text, "_") && !strings.Contains(text, "__") {
		v, err = strconv.ParseFloat(strings.ReplaceAll(text, "_", ""), 64)
	}
	return v, err == nil && v-v == 0 && !strings.ContainsAny(text, "xX")
}

// laxBool reads a scalar's JSON as a truth value: true, 1, 1.0, "1", "true", "t", "yes", "y" and "on" in any case, and
// their opposites.
func laxBool(raw []byte) (value, ok bool) {
	switch raw[0] {
	case 't', 'f':
		return raw[0] == 't', true
	case '"':
		switch strings.ToLower(unquote(raw)) {
		case "1", "true", "t", "yes", "y", "on":
			return true, true
		case "0", "false", "f", "no", "n", "off":
			return false, true
		}
		return false, false
	}
	v, ok := laxFloat(raw)
	return v == 1, ok && (v == 0 || v == 1)
}

// unquote is the text of a valid JSON string.
func unquote(raw []byte) string {
	c := newCursor(raw, 0)
	t, _ := c.str()
	return t.decode(raw)
}

// lax reads a number, a string, true or false. ok is false for anything else.
func (s *scan) lax() (raw []byte, ok bool) {
	switch b := s.peek(); b {
	case '"', '-', 't', 'f':
	default:
		if b-'0' > 9 {
			return nil, false
		}
	}
	v, ok := s.value()
	return v.of(s.data), ok
}

// Bool reads a top-level field as engines do; ok is false where it is absent, null or no truth value.
func (r *Request) Bool(name string) (value, ok bool) {
	if raw, has := r.Field(name); has && raw[0] != 'n' && raw[0] != '{' && raw[0] != '[' {
		return laxBool(raw)
	}
	return false, false
}
