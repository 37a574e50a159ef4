package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// method is a method of a value, or a filter of it.
type method func(s *state, v Value, a *args) Value

// methodOf is the method that v.name() calls, nil for none.
func methodOf(v Value, name string) method {
	switch v.kind {
	case text:
		return textMethods[name]
	case mapping:
		return dictMethods[name]
	case sequence:
		return listMethods[name]
	}
	return nil
}

// text is the i-th argument, which must be a text; otherwise where it is absent or None.
func (s *state) textArg(a *args, i int, name, otherwise string) string {
	v, ok := a.get(i, name)
	if !ok || v.kind == none {
		return otherwise
	}
	if v.kind != text {
		s.fail("%s must be a str", name)
	}
	return v.str
}

// intArg is the i-th argument, which must be a whole number; otherwise where it is absent or None.
func (s *state) intArg(a *args, i int, name string, otherwise int) int {
	v, ok := a.get(i, name)
	if !ok || v.kind == none {
		return otherwise
	}
	if v.kind != whole && v.kind != boolean || v.isBig() {
		s.fail("%s must be a whole number", name)
	}
	return int(v.int())
}

// boolArg is the i-th argument as a condition.
func boolArg(a *args, i int, name string, otherwise bool) bool {
	if v, ok := a.get(i, name); ok {
		return v.truth()
	}
	return otherwise
}

// onText makes a method of a function of the text alone, whose result is no longer by much.
func onText(f func(string) string) method {
	return func(s *state, v Value, _ *args) Value {
		t := s.str(v)
		s.pay(len(t))
		return String(f(t))
	}
}

// isText makes a method of a test of each character; an empty text fails it.
func isText(f func(rune) bool) method {
	return func(s *state, v Value, _ *args) Value {
		s.pay(len(v.str) / 4)
		return Bool(v.str != "" && strings.IndexFunc(v.str, func(r rune) bool { return !f(r) }) < 0)
	}
}

// stripped makes strip, lstrip or rstrip.
func stripped(left, right bool) method {
	return func(s *state, v Value, a *args) Value {
		t := s.str(v)
		s.pay(len(t) / 16)
		cut := isSpace
		if chars := s.textArg(a, 0, "chars", "\x00none"); chars != "\x00none" {
			cut = func(r rune) bool { return strings.ContainsRune(chars, r) }
		}
		if left {
			t = strings.TrimLeftFunc(t, cut)
		}
		if right {
			t = strings.TrimRightFunc(t, cut)
		}
		return String(t)
	}
}

// isSpace is Python's str.isspace of a character.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

// fix makes startswith or endswith.
func fix(f func(t, part string) bool) method {
	return func(s *state, v Value, a *args) Value {
		part, _ := a.get(0, "prefix")
		if part.kind == text {
			return Bool(f(v.str, part.str))
		}
		if part.kind != sequence {
			s.fail("a str is wanted, not %s", part.kindName())
		}
		return Bool(slices.ContainsFunc(part.items(), func(p Value) bool { return p.kind == text && f(v.str, p.str) }))
	}
}

// found makes find, rfind, index or rindex.
func found(f func(t, part string) int, must bool) method {
	return func(s *state, v Value, a *args) Value {
		if len(a.pos) != 1 || a.pos[0].kind != text {
			s.fail("find with bounds is not known here")
		}
		s.pay(len(v.str) / 16)
		at := f(v.str, a.pos[0].str)
		if at < 0 {
			if must {
				s.fail("the text is not in it")
			}
			return Int(-1)
		}
		return Int(int64(utf8.RuneCountInString(v.str[:at])))
	}
}

var textMethods map[string]method

