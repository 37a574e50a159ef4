package jinja

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

var filters map[string]method

func init() {
	length := func(s *state, v Value, _ *args) Value { return Int(int64(s.size(v))) }
	otherwise := func(s *state, v Value, a *args) Value {
		if v.isUndefined() || boolArg(a, 1, "boolean", false) && !v.truth() {
			if d, ok := a.get(0, "default_value"); ok {
				return d
			}
			return String("")
		}
		return v
	}
	filters = map[string]method{
		"tojson": toJSON,
		"trim":   stripped(true, true),
		"length": length, "count": length,
		"default": otherwise, "d": otherwise,
		"upper":      onText(strings.ToUpper),
		"lower":      onText(strings.ToLower),
		"capitalize": onText(capitalized),
		"title":      onText(titledWords),
		"replace":    replaced,
		"string":     func(s *state, v Value, _ *args) Value { return String(s.str(v)) },
		"safe":       func(_ *state, v Value, _ *args) Value { return v },
		"list":       func(s *state, v Value, _ *args) Value { return List(s.cloned(v)) },
		"first":      func(s *state, v Value, _ *args) Value { return pick(s.iterate(v), false) },
		"last":       func(s *state, v Value, _ *args) Value { return pick(s.iterate(v), true) },
		"items": func(s *state, v Value, _ *args) Value {
			if v.isUndefined() {
				return List(nil)
			}
			if v.kind != mapping {
				s.fail("items of %s", v.kindName())
			}
			return s.pairs(v.dict())
		},
		"join":       joined,
		"map":        mapped,
		"select":     selected(true, false),
		"reject":     selected(false, false),
		"selectattr": selected(true, true),
		"rejectattr": selected(false, true),
		"reverse":    reversed,
		"sort":       sorted,
		"dictsort":   dictSorted,
		"unique":     unique,
		"indent":     indented,
		"int":        toInt,
		"float":      toFloat,
		"abs":        absolute,
		"sum":        summed,
		"min":        extreme(-1),
		"max":        extreme(1),
		"format":     func(s *state, v Value, a *args) Value { return s.format(s.str(v), tuple(a.pos...)) },
		"escape":     onText(escaped), "e": onText(escaped),
	}
}

func (s *state) size(v Value) int {
	switch v.kind {
	case text:
		return s.length(v.str)
	case sequence:
		return len(v.items())
	case mapping:
		return v.dict().Len()
	case missing, undefined:
		return 0
	}
	s.fail("%s has no length", v.kindName())
	return 0
}

var escaped = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;").Replace

// cloned returns a new list of the items of a value.
func (s *state) cloned(v Value) []Value {
	items := s.iterate(v)
	s.pay(48 * len(items))
	return slices.Clone(items)
}

// titledWords is the filter title: words begin after white space, hyphens and opening brackets.
func titledWords(t string) string {
	inside := false
	return strings.Map(func(r rune) rune {
		between := isSpace(r) || strings.ContainsRune("-({[<", r)
		defer func() { inside = !between }()
		if inside {
			return unicode.ToLower(r)
		}
		return unicode.ToTitle(r)
	}, t)
}

func pick(items []Value, last bool) Value {
	switch {
	case len(items) == 0:
		return Value{kind: undefined}
	case last:
		return items[len(items)-1]
	}
	return items[0]
}

// attribute reads a dotted path.
func (s *state) attribute(v Value, path Value) Value {
	if path.kind != text {
		return s.item(v, path)
	}
	s.pay(len(path.str))
	for part := range strings.SplitSeq(path.str, ".") {
		s.step()
		if i, err := strconv.Atoi(part); err == nil {
			v = s.item(v, Int(int64(i)))
		} else {
			v = s.item(v, String(part))
		}
	}
	return v
}

func joined(s *state, v Value, a *args) Value {
	if path, ok := a.get(1, "attribute"); ok && path.kind != none {
		items := s.cloned(v)
		for i := range items {
			s.step()
			items[i] = s.attribute(items[i], path)
		}
		v = List(items)
	}
	return s.join(v, s.textArg(a, 0, "d", ""), false)
}

func mapped(s *state, v Value, a *args) Value {
	if !v.truth() {
		return List(nil)
	}
	items := s.cloned(v)
	if path, ok := (&args{names: a.names, named: a.named}).get(0, "attribute"); ok {
		for i := range items {
			s.step()
			items[i] = s.attribute(items[i], path)
			if d, ok := a.get(len(a.pos), "default"); ok && items[i].isUndefined() {
				items[i] = d
			}
		}
		return List(items)
	}
	if len(a.pos) == 0 || a.pos[0].kind != text {
		s.fail("map needs an attribute or a filter's name")
	}
	f, ok := filters[a.pos[0].str]
	if !ok {
		s.fail("the filter %q is not supported", a.pos[0].str)
	}
	for i := range items {
		s.step()
		known(items[i])
		items[i] = f(s, items[i], &args{pos: a.pos[1:], names: a.names, named: a.named})
	}
	return List(items)
}

