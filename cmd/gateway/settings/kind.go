package settings

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Kind is the type of a setting's value.
type Kind uint8

const (
	String   Kind = iota // string: valid UTF-8, surrounding blanks kept
	Int                  // int: decimal
	Float                // float64: finite
	Bool                 // bool: true, false, yes, no, on, off, 1, 0
	Duration             // time.Duration, up to a year: a number with a unit, as 250ms or 1m30s; 0 needs none
	Bytes                // int64: a whole number of bytes, with a unit from B to TiB; kB is 1,000 and KiB 1,024
	List                 // []string: separated by commas, or a YAML sequence; never nil
	Words                // []string: separated by blanks or line ends, or a YAML sequence; items may hold commas; never nil
)

// kinds holds what differs between kinds: the name and what stands for a value
// in help.
var kinds = [...]struct{ name, metavar string }{
	String:   {"string", "TEXT"},
	Int:      {"int", "N"},
	Float:    {"float", "X"},
	Bool:     {"bool", ""},
	Duration: {"duration", "DURATION"},
	Bytes:    {"bytes", "BYTES"},
	List:     {"list", "A,B,…"},
	Words:    {"words", "TEXT"},
}

// String names the kind as help and errors do.
func (k Kind) String() string { return kinds[k].name }

// parse turns text into a value of the Go type that the kind documents.
func (k Kind) parse(text string) (any, error) {
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("%s is not UTF-8", quote(text))
	}
	if k == String {
		return text, nil
	}
	if k == List {
		return parseList(text), nil
	}
	if k == Words {
		return append([]string{}, strings.Fields(text)...), nil
	}
	word := strings.TrimSpace(text)
	var v any
	var err error
	switch k {
	case Int:
		v, err = strconv.Atoi(word)
	case Float:
		v, err = parseFloat(word)
	case Bool:
		v, err = parseBool(word)
	case Duration:
		v, err = parseDuration(word)
	case Bytes:
		v, err = parseBytes(word)
	}
	if err == nil {
		return v, nil
	}
	if errors.Is(err, strconv.ErrRange) {
		if k == Duration {
			return nil, fmt.Errorf("%s is longer than %s, the most a duration may be", quote(text), formatDuration(maxDuration))
		}
		return nil, fmt.Errorf("%s is out of range", quote(text))
	}
	return nil, fmt.Errorf("%s is not %s", quote(text), k.expected())
}

// expected completes the sentence "… is not …".
func (k Kind) expected() string {
	switch k {
	case Int:
		return "a whole number"
	case Float:
		return "a finite number"
	case Bool:
		return "true or false"
	case Duration:
		return "a duration with its unit, as 250ms, 60s or 1m30s"
	case Bytes:
		return "a number of bytes, as 1048576, 64MiB or 64MB"
	default:
		return "a " + k.String()
	}
}

func (k Kind) mustParse(text string) any {
	v, err := k.parse(text)
	if err != nil {
		panic(err)
	}
	return v
}

// format writes a value as parse reads it and as YAML takes it.
func (k Kind) format(v any) string {
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
		return formatBytes(v)
	case float64:
		return formatFloat(v)
	default:
		return fmt.Sprint(v)
	}
}

// several reports whether the kind's value has items, which a YAML sequence can hold and repeated flags add to.
func (k Kind) several() bool { return k == List || k == Words }

// ordered reports whether the kind can have bounds.
func (k Kind) ordered() bool { return k == Int || k == Float || k == Duration || k == Bytes }

// less compares two values of an ordered kind.
func (k Kind) less(a, b any) bool {
	switch a := a.(type) {
	case int:
		return cmp.Less(a, b.(int))
	case float64:
		return cmp.Less(a, b.(float64))
	case time.Duration:
		return cmp.Less(a, b.(time.Duration))
	case int64:
		return cmp.Less(a, b.(int64))
	default:
		panic("settings: a " + k.String() + " has no order")
	}
}

// maxDuration bounds every duration: limits are added and multiplied, and one
// that overflows has passed already.
const maxDuration = 365 * 24 * time.Hour

// parseDuration is time.ParseDuration within maxDuration. A duration that is
// written well and has too many hours is out of range, not malformed.
func parseDuration(word string) (time.Duration, error) {
	d, err := time.ParseDuration(word)
	if err != nil {
		_, malformed := time.ParseDuration(strings.Map(zeroDigits, word))
		if malformed == nil {
			err = strconv.ErrRange
		}
	}
	if err == nil && (d > maxDuration || d < -maxDuration) {
		err = strconv.ErrRange
	}
	return d, err
}

// zeroDigits turns every digit into a 0, for strings.Map.
func zeroDigits(r rune) rune {
	if '0' <= r && r <= '9' {
		return '0'
	}
	return r
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

// quote is how a user's value appears in an error: quoted, and cut where a
// whole file was passed by mistake.
func quote(s string) string {
	const most = 64
	if len(s) > most {
		return strconv.Quote(s[:most]) + "…"
	}
	return strconv.Quote(s)
}