func init() {
	textMethods = map[string]method{
		"strip":      stripped(true, true),
		"lstrip":     stripped(true, false),
		"rstrip":     stripped(false, true),
		"upper":      onText(strings.ToUpper),
		"lower":      onText(strings.ToLower),
		"capitalize": onText(capitalized),
		"title":      onText(titled),
		"startswith": fix(strings.HasPrefix),
		"endswith":   fix(strings.HasSuffix),
		"find":       found(strings.Index, false),
		"rfind":      found(strings.LastIndex, false),
		"index":      found(strings.Index, true),
		"isdigit":    isText(unicode.IsDigit),
		"isnumeric":  isText(unicode.IsNumber),
		"isalpha":    isText(unicode.IsLetter),
		"isalnum":    isText(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }),
		"isspace":    isText(isSpace),
		"islower": func(_ *state, v Value, _ *args) Value {
			return Bool(v.str != strings.ToUpper(v.str) && v.str == strings.ToLower(v.str))
		},
		"isupper": func(_ *state, v Value, _ *args) Value {
			return Bool(v.str != strings.ToLower(v.str) && v.str == strings.ToUpper(v.str))
		},
		"replace":    replaced,
		"split":      split,
		"rsplit":     rsplit,
		"splitlines": splitLines,
		"partition":  partition,
		"count": func(s *state, v Value, a *args) Value {
			s.pay(len(v.str))
			return Int(int64(strings.Count(v.str, s.textArg(a, 0, "sub", ""))))
		},
		"join": func(s *state, v Value, a *args) Value {
			list, _ := a.get(0, "iterable")
			return s.join(list, v.str, true)
		},
		"removeprefix": func(s *state, v Value, a *args) Value {
			return String(strings.TrimPrefix(v.str, s.textArg(a, 0, "prefix", "")))
		},
		"removesuffix": func(s *state, v Value, a *args) Value {
			return String(strings.TrimSuffix(v.str, s.textArg(a, 0, "suffix", "")))
		},
	}
}

func capitalized(t string) string {
	r, n := utf8.DecodeRuneInString(t)
	if n == 0 {
		return t
	}
	return string(unicode.ToTitle(r)) + strings.ToLower(t[n:])
}

// titled is str.title: a letter after none is a title's, the others are small.
func titled(t string) string {
	inside := false
	return strings.Map(func(r rune) rune {
		letter := unicode.IsLetter(r)
		defer func() { inside = letter }()
		if inside {
			return unicode.ToLower(r)
		}
		return unicode.ToTitle(r)
	}, t)
}

func replaced(s *state, v Value, a *args) Value {
	t := s.str(v)
	old, with, n := s.textArg(a, 0, "old", ""), s.textArg(a, 1, "new", ""), s.intArg(a, 2, "count", -1)
	s.pay(len(t))
	if len(with) > len(old) {
		s.pay((strings.Count(t, old)) * (len(with) - len(old)))
	}
	return String(strings.Replace(t, old, with, n))
}

// texts is a list of texts, which are paid for.
func (s *state) texts(parts []string) Value {
	s.pay(48 * len(parts))
	list := make([]Value, len(parts))
	for i, p := range parts {
		list[i] = String(p)
	}
	return List(list)
}

func split(s *state, v Value, a *args) Value {
	most := s.intArg(a, 1, "maxsplit", -1)
	s.pay(len(v.str))
	if sep, ok := a.get(0, "sep"); ok && sep.kind != none {
		if sep.kind != text || sep.str == "" {
			s.fail("a separator must be a str that is not empty")
		}
		if most >= 0 {
			most++
		}
		return s.texts(strings.SplitN(v.str, sep.str, most))
	}
	if most < 0 {
		return s.texts(strings.FieldsFunc(v.str, isSpace))
	}
	var parts []string
	rest := strings.TrimLeftFunc(v.str, isSpace)
	for ; most > 0 && rest != ""; most-- {
		end := strings.IndexFunc(rest, isSpace)
		if end < 0 {
			break
		}
		parts = append(parts, rest[:end])
		rest = strings.TrimLeftFunc(rest[end:], isSpace)
	}
	if rest != "" {
		parts = append(parts, rest)
	}
	return s.texts(parts)
}

func rsplit(s *state, v Value, a *args) Value {
	most := s.intArg(a, 1, "maxsplit", -1)
	sep := s.textArg(a, 0, "sep", "")
	if sep == "" {
		s.fail("rsplit without a separator is not known here")
	}
	s.pay(len(v.str))
	parts := strings.Split(v.str, sep)
	if most >= 0 && len(parts) > most+1 {
		head := len(parts) - most
		parts = append([]string{strings.Join(parts[:head], sep)}, parts[head:]...)
	}
	return s.texts(parts)
}

