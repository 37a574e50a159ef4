package engine

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of a sampled value, each of a few KiB at most.
const (
	deepest    = 8    // levels
	mostValues = 1024 // values and schemas in all
	mostBytes  = 4096 // before what is optional is left out
	mostText   = 2048 // characters of a text
)

// prose is the simulated model's text where a schema wants any.
const prose = "This text is from the simulated model, which has read the request but cannot think about it. " +
	"It is long enough to be streamed in many pieces, and the same for all."

// formats of strings, by JSON Schema's names, with a value of each.
var formatted = map[string]string{
	"date": "2026-01-31", "time": "09:30:00Z", "date-time": "2026-01-31T09:30:00Z", "duration": "PT1H", "email": "ada@example.com",
	"idn-email": "ada@example.com", "hostname": "example.com", "idn-hostname": "example.com", "ipv4": "192.0.2.1",
	"ipv6": "2001:db8::1", "uri": "https://example.com/a", "uri-reference": "https://example.com/a", "iri": "https://example.com/a",
	"iri-reference": "https://example.com/a", "uuid": "123e4567-e89b-42d3-a456-426614174000", "json-pointer": "/a", "regex": "a+",
}

// sampler makes a JSON value for a JSON Schema: the same one each time.
type sampler struct {
	root   any
	said   string   // the user's text: values of an enum that are in it are preferred
	quoted []string // quoted parts of it, which strings get in order
	call   bool     // arguments of a call: what is optional is only there if the user's words choose it
	lean   bool     // without what is optional
	nth    int      // which item of an array it is in
	left   int      // values
}

// sample returns a value that is valid under the schema, in which texts are taken from what the user said in quotes. The
// arguments of a call leave out most of what is optional, as models do.
// What it does not implement (not, if, contains, dependencies) may remain unmet.
func sample(schema json.RawMessage, said string, call bool) string {
	s := sampler{said: strings.ToLower(said), call: call}
	if json.Unmarshal(schema, &s.root) != nil {
		s.root = true
	}
	for {
		s.left, s.quoted = mostValues, nil
		for _, found := range quotation.FindAllStringSubmatch(said, 16) {
			s.quoted = append(s.quoted, found[1])
		}
		out, err := json.Marshal(s.value(s.root, "", 0))
		if err == nil && len(out) <= mostBytes || s.lean {
			return string(out)
		}
		s.lean = true
	}
}

var quotation = regexp.MustCompile(`["“]([^"“”\n]{1,200})["”]`)

// value is one for a schema, at a depth, of the member of that name.
func (s *sampler) value(schema any, name string, depth int) any {
	if s.left--; s.left < 0 || depth > deepest {
		return nil
	}
	m := map[string]any{}
	s.merge(m, schema, depth, deepest)
	if v, ok := m["const"]; ok {
		return v
	}
	if all, _ := m["enum"].([]any); len(all) > 0 {
		return all[(max(s.chosen(all), 0)+s.nth)%len(all)]
	}
	switch kindOf(m, depth) {
	case "object":
		return s.object(m, depth)
	case "array":
		return s.array(m, name, depth)
	case "integer":
		return s.number(m, true)
	case "number":
		return s.number(m, false)
	case "boolean":
		return s.nth%2 == 0
	case "null":
		return nil
	}
	return s.text(m, name)
}

// chosen is the first of the values that is in the user's text, -1 for none.
func (s *sampler) chosen(all []any) int {
	return slices.IndexFunc(all, func(v any) bool {
		t, ok := v.(string)
		return ok && t != "" && strings.Contains(s.said, strings.ToLower(t))
	})
}

// wanted reports whether a value has an optional member, where so many others are required.
func (s *sampler) wanted(schema any, required int) bool {
	one, _ := schema.(map[string]any)
	values, _ := one["enum"].([]any)
	return schema != false && (!s.call || required == 0 || s.chosen(values) >= 0)
}

