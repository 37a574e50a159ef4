package openai

import (
	"regexp/syntax"
	"strings"
)

// maxBacktracks is how many choices and repetitions a pattern of stop_regex may have.
const maxBacktracks = 4

// stopRegex reads a pattern or several of SGLang's stop_regex.
func (s *scan) stopRegex() bool {
	const want = "a pattern or an array of patterns, each of at most 4 of | ? * + {}, of which one of the last three, not behind a group"
	var patterns []string
	switch s.peek() {
	case '"':
		patterns = make([]string, 1)
		if !s.string(&patterns[0]) {
			return false
		}
	default:
		if !s.strings(&patterns) {
			return false
		}
	}
	for _, p := range patterns {
		if !boundedPattern(p) {
			return s.wrong(want)
		}
	}
	return true
}

// boundedPattern reports whether a pattern is valid in Python's re, and matches in bounded time. SGLang matches it in
// its scheduler, with backtracking, against one answer's text at each token, and blocks all others: 0.5.23 hung on
// (a|a|aa)*b, and answers 500 for an invalid pattern (srt/managers/schedule_batch.py, _check_str_based_finish;
// srt/sampling/sampling_params.py, normalize).
func boundedPattern(p string) bool {
	if _, err := syntax.Parse(p, syntax.Perl); err != nil {
		return false
	}
	choices, repeats := 0, 0
	class := -1 // where the class begins that i is in
	for i := 0; i < len(p); i++ {
		switch b := p[i]; {
		case b == '\\':
			if i++; i == len(p) || isLetterOrDigit(p[i]) && strings.IndexByte("dDwWsSbBnrtfv", p[i]) < 0 {
				return false // not the same in Go and in Python
			}
		case class >= 0:
			if b == ']' && i > class+1 {
				class = -1
			}
		case b == '[':
			if class = i; strings.HasPrefix(p[i+1:], "^") {
				i++
				class = i
			}
		case b == '(' && strings.HasPrefix(p[i+1:], "?"):
			if !strings.HasPrefix(p[i+1:], "?:") {
				return false
			}
			i++
		case b == '|', b == '?':
			choices++
		case b == '*', b == '+', b == '{':
			if repeats++; i > 0 && p[i-1] == ')' {
				return false
			}
		}
	}
	return repeats <= 1 && choices+repeats <= maxBacktracks
}

func isLetterOrDigit(b byte) bool { return b|0x20 >= 'a' && b|0x20 <= 'z' || b >= '0' && b <= '9' }
