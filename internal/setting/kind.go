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

	"github.com/dustin/go-humanize"
	"go.yaml.in/yaml/v3"
)

// kind is the type of a setting's value: how it is read, written and compared.
type kind struct {
	name, metavar string
	expected      string // completes the sentence "… is not …"
	parse         func(text string) (any, error)
	format        func(v any) string  // as parse and YAML take it
	less          func(a, b any) bool // nil where values have no order
}

var (
	kindString = kindOf("string", "TEXT", "a string", func(text string) (string, error) { return text, nil }, yamlText)
	kindBool   = kindOf("bool", "", "true or false", parseBool, strconv.FormatBool) // true, false, yes, no, on, off, 1, 0
	kindList   = kindOf("list", "A,B,…", "a list", parseList, formatList)           // separated by commas; never nil
	kindWords  = kindOf("words", "TEXT", "a list of words", parseWords, formatList) // separated by blanks; items may hold commas
	kindInt    = orderedKind("int", "N", "a whole number",
		func(word string) (int64, error) { return strconv.ParseInt(word, 10, 64) }, func(n int64) string { return strconv.FormatInt(n, 10) })
	kindFloat    = orderedKind("float", "X", "a finite number", parseFloat, formatFloat)
	kindDuration = orderedKind("duration", "DURATION", "a duration of up to a year, as 250ms, 60s or 1m30s", parseDuration, formatDuration)
	kindSeconds  = orderedKind("seconds", "SECONDS", "a finite number", parseSeconds,
		func(d time.Duration) string { return formatFloat(d.Seconds()) })
	kindBytes = orderedKind("bytes", "BYTES", "a number of bytes, as 1048576, 64MiB or 64MB", parseBytes, formatBytes)
)

func kindOf[T any](name, metavar, expected string, parse func(string) (T, error), format func(T) string) *kind {
	return &kind{
		name: name, metavar: metavar, expected: expected,
		parse:  func(text string) (any, error) { return parse(text) },
		format: func(v any) string { return format(v.(T)) },
	}
}

func orderedKind[T cmp.Ordered](name, metavar, expected string, parse func(string) (T, error), format func(T) string) *kind {
	k := kindOf(name, metavar, expected, func(text string) (T, error) { return parse(strings.TrimSpace(text)) }, format)
	k.less = func(a, b any) bool { return a.(T) < b.(T) }
	return k
}

// fieldKind is the kind of a field: its type, and the tags unit and sep.
func fieldKind(t reflect.Type, unit, sep string) (*kind, error) {
	of := map[reflect.Kind]*kind{
		reflect.String: kindString, reflect.Int: kindInt, reflect.Int64: kindInt, reflect.Uint64: kindInt,
		reflect.Float64: kindFloat, reflect.Bool: kindBool,
	}[t.Kind()]
	switch {
	case t == reflect.TypeFor[[]string]() && sep == "space":
		of = kindWords
	case t == reflect.TypeFor[[]string]():
		of = kindList
	case t == reflect.TypeFor[time.Duration]() && unit == "s":
		return kindSeconds, nil
	case t == reflect.TypeFor[time.Duration]():
		of = kindDuration
	case of == kindInt && t.Kind() != reflect.Uint64 && unit == "bytes":
		return kindBytes, nil
	}
	switch {
	case unit != "":
		return nil, fmt.Errorf("a %s has no unit %q", t, unit)
	case of == nil:
		return nil, fmt.Errorf("a %s cannot be set", t)
	}
	return of, nil
}

// read is parse with an error for users.
func (k *kind) read(text string) (any, error) {
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("%s is not UTF-8", Quote(text))
	}
	v, err := k.parse(text)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return nil, fmt.Errorf("%s is out of range", Quote(text))
	case err != nil:
		return nil, fmt.Errorf("%s is not %s", Quote(text), k.expected)
	}
	return v, nil
}

func (k *kind) mustRead(text string) any {
	v, err := k.read(text)
	if err != nil {
		panic(err)
	}
	return v
}

// maxDuration bounds every duration: limits are added and multiplied, and one that overflows has passed already.
const maxDuration = 365 * 24 * time.Hour

func parseDuration(word string) (time.Duration, error) {
	d, err := time.ParseDuration(word)
	if err == nil && (d > maxDuration || d < -maxDuration) {
		err = strconv.ErrSyntax
	}
	return d, err
}

func parseSeconds(word string) (time.Duration, error) {
	f, err := parseFloat(word)
	if err == nil && math.Abs(f) > maxDuration.Seconds() {
		err = strconv.ErrRange
	}
	return time.Duration(f * float64(time.Second)), err
}

func parseFloat(word string) (float64, error) {
	f, err := strconv.ParseFloat(word, 64)
	if err == nil && (math.IsNaN(f) || math.IsInf(f, 0)) {
		err = strconv.ErrSyntax
	}
	return f, err
}

func parseBool(text string) (bool, error) {
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "true", "yes", "on", "1":
		return true, nil
	case "false", "no", "off", "0":
		return false, nil
	}
	return false, strconv.ErrSyntax
}

// parseBytes reads a number with a unit: kB is 1,000 bytes and KiB 1,024.
func parseBytes(word string) (int64, error) {
	n, err := humanize.ParseBytes(word)
	if n > math.MaxInt64 || err != nil && strings.Contains(err.Error(), "too large") {
		err = strconv.ErrRange
	}
	return int64(n), err
}

// formatBytes writes a whole number of the greatest binary unit.
func formatBytes(n int64) string {
	unit := ""
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if n == 0 || n%1024 != 0 {
			break
		}
		n, unit = n/1024, next
	}
	return strconv.FormatInt(n, 10) + unit
}

// formatDuration is Duration.String without the zeros that it ends round numbers with: 1m, not 1m0s.
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

// parseList splits at commas, without the blanks around items and without empty items.
func parseList(text string) ([]string, error) {
	items := []string{}
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items, nil
}

func parseWords(text string) ([]string, error) {
	return append([]string{}, strings.Fields(text)...), nil
}

func formatList(items []string) string {
	texts := make([]string, len(items))
	for i, item := range items {
		texts[i] = yamlText(item)
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// yamlText writes a string as a YAML scalar: bare where YAML reads it back as the same string, quoted otherwise.
func yamlText(s string) string {
	const bare = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./-"
	var back any
	if s != "" && strings.Trim(s, bare) == "" && yaml.Unmarshal([]byte(s), &back) == nil && back == s {
		return s
	}
	return strconv.Quote(s) // its escapes are a subset of YAML's
}
