package jinja

import (
	"fmt"
	"strings"
	"unicode"
)

type tokenKind uint8

const (
	tokenEOF tokenKind = iota
	tokenData
	tokenVariable // {{
	tokenEndVariable
	tokenBlock // {%
	tokenEndBlock
	tokenName
	tokenString
	tokenInt
	tokenFloat
	tokenOperator
)

type token struct {
	kind tokenKind
	text string
	line int
}

func (t token) String() string {
	switch t.kind {
	case tokenEOF:
		return "end of the template"
	case tokenEndVariable:
		return "}}"
	case tokenEndBlock:
		return "%}"
	}
	return fmt.Sprintf("%q", t.text)
}

// lexer cuts a source into tokens, with trim_blocks and lstrip_blocks: the line feed after a block's tag goes. So
// does white space between the beginning of a line and a block's tag or a comment.
type lexer struct {
	source string
	pos    int
	line   int
	tokens []token
	// starting: pos is at the beginning of a line.
	starting bool
}

func lex(source string) []token {
	source = strings.ReplaceAll(source, "\r\n", "\n")
	source = strings.ReplaceAll(source, "\r", "\n")
	source = strings.TrimSuffix(source, "\n") // keep_trailing_newline is off
	l := &lexer{source: source, line: 1, starting: true}
	for l.pos < len(source) {
		l.data()
	}
	l.add(tokenEOF, "")
	return l.tokens
}

func (l *lexer) add(kind tokenKind, text string) {
	l.tokens = append(l.tokens, token{kind, text, l.line})
}

func (l *lexer) fail(format string, args ...any) {
	panic(&Error{Line: l.line, Problem: fmt.Sprintf(format, args...)})
}

// take moves over n bytes.
func (l *lexer) take(n int) string {
	text := l.source[l.pos : l.pos+n]
	l.line += strings.Count(text, "\n")
	l.pos += n
	l.starting = strings.HasSuffix(text, "\n")
	return text
}

// data reads text up to the next tag, and that tag.
func (l *lexer) data() {
	rest := l.source[l.pos:]
	at := 0
	for {
		i := strings.IndexByte(rest[at:], '{')
		if i < 0 {
			l.add(tokenData, l.take(len(rest)))
			return
		}
		if at += i; at+1 < len(rest) && strings.IndexByte("{%#", rest[at+1]) >= 0 {
			break
		}
		at++
	}
	kind, sign := rest[at+1], byte(0)
	if at+2 < len(rest) {
		sign = rest[at+2]
	}
	starting := l.starting
	text := rest[:at]
	l.take(at)
	switch {
	case sign == '-':
		text = strings.TrimRightFunc(text, unicode.IsSpace)
	case sign != '+' && kind != '{':
		begin := strings.LastIndexByte(text, '\n') + 1
		if (begin > 0 || starting) && strings.TrimSpace(text[begin:]) == "" {
			text = text[:begin]
		}
	}
	if text != "" {
		l.add(tokenData, text)
	}
	open := 2
	if sign == '-' || sign == '+' {
		open = 3
	}
	l.take(open)
	switch kind {
	case '#':
		l.comment()
	case '{':
		l.add(tokenVariable, "{{")
		l.code("}}", tokenEndVariable)
	case '%':
		if l.raw() {
			return
		}
		l.add(tokenBlock, "{%")
		l.code("%}", tokenEndBlock)
	}
}

// after consumes the whitespace that a tag's end trims.
func (l *lexer) after(sign byte, trims bool) {
	switch {
	case sign == '-':
		rest := l.source[l.pos:]
		if n := len(rest) - len(strings.TrimLeftFunc(rest, unicode.IsSpace)); n > 0 {
			l.take(n)
		}
	case trims && sign != '+' && strings.HasPrefix(l.source[l.pos:], "\n"):
		l.take(1)
	}
}

func (l *lexer) comment() {
	end := strings.Index(l.source[l.pos:], "#}")
	if end < 0 {
		l.fail("a comment does not end")
	}
	text := l.take(end)
	sign := byte(0)
	if text != "" {
		sign = text[len(text)-1]
	}
	l.take(2)
	l.after(sign, true)
}

// raw reads a block whose text is no template.
func (l *lexer) raw() bool {
	inner, n, sign := l.tag(l.pos)
	if inner != "raw" {
		return false
	}
	l.take(n)
	l.after(sign, false)
	for at := l.pos; ; at += 2 {
		i := strings.Index(l.source[at:], "{%")
		if i < 0 {
			l.fail("a raw block does not end")
		}
		at += i
		from := at + 2
		opening := byte(0)
		if from < len(l.source) && (l.source[from] == '-' || l.source[from] == '+') {
			opening = l.source[from]
			from++
		}
		inner, n, sign := l.tag(from)
		if inner != "endraw" {
			continue
		}
		text := l.take(at - l.pos)
		begin := strings.LastIndexByte(text, '\n') + 1
		switch {
		case opening == '-':
			text = strings.TrimRightFunc(text, unicode.IsSpace)
		case opening != '+' && begin > 0 && strings.TrimSpace(text[begin:]) == "":
			text = text[:begin]
		}
		l.add(tokenData, text)
		l.take(from - at + n)
		l.after(sign, true)
		return true
	}
}