func splitLines(s *state, v Value, a *args) Value {
	keep := boolArg(a, 0, "keepends", false)
	s.pay(len(v.str))
	var parts []string
	for rest := v.str; rest != ""; {
		end := strings.IndexFunc(rest, func(r rune) bool {
			return r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029
		})
		if end < 0 {
			parts = append(parts, rest)
			break
		}
		_, n := utf8.DecodeRuneInString(rest[end:])
		if strings.HasPrefix(rest[end:], "\r\n") {
			n = 2
		}
		if keep {
			parts = append(parts, rest[:end+n])
		} else {
			parts = append(parts, rest[:end])
		}
		rest = rest[end+n:]
	}
	return s.texts(parts)
}

func partition(s *state, v Value, a *args) Value {
	sep := s.textArg(a, 0, "sep", "")
	s.pay(len(v.str) / 16)
	if sep == "" {
		s.fail("a separator must not be empty")
	}
	before, after, ok := strings.Cut(v.str, sep)
	if !ok {
		sep = ""
	}
	return tuple(String(before), String(sep), String(after))
}

// join joins the texts of what a list holds; strict takes texts only, as Python does.
func (s *state) join(list Value, sep string, strict bool) Value {
	var b []byte
	for i, item := range s.iterate(list) {
		if strict && item.kind != text {
			s.fail("%s cannot be joined", item.kindName())
		}
		part := s.str(item)
		s.pay(len(part) + len(sep))
		if i > 0 {
			b = append(b, sep...)
		}
		b = append(b, part...)
	}
	return String(own(b))
}

var dictMethods = map[string]method{
	"get": func(s *state, v Value, a *args) Value {
		key, _ := a.get(0, "key")
		if item, ok := v.dict().lookup(key); ok {
			return item
		}
		if otherwise, ok := a.get(1, "default"); ok {
			return otherwise
		}
		return None
	},
	"keys": func(s *state, v Value, _ *args) Value { return List(s.iterate(v)) },
	"values": func(s *state, v Value, _ *args) Value {
		list := make([]Value, v.dict().Len())
		s.pay(48 * len(list))
		for i, e := range v.dict().entries {
			list[i] = e.value
		}
		return List(list)
	},
	"items": func(s *state, v Value, _ *args) Value { return s.pairs(v.dict()) },
	"copy":  func(_ *state, v Value, _ *args) Value { return Map(v.dict().Clone()) },
	// These change the dict, which the sandbox of transformers refuses too.
	"pop": unsafeMethod, "update": unsafeMethod, "clear": unsafeMethod, "popitem": unsafeMethod, "setdefault": unsafeMethod,
}

func unsafeMethod(s *state, _ Value, _ *args) Value {
	s.fail("a template may not change a dict or a list")
	return None
}

// pairs lists a dict's keys and values.
func (s *state) pairs(d *Dict) Value {
	list := make([]Value, d.Len())
	s.pay(160 * len(list))
	for i, e := range d.entries {
		list[i] = tuple(e.key, e.value)
	}
	return List(list)
}

var listMethods = map[string]method{
	"index": func(s *state, v Value, a *args) Value {
		for i, item := range v.items() {
			s.step()
			if len(a.pos) == 1 && equal(item, a.pos[0]) {
				return Int(int64(i))
			}
		}
		s.fail("the value is not in the list")
		return None
	},
	"count": func(s *state, v Value, a *args) Value {
		n := 0
		for _, item := range v.items() {
			s.step()
			if len(a.pos) == 1 && equal(item, a.pos[0]) {
				n++
			}
		}
		return Int(int64(n))
	},
	"append": unsafeMethod, "extend": unsafeMethod, "insert": unsafeMethod, "remove": unsafeMethod, "reverse": unsafeMethod,
	"sort": unsafeMethod, "clear": unsafeMethod,
	"pop": unsafeMethod,
}
