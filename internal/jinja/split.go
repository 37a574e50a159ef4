package jinja

import (
	"iter"
	"slices"
	"strings"
	"unicode/utf8"
)

// texts collects texts, and pays for each before the next is looked for.
func (s *state) texts(parts iter.Seq[string]) []Value {
	var list []Value
	for p := range parts {
		s.pay(64)
		list = append(list, String(p))
	}
	return list
}

func split(s *state, v Value, a *args) Value {
	most := s.intArg(a, 1, "maxsplit", -1)
	s.pay(len(v.str))
	sep, ok := a.get(0, "sep")
	if ok && sep.kind != none {
		if sep.kind != text || sep.str == "" {
			s.fail("a separator must be a str that is not empty")
		}
		s.pay(len(sep.str))
	} else {
		s.pay(8 * len(v.str))
	}
	return List(s.texts(func(yield func(string) bool) {
		rest := v.str
		if sep.kind != text {
			rest = strings.TrimLeftFunc(rest, isSpace)
		}
		for ; most != 0; most-- {
			var part, after string
			if sep.kind == text {
				if part, after, ok = strings.Cut(rest, sep.str); !ok {
					break
				}
			} else {
				end := strings.IndexFunc(rest, isSpace)
				if end < 0 {
					break
				}
				part, after = rest[:end], strings.TrimLeftFunc(rest[end:], isSpace)
			}
			yield(part)
			rest = after
		}
		if sep.kind == text || rest != "" {
			yield(rest)
		}
	}))
}

func rsplit(s *state, v Value, a *args) Value {
	most := s.intArg(a, 1, "maxsplit", -1)
	sep := s.textArg(a, 0, "sep", "")
	if sep == "" {
		s.fail("rsplit without a separator is not supported")
	}
	s.pay(len(v.str) + len(sep))
	list := s.texts(func(yield func(string) bool) {
		rest := v.str
		for ; most != 0; most-- {
			at := strings.LastIndex(rest, sep)
			if at < 0 {
				break
			}
			yield(rest[at+len(sep):])
			rest = rest[:at]
		}
		yield(rest)
	})
	slices.Reverse(list)
	return List(list)
}

func splitLines(s *state, v Value, a *args) Value {
	keep := boolArg(a, 0, "keepends", false)
	s.pay(8 * len(v.str))
	return List(s.texts(func(yield func(string) bool) {
		for rest := v.str; rest != ""; {
			end := strings.IndexFunc(rest, func(r rune) bool {
				return r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029
			})
			if end < 0 {
				yield(rest)
				return
			}
			_, n := utf8.DecodeRuneInString(rest[end:])
			if strings.HasPrefix(rest[end:], "\r\n") {
				n = 2
			}
			if keep {
				yield(rest[:end+n])
			} else {
				yield(rest[:end])
			}
			rest = rest[end+n:]
		}
	}))
}

func partition(s *state, v Value, a *args) Value {
	sep := s.textArg(a, 0, "sep", "")
	s.pay((len(v.str) + len(sep)) / 4)
	if sep == "" {
		s.fail("a separator must not be empty")
	}
	before, after, ok := strings.Cut(v.str, sep)
	if !ok {
		sep = ""
	}
	return tuple(String(before), String(sep), String(after))
}

// join joins a list's texts; strict accepts only texts, as Python does.
func (s *state) join(list Value, sep string, strict bool) Value {
	var b []byte
	for i, item := range s.iterate(list) {
		if strict && item.kind != text {
			s.fail("%s cannot be joined", item.kindName())
		}
		s.step()
		part := s.str(item)
		s.pay(len(part) + len(sep))
		if i > 0 {
			b = append(b, sep...)
		}
		b = append(b, part...)
	}
	return String(own(b))
}