// tag returns the words of the block tag that continues at byte at, the length to its end and the sign there.
func (l *lexer) tag(at int) (inner string, n int, sign byte) {
	n = strings.Index(l.source[at:], "%}")
	if n < 0 {
		return "", 0, 0
	}
	inner = l.source[at : at+n]
	if inner != "" && (inner[len(inner)-1] == '-' || inner[len(inner)-1] == '+') {
		sign = inner[len(inner)-1]
		inner = inner[:len(inner)-1]
	}
	return strings.TrimSpace(inner), n + 2, sign
}

// operators, the longer ones first.
var operators = []string{
	"==", "!=", "<=", ">=", "//", "**",
	"+", "-", "*", "/", "%", "~", "<", ">", "=", "(", ")", "[", "]", "{", "}", ".", ":", "|", ",", ";",
}

// code reads the tokens between a tag's begin and its end.
func (l *lexer) code(end string, kind tokenKind) {
	var open []byte // brackets
	for {
		rest := l.source[l.pos:]
		n := len(rest) - len(strings.TrimLeftFunc(rest, unicode.IsSpace))
		l.take(n)
		rest = rest[n:]
		if rest == "" {
			l.fail("a tag does not end")
		}
		if len(open) == 0 {
			sign := byte(0)
			if rest[0] == '-' || rest[0] == '+' && end == "%}" {
				sign = rest[0]
			}
			if n := min(int(sign), 1); strings.HasPrefix(rest[n:], end) {
				l.add(kind, end)
				l.take(n + 2)
				l.after(sign, end == "%}")
				return
			}
		}
		switch c := rest[0]; {
		case c == '\'' || c == '"':
			l.str(rest)
		case c >= '0' && c <= '9':
			l.number(rest)
		case c == '_' || unicode.IsLetter(rune(c)) || c >= 0x80:
			n := strings.IndexFunc(rest, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
			if n < 0 {
				n = len(rest)
			}
			if n == 0 {
				l.fail("unexpected character %q", rest[:1])
			}
			l.add(tokenName, l.take(n))
		default:
			op := operator(rest)
			switch {
			case op == "":
				l.fail("unexpected character %q", rest[:1])
			case strings.Contains("([{", op):
				open = append(open, op[0])
			case strings.Contains(")]}", op):
				if len(open) == 0 {
					l.fail("unexpected %q", op)
				}
				open = open[:len(open)-1]
			}
			l.add(tokenOperator, op)
			l.take(len(op))
		}
	}
}

func operator(s string) string {
	for _, op := range operators {
		if strings.HasPrefix(s, op) {
			return op
		}
	}
	return ""
}

// str reads a string literal with Python's escapes.
func (l *lexer) str(rest string) {
	var b strings.Builder
	for i := 1; i < len(rest); i++ {
		switch c := rest[i]; {
		case c == rest[0]:
			l.add(tokenString, b.String())
			l.take(i + 1)
			return
		case c != '\\' || i+1 == len(rest):
			b.WriteByte(c)
		default:
			i += l.escape(&b, rest[i+1:])
		}
	}
	l.fail("a string does not end")
}

// escape writes the character of the escape that continues with s, and returns how many bytes of s it has.
func (l *lexer) escape(b *strings.Builder, s string) int {
	digits := 0
	switch s[0] {
	case 'n':
		b.WriteByte('\n')
	case 't':
		b.WriteByte('\t')
	case 'r':
		b.WriteByte('\r')
	case 'b':
		b.WriteByte('\b')
	case 'f':
		b.WriteByte('\f')
	case 'v':
		b.WriteByte('\v')
	case 'a':
		b.WriteByte('\a')
	case '0', '1', '2', '3', '4', '5', '6', '7':
		n, code := 0, rune(0)
		for ; n < min(3, len(s)) && s[n] >= '0' && s[n] <= '7'; n++ {
			code = code*8 + rune(s[n]-'0')
		}
		b.WriteRune(code)
		return n
	case '\\', '\'', '"':
		b.WriteByte(s[0])
	case '\n':
	case 'x':
		digits = 2
	case 'u':
		digits = 4
	case 'U':
		digits = 8
	default: // Python keeps the backslash of an unknown escape
		b.WriteByte('\\')
		b.WriteByte(s[0])
	}
	if digits == 0 {
		return 1
	}
	var r rune
	if len(s) < 1+digits {
		l.fail("a bad escape in a string")
	}
	if _, err := fmt.Sscanf(s[1:1+digits], "%x", &r); err != nil {
		l.fail("a bad escape in a string")
	}
	b.WriteRune(r)
	return 1 + digits
}

func (l *lexer) number(rest string) {
	n, kind := 0, tokenInt
	digits := func() {
		for n < len(rest) && (rest[n] >= '0' && rest[n] <= '9' || rest[n] == '_') {
			n++
		}
	}
	digits()
	if n+1 < len(rest) && rest[n] == '.' && rest[n+1] >= '0' && rest[n+1] <= '9' {
		kind = tokenFloat
		n++
		digits()
	}
	if n+1 < len(rest) && (rest[n] == 'e' || rest[n] == 'E') && strings.IndexByte("+-0123456789", rest[n+1]) >= 0 {
		kind = tokenFloat
		n += 2
		digits()
	}
	l.add(kind, strings.ReplaceAll(rest[:n], "_", ""))
	l.take(n)
}