// merge adds to m what a schema demands, with its references and its parts; of alternatives the first that is not null,
// deep down the one that is.
func (s *sampler) merge(m map[string]any, schema any, depth, left int) {
	one, _ := schema.(map[string]any)
	if s.left--; left == 0 || s.left < 0 {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(one)) {
		v := one[key]
		list, _ := v.([]any)
		switch key {
		case "$ref":
			s.merge(m, s.find(v), depth, left-1)
		case "allOf":
			for _, part := range list {
				s.merge(m, part, depth, left-1)
			}
		case "anyOf", "oneOf":
			i := slices.IndexFunc(list, func(v any) bool { o, _ := v.(map[string]any); return (o["type"] == "null") == (depth > deepest/2) })
			if len(list) > 0 {
				s.merge(m, list[max(i, 0)], depth, left-1)
			}
		case "properties":
			props, _ := v.(map[string]any)
			had, _ := m[key].(map[string]any)
			all := map[string]any{}
			maps.Copy(all, had)
			maps.Copy(all, props)
			m[key] = all
		case "required":
			had, _ := m[key].([]any)
			m[key] = append(slices.Clip(had), list...)
		default:
			m[key] = v
		}
	}
}

// find follows a reference within the schema.
func (s *sampler) find(ref any) any {
	path, _ := ref.(string)
	at := s.root
	for part := range strings.SplitSeq(strings.Trim(path, "#/"), "/") {
		if part != "" {
			m, _ := at.(map[string]any)
			at = m[strings.NewReplacer("~1", "/", "~0", "~").Replace(part)]
		}
	}
	return at
}

// kindOf is the type of a schema's values: the first that it allows, or the one that its members are about.
func kindOf(m map[string]any, depth int) string {
	switch kind := m["type"].(type) {
	case string:
		return kind
	case []any:
		for _, one := range kind {
			if name, _ := one.(string); name != "null" {
				return name
			}
		}
	}
	for _, one := range [][2]string{{"properties", "object"}, {"required", "object"}, {"items", "array"}, {"prefixItems", "array"},
		{"minimum", "number"}, {"maximum", "number"}, {"pattern", "string"}, {"format", "string"}, {"minLength", "string"}} {
		if m[one[0]] != nil {
			return one[1]
		}
	}
	if depth == 0 {
		return "object"
	}
	return "string"
}

// object has all properties near the top, and further down only those that are required. One of any properties at the
// top has a text.
func (s *sampler) object(m map[string]any, depth int) any {
	out := map[string]any{}
	props, described := m["properties"].(map[string]any)
	required, _ := m["required"].([]any)
	more := m["additionalProperties"]
	for _, name := range slices.Sorted(maps.Keys(props)) {
		if slices.Contains(required, any(name)) || !s.lean && depth < deepest/2 && m["maxProperties"] == nil && s.wanted(props[name], len(required)) {
			out[name] = s.value(props[name], name, depth+1)
		}
	}
	least := number(m, "minProperties", 0)
	for _, name := range required {
		if name, _ := name.(string); props[name] == nil {
			out[name] = s.value(more, name, depth+1)
		}
	}
	if len(out) == 0 && depth == 0 && !described && more != false {
		if out["text"] = prose; more != nil && more != true {
			out["text"] = s.value(more, "text", depth+1)
		}
	}
	for i := 1; float64(len(out)) < min(least, mostValues); i++ {
		out[fmt.Sprint("key", i)] = s.value(more, "value", depth+1)
	}
	return out
}

// array has the items that it must have, near the top one at least.
func (s *sampler) array(m map[string]any, name string, depth int) any {
	first, _ := m["prefixItems"].([]any)
	least := number(m, "minItems", 0)
	if !s.lean && depth < deepest/2 && m["items"] != nil && m["items"] != false {
		least = max(least, min(1, number(m, "maxItems", 1)))
	}
	out, before := []any{}, s.nth
	for i := 0; float64(i) < max(least, float64(len(first))) && s.left > 0; i++ {
		item := m["items"]
		if i < len(first) {
			item = first[i]
		}
		s.nth = i
		out = append(out, s.value(item, name, depth+1))
	}
	s.nth = before
	return out
}

