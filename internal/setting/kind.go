package setting

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Kind is the type of a setting's value.
type kind uint8

const (
	kindString   kind = iota // string: valid UTF-8, surrounding blanks kept
	kindInt                  // int64: decimal
	kindFloat                // float64: finite
	kindBool                 // bool: true, false, yes, no, on, off, 1, 0
	kindDuration             // time.Duration, up to a year: a number with a unit, as 250ms or 1m30s; 0 needs none
	kindSeconds              // float64: seconds, of a field that is a time.Duration
	kindBytes                // int64: a whole number of bytes, with a unit from B to TiB; kB is 1,000 and KiB 1,024
	kindList                 // []string: separated by commas, or a YAML sequence; never nil
	kindWords                // []string: separated by blanks or line ends, or a YAML sequence; items may hold commas; never nil
)

// nanoseconds of a second.
const nanoseconds = float64(time.Second)

// kindOf is the kind of a field: its type, and the tags unit and sep.
func kindOf(t reflect.Type, unit, sep string) (kind, error) {
	isDuration := t == reflect.TypeFor[time.Duration]()
	switch {
	case isDuration && unit == "":
		return kindDuration, nil
	case isDuration && unit == "s":
		return kindSeconds, nil
	case (t.Kind() == reflect.Int || t.Kind() == reflect.Int64) && unit == "bytes":
		return kindBytes, nil
	case unit != "":
		return 0, fmt.Errorf("a %s has no unit %q", t, unit)
	case t == reflect.TypeFor[[]string]() && sep == "space":
		return kindWords, nil
	case t == reflect.TypeFor[[]string]():
		return kindList, nil
	}
	switch t.Kind() {
	case reflect.String:
		return kindString, nil
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return kindInt, nil
	case reflect.Float64:
		return kindFloat, nil
	case reflect.Bool:
		return kindBool, nil
	}
	return 0, fmt.Errorf("a %s cannot be set", t)
}

// kinds holds what differs between kinds: the name, what stands for a value in
// help, and what completes the sentence "… is not …".
var kinds = [...]struct{ name, metavar, expected string }{
	kindString:   {"string", "TEXT", "a string"},
	kindInt:      {"int", "N", "a whole number"},
	kindFloat:    {"float", "X", "a finite number"},
	kindBool:     {"bool", "", "true or false"},
	kindDuration: {"duration", "DURATION", "a duration with its unit, as 250ms, 60s or 1m30s"},
	kindSeconds:  {"seconds", "SECONDS", "a finite number"},
	kindBytes:    {"bytes", "BYTES", "a number of bytes, as 1048576, 64MiB or 64MB"},
	kindList:     {"list", "A,B,…", "a list"},
	kindWords:    {"words", "TEXT", "a list of words"},
}

// String names the kind as help and errors do.
func (k kind) String() string { return kinds[k].name }

// parse turns text into a value of the Go type that the kind documents.
func (k kind) parse(text string) (any, error) {
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("%s is not UTF-8", Quote(text))
	}
	switch k {
	case kindString:
		return text, nil
	case kindList:
		return parseList(text), nil
	case kindWords:
		return append([]string{}, strings.Fields(text)...), nil
	}
	word := strings.TrimSpace(text)
	var v any
	var err error
	switch k {
	case kindInt:
		v, err = strconv.ParseInt(word, 10, 64)
	case kindFloat, kindSeconds:
		v, err = parseFloat(word)
	case kindBool:
		v, err = parseBool(word)
	case kindDuration:
		v, err = parseDuration(word)
	case kindBytes:
		v, err = parseBytes(word)
	}
	if err == nil {
		return v, nil
	}
	if errors.Is(err, strconv.ErrRange) {
		if k == kindDuration {
			return nil, fmt.Errorf("%s is longer than %s, the most a duration may be", Quote(text), formatDuration(maxDuration))
		}
		return nil, fmt.Errorf("%s is out of range", Quote(text))
	}
	return nil, fmt.Errorf("%s is not %s", Quote(text), kinds[k].expected)
}

func (k kind) mustParse(text string) any {
	v, err := k.parse(text)
	if err != nil {
		panic(err)
	}
	return v
}

