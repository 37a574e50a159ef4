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

// intArg returns the i-th argument, which must be an integer, or otherwise if it is absent or None.
func (s *state) intArg(a *args, i int, name string, otherwise int) int {
	v, ok := a.get(i, name)
	if !ok || v.kind == none {
		return otherwise
	}
	if v.kind != whole && v.kind != boolean || v.isBig() {
		s.fail("%s must be an integer", name)
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
		s.pay(8 * len(t))
		t = f(t)
		s.pay(len(t))
		return String(t)
	}
}

// isText makes a method that tests each character: some must be wanted and all allowed.
func isText(wanted, allowed func(rune) bool) method {
	return func(s *state, v Value, _ *args) Value {
		some := false
		for i, r := range v.str {
			if !allowed(r) {
				s.pay(8 * i)
				return Bool(false)
			}
			some = some || wanted(r)
		}
		s.pay(8 * len(v.str))
		return Bool(some)
	}
}

// all makes a method of a test that each character passes; an empty text fails it.
func all(f func(rune) bool) method { return isText(f, f) }

// stripped makes strip, lstrip or rstrip.
func stripped(left, right bool) method {
	return func(s *state, v Value, a *args) Value {
		t := s.str(v)
		whole, cut, each := len(t), isSpace, 8
		if chars := s.textArg(a, 0, "chars", "\x00none"); chars != "\x00none" {
			cut, each = func(r rune) bool { return strings.ContainsRune(chars, r) }, 16+len(chars)
			s.pay(each)
		}
		if left {
			t = strings.TrimLeftFunc(t, cut)
		}
		if right {
			t = strings.TrimRightFunc(t, cut)
		}
		s.pay(min(maxBytes+1, each*(whole-len(t))))
		return String(t)
	}
}

// isSpace is Python's str.isspace of a character.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

// fix makes startswith or endswith.
func fix(f func(t, part string) bool) method {
	return func(s *state, v Value, a *args) Value {
		part, _ := a.get(0, "prefix")
		fits := func(p Value) bool {
			s.step()
			s.pay(min(len(v.str), len(p.str)) / 16)
			return p.kind == text && f(v.str, p.str)
		}
		if part.kind == text {
			return Bool(fits(part))
		}
		if part.kind != sequence {
			s.fail("a str is wanted, not %s", part.kindName())
		}
		return Bool(slices.ContainsFunc(part.items(), fits))
	}
}

// found makes find, rfind, index or rindex.
func found(f func(t, part string) int, must bool) method {
	return func(s *state, v Value, a *args) Value {
		if len(a.pos) != 1 || a.pos[0].kind != text {
			s.fail("find with bounds is not supported")
		}
		s.pay(len(v.str) + len(a.pos[0].str))
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
		"isdigit":    all(unicode.IsDigit),
		"isnumeric":  all(unicode.IsNumber),
		"isalpha":    all(unicode.IsLetter),
		"isalnum":    all(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }),
		"isspace":    all(isSpace),
		"islower":    isText(unicode.IsLower, func(r rune) bool { return !unicode.IsUpper(r) && !unicode.IsTitle(r) }),
		"isupper":    isText(unicode.IsUpper, func(r rune) bool { return !unicode.IsLower(r) && !unicode.IsTitle(r) }),
		"replace":    replaced,
		"split":      split,
		"rsplit":     rsplit,
		"splitlines": splitLines,
		"partition":  partition,
		"count": func(s *state, v Value, a *args) Value {
			sub := s.textArg(a, 0, "sub", "")
			return Int(int64(s.occurrences(v.str, sub)))
		},
		"join": func(s *state, v Value, a *args) Value {
			list, _ := a.get(0, "iterable")
			return s.join(list, v.str, true)
		},
		"removeprefix": func(s *state, v Value, a *args) Value {
			prefix := s.textArg(a, 0, "prefix", "")
			s.pay(min(len(v.str), len(prefix)) / 16)
			return String(strings.TrimPrefix(v.str, prefix))
		},
		"removesuffix": func(s *state, v Value, a *args) Value {
			suffix := s.textArg(a, 0, "suffix", "")
			s.pay(min(len(v.str), len(suffix)) / 16)
			return String(strings.TrimSuffix(v.str, suffix))
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

// occurrences counts a part in a text. It pays for both, and for each that it finds.
func (s *state) occurrences(t, part string) int {
	s.pay(len(t) + len(part))
	n := strings.Count(t, part)
	s.pay(16 * n)
	return n
}

func replaced(s *state, v Value, a *args) Value {
	t := s.str(v)
	old, with, n := s.textArg(a, 0, "old", ""), s.textArg(a, 1, "new", ""), s.intArg(a, 2, "count", -1)
	if n := s.occurrences(t, old); len(with) > len(old) {
		s.pay(n * (len(with) - len(old)))
	}
	return String(strings.Replace(t, old, with, n))
}

var dictMethods = map[string]method{
	"get": func(s *state, v Value, a *args) Value {
		key, _ := a.get(0, "key")
		if item, ok := s.lookup(v.dict(), key); ok {
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
	"copy": func(s *state, v Value, _ *args) Value {
		s.pay(96 * v.dict().Len())
		return Map(v.dict().Clone())
	},
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
			if len(a.pos) == 1 && s.equal(item, a.pos[0]) {
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
			if len(a.pos) == 1 && s.equal(item, a.pos[0]) {
				n++
			}
		}
		return Int(int64(n))
	},
	"append": unsafeMethod, "extend": unsafeMethod, "insert": unsafeMethod, "remove": unsafeMethod, "reverse": unsafeMethod,
	"sort": unsafeMethod, "clear": unsafeMethod,
	"pop": unsafeMethod,
}