// selected makes select, reject, selectattr or rejectattr.
func selected(keep, byAttr bool) method {
	return func(s *state, v Value, a *args) Value {
		if !v.truth() {
			return List(nil)
		}
		rest := a.pos
		var path Value
		if byAttr {
			if len(rest) == 0 {
				s.fail("an attribute's name is wanted")
			}
			path, rest = rest[0], rest[1:]
		}
		test := func(v Value) bool { return v.truth() }
		if len(rest) > 0 {
			f, ok := tests[rest[0].str]
			if !ok || rest[0].kind != text {
				s.fail("the test %q is not supported", s.str(rest[0]))
			}
			test = func(v Value) bool { return f(s, v, rest[1:]) }
		}
		kept := []Value{}
		for _, item := range s.iterate(v) {
			s.step()
			of := item
			if byAttr {
				of = s.attribute(item, path)
			}
			if test(of) == keep {
				kept = append(kept, item)
			}
		}
		s.pay(48 * len(kept))
		return List(kept)
	}
}

func reversed(s *state, v Value, _ *args) Value {
	if v.kind == text {
		s.pay(8 * len(v.str))
		runes := []rune(v.str)
		slices.Reverse(runes)
		return String(string(runes))
	}
	items := s.cloned(v)
	slices.Reverse(items)
	return List(items)
}

// sortKey returns the key by which an element is compared: lower-case, unless case counts.
func (s *state) sortKey(v Value, exact bool) Value {
	if v.kind == text && !exact {
		s.pay(8 * len(v.str))
		return String(strings.ToLower(v.str))
	}
	return v
}

func (s *state) sortBy(items []Value, reverse, exact bool, key func(Value) Value) {
	s.pay(64 * len(items))
	for range items {
		s.step()
	}
	slices.SortStableFunc(items, func(a, b Value) int {
		s.step()
		c := s.order(s.sortKey(key(a), exact), s.sortKey(key(b), exact))
		if reverse {
			return -c
		}
		return c
	})
}

func sorted(s *state, v Value, a *args) Value {
	items := s.cloned(v)
	path, by := a.get(2, "attribute")
	s.sortBy(items, boolArg(a, 0, "reverse", false), boolArg(a, 1, "case_sensitive", false), func(v Value) Value {
		if by && path.kind != none {
			return s.attribute(v, path)
		}
		return v
	})
	return List(items)
}

func dictSorted(s *state, v Value, a *args) Value {
	if v.kind != mapping {
		s.fail("dictsort of %s", v.kindName())
	}
	items := s.pairs(v.dict()).items()
	at := 0
	if s.textArg(a, 1, "by", "key") == "value" {
		at = 1
	}
	s.sortBy(items, boolArg(a, 2, "reverse", false), boolArg(a, 0, "case_sensitive", false), func(v Value) Value { return v.items()[at] })
	return List(items)
}

func unique(s *state, v Value, a *args) Value {
	exact := boolArg(a, 0, "case_sensitive", false)
	kept := []Value{}
	for _, item := range s.iterate(v) {
		if !slices.ContainsFunc(kept, func(k Value) bool {
			return s.equal(s.sortKey(k, exact), s.sortKey(item, exact))
		}) {
			s.pay(48)
			kept = append(kept, item)
		}
	}
	return List(kept)
}

func indented(s *state, v Value, a *args) Value {
	if v.kind != text {
		s.fail("indent of %s", v.kindName())
	}
	width, _ := a.get(0, "width")
	pad := strings.Repeat(" ", 4)
	switch {
	case width.kind == text:
		pad = width.str
	case width.kind == whole:
		pad = strings.Repeat(" ", int(max(0, min(width.int(), 1024))))
	}
	first, blank := boolArg(a, 1, "first", false), boolArg(a, 2, "blank", false)
	s.pay(len(v.str))
	t := v.str + "\n"
	lines := splitLines(s, String(t), &args{}).items()
	var b []byte
	for i, line := range lines {
		if i > 0 {
			b = append(b, '\n')
		}
		if i == 0 && first || i > 0 && (line.str != "" || blank) {
			b = append(b, pad...)
		}
		b = append(b, line.str...)
		s.pay(len(pad) + len(line.str) + 1)
	}
	return String(own(b))
}

func summed(s *state, v Value, a *args) Value {
	path, by := a.get(0, "attribute")
	total := Int(0)
	if start, ok := a.get(1, "start"); ok {
		total = start
	}
	for _, item := range s.iterate(v) {
		s.step()
		if by && path.kind != none {
			item = s.attribute(item, path)
		}
		total = s.plus(total, item)
	}
	return total
}

// extreme makes min (sign −1) or max (1).
func extreme(sign int) method {
	return func(s *state, v Value, _ *args) Value {
		items := s.iterate(v)
		if len(items) == 0 {
			return Value{kind: undefined}
		}
		best := items[0]
		for _, item := range items[1:] {
			s.step()
			if cmp.Compare(s.order(s.sortKey(item, false), s.sortKey(best, false)), 0) == sign {
				best = item
			}
		}
		return best
	}
}