// format writes a value as parse reads it and as YAML takes it.
func (k kind) format(v any) string {
	switch v := v.(type) {
	case string:
		return yamlText(v)
	case []string:
		items := make([]string, len(v))
		for i, item := range v {
			items[i] = yamlText(item)
		}
		return "[" + strings.Join(items, ", ") + "]"
	case time.Duration:
		return formatDuration(v)
	case int64:
		if k == kindBytes {
			return formatBytes(v)
		}
		return strconv.FormatInt(v, 10)
	case float64:
		return formatFloat(v)
	default:
		return fmt.Sprint(v)
	}
}

// ordered reports whether the kind can have bounds.
func (k kind) ordered() bool {
	return k == kindInt || k == kindFloat || k == kindDuration || k == kindSeconds || k == kindBytes
}

// less compares two values of an ordered kind.
func (k kind) less(a, b any) bool {
	switch a := a.(type) {
	case float64:
		return cmp.Less(a, b.(float64))
	case time.Duration:
		return cmp.Less(a, b.(time.Duration))
	case int64:
		return cmp.Less(a, b.(int64))
	default:
		panic("setting: a " + k.String() + " has no order")
	}
}

// maxDuration bounds every duration: limits are added and multiplied, and one that overflows has passed already.
const maxDuration = 365 * 24 * time.Hour

// parseDuration is time.ParseDuration within maxDuration. A duration that is
// written well and has too many hours is out of range, not malformed.
func parseDuration(word string) (time.Duration, error) {
	d, err := time.ParseDuration(word)
	if last := len(word) - 1; err != nil && last >= 0 && (word[last] < '0' || word[last] > '9') { // which has a unit
		zeros := strings.Map(func(r rune) rune {
			if '0' <= r && r <= '9' {
				return '0'
			}
			return r
		}, word)
		if _, malformed := time.ParseDuration(zeros); malformed == nil {
			err = strconv.ErrRange
		}
	}
	if err == nil && (d > maxDuration || d < -maxDuration) {
		err = strconv.ErrRange
	}
	return d, err
}

func parseFloat(word string) (float64, error) {
	f, err := strconv.ParseFloat(word, 64)
	if err == nil && (math.IsNaN(f) || math.IsInf(f, 0)) {
		err = strconv.ErrSyntax
	}
	return f, err
}

func parseBool(word string) (bool, error) {
	switch strings.ToLower(word) {
	case "true", "yes", "on", "1":
		return true, nil
	case "false", "no", "off", "0":
		return false, nil
	}
	return false, strconv.ErrSyntax
}

// byteUnits runs from the greatest to the least, each binary unit before the
// decimal one, which is the order formatBytes tries them in.
var byteUnits = []struct {
	name string
	size int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3},
	{"B", 1},
}

func parseBytes(word string) (int64, error) {
	digits := strings.TrimRight(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	unit, size := word[len(digits):], int64(0)
	for _, u := range byteUnits {
		if strings.EqualFold(unit, u.name) || unit == "" {
			size = u.size // of no unit the last, a byte
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
	switch {
	case err != nil:
		return 0, err
	case size == 0 || n < 0:
		return 0, strconv.ErrSyntax
	case n > math.MaxInt64/size:
		return 0, strconv.ErrRange
	}
	return n * size, nil
}

func formatBytes(n int64) string {
	for _, u := range byteUnits {
		if n != 0 && n%u.size == 0 && strings.HasSuffix(u.name, "iB") {
			return strconv.FormatInt(n/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// formatDuration is Duration.String without the zero minutes and seconds that
// it ends round numbers with: 1m, not 1m0s.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// formatFloat keeps a point in a round number, as the documents write them: 4.0.
func formatFloat(f float64) string {
	s := strconv.FormatFloat(f, 'g', -1, 64)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}

// parseList splits at commas; blanks around an item and empty items go.
func parseList(text string) []string {
	items := []string{}
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// yamlText writes a string as a YAML scalar: bare where YAML itself reads it
// back as the same string, quoted otherwise.
func yamlText(s string) string {
	const bare = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./-"
	if strings.Trim(s, bare) == "" {
		var node yaml.Node
		if yaml.Unmarshal([]byte(s), &node) == nil && len(node.Content) == 1 {
			if c := node.Content[0]; c.Kind == yaml.ScalarNode && c.ShortTag() == "!!str" && c.Value == s {
				return s
			}
		}
	}
	return strconv.Quote(s) // its escapes are a subset of YAML's
}