// number reads a number of a schema.
func number(m map[string]any, name string, def float64) float64 {
	if x, ok := m[name].(float64); ok {
		return x
	}
	return def
}

// number is 1, or what is nearest to it within the bounds.
func (s *sampler) number(m map[string]any, whole bool) float64 {
	low, high := number(m, "minimum", math.Inf(-1)), number(m, "maximum", math.Inf(1))
	above, below := number(m, "exclusiveMinimum", math.Inf(-1)), number(m, "exclusiveMaximum", math.Inf(1))
	step := number(m, "multipleOf", 0)
	if whole && (step <= 0 || step != math.Trunc(step)) {
		step = 1
	}
	x := max(1+float64(s.nth)*max(step, 1), low, above)
	if x = min(x, high, below); step > 0 {
		if x = math.Ceil(x/step) * step; x <= above {
			x += step
		}
		if to := min(high, below); x > high || x >= below {
			if x = math.Floor(to/step) * step; x >= below {
				x -= step
			}
		}
		return x
	}
	switch from, to := max(low, above), min(high, below); {
	case x > above && x < below:
	case math.IsInf(to, 0):
		x++
	case math.IsInf(from, 0):
		x--
	default:
		x = (from + to) / 2
	}
	return x
}

// text is a string: of its format or pattern, in quotes in the user's text, or an example by its name.
func (s *sampler) text(m map[string]any, name string) string {
	least := int(min(number(m, "minLength", 0), mostText))
	most := int(min(number(m, "maxLength", mostText), mostText))
	format, _ := m["format"].(string)
	if pattern, ok := m["pattern"].(string); ok {
		if re, err := syntax.Parse(pattern, syntax.Perl); err == nil {
			return matching(re, least)
		}
	} else if text := formatted[format]; text != "" {
		return text
	}
	text := strings.TrimSpace("example " + name)
	if len(s.quoted) > 0 {
		if n := utf8.RuneCountInString(s.quoted[0]); n >= least && n <= most {
			text, s.quoted = s.quoted[0], s.quoted[1:]
			return text
		}
	}
	if s.nth > 0 {
		text = fmt.Sprint(s.nth+1, " ", text)
	}
	for len(text) < least {
		text += " and so on"
	}
	s.left -= len(text) / 64
	return text[:min(len(text), max(least, min(most, len(text))))]
}

// matching is a text that an expression matches, of least characters where it can be longer.
func matching(re *syntax.Regexp, least int) string {
	switch re.Op {
	case syntax.OpLiteral:
		return string(re.Rune)
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return "a"
	case syntax.OpCharClass:
		for _, r := range "a0A_ " {
			for i := 0; i+1 < len(re.Rune); i += 2 {
				if re.Rune[i] <= r && r <= re.Rune[i+1] {
					return string(r)
				}
			}
		}
		return string(re.Rune[:min(1, len(re.Rune))])
	case syntax.OpCapture, syntax.OpAlternate:
		return matching(re.Sub[0], least)
	case syntax.OpStar, syntax.OpPlus, syntax.OpRepeat:
		n, most := map[syntax.Op]int{syntax.OpPlus: 1, syntax.OpRepeat: re.Min}[re.Op], least
		if re.Op == syntax.OpRepeat && re.Max >= 0 {
			most = re.Max
		}
		one := matching(re.Sub[0], 0)
		return strings.Repeat(one, max(n, min(most, least/max(1, len(one)))))
	case syntax.OpConcat:
		all := ""
		for i := range re.Sub {
			all += matching(re.Sub[i], max(0, least-len(all)))
		}
		return all
	}
	return ""
}
