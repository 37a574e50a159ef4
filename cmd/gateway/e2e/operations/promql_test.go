package operations

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// reference is one metric that an expression names, with the labels that it is
// selected or grouped by.
type reference struct {
	metric string
	labels []string
}

// promql finds the metrics of an expression, and the labels that its groupings
// leave, which is nil where it has none. It knows the words of PromQL that the
// dashboard and the rules need, and fails at the others, so that nothing passes
// unread. A grouping stands before what it groups.
func promql(expr string) (found []reference, left []string, err error) {
	toks, err := promTokens(expr)
	if err != nil {
		return nil, nil, err
	}
	type scope struct {
		depth  int
		labels []string
	}
	var groups []scope // groupings in force, each until its parenthesis closes
	var pending []string
	depth := 0
	list := func(i int, until string) ([]string, int) { // names from i to the token until
		var names []string
		for ; i < len(toks) && toks[i] != until; i++ {
			if isName(toks[i]) && (i == 0 || toks[i-1] == "(" || toks[i-1] == "{" || toks[i-1] == ",") {
				names = append(names, toks[i])
			}
		}
		return names, i
	}
	for i := 0; i < len(toks); i++ {
		t, next := toks[i], ""
		if i+1 < len(toks) {
			next = toks[i+1]
		}
		switch {
		case t == "(":
			depth++
			if pending != nil {
				groups = append(groups, scope{depth, pending})
				pending = nil
			}
		case t == ")":
			if n := len(groups); n > 0 && groups[n-1].depth == depth {
				groups = groups[:n-1]
			}
			depth--
		case t == "by" && next == "(":
			if i == 0 || !slices.Contains(promAggregates, toks[i-1]) {
				return nil, nil, fmt.Errorf("the grouping stands behind what it groups")
			}
			var names []string
			names, i = list(i+2, ")")
			pending = append([]string{}, names...)
			left = append(append([]string{}, left...), names...)
		case slices.Contains([]string{"and", "or", "unless"}, t), !isName(t):
		case next == "by" || next == "(" && slices.Contains(promFunctions, t):
			if !slices.Contains(promFunctions, t) {
				return nil, nil, fmt.Errorf("%q is no function that this test knows", t)
			}
			if next == "(" && slices.Contains(promAggregates, t) {
				pending, left = []string{}, append([]string{}, left...)
			}
		case next == "(":
			return nil, nil, fmt.Errorf("%q is no function that this test knows", t)
		default:
			ref := reference{metric: t}
			if next == "{" {
				ref.labels, i = list(i+2, "}")
			}
			for _, g := range groups {
				ref.labels = append(ref.labels, g.labels...)
			}
			found = append(found, ref)
		}
	}
	if depth != 0 {
		return nil, nil, fmt.Errorf("parentheses do not match")
	}
	return found, left, nil
}

var (
	promAggregates = []string{"sum", "max", "min", "avg", "count"}
	promFunctions  = append([]string{"rate", "increase", "histogram_quantile", "label_values", "clamp_min", "absent"}, promAggregates...)
)

// promTokens takes an expression apart. A range in brackets is one token, as is
// a string.
func promTokens(expr string) ([]string, error) {
	var toks []string
	rs := []rune(expr)
	upTo := func(i int, end rune) (int, error) {
		for j := i + 1; j < len(rs); j++ {
			if rs[j] == end && rs[j-1] != '\\' {
				return j, nil
			}
		}
		return 0, fmt.Errorf("%q is not closed", rs[i])
	}
	for i := 0; i < len(rs); i++ {
		switch r := rs[i]; {
		case unicode.IsSpace(r):
		case r == '"' || r == '[':
			end, err := upTo(i, map[rune]rune{'"': '"', '[': ']'}[r])
			if err != nil {
				return nil, err
			}
			toks = append(toks, string(rs[i:end+1]))
			i = end
		case nameRune(r) || unicode.IsDigit(r):
			j := i
			for j < len(rs) && (nameRune(rs[j]) || unicode.IsDigit(rs[j]) || rs[j] == '.') {
				j++
			}
			toks = append(toks, string(rs[i:j]))
			i = j - 1
		case strings.ContainsRune("(){},=!~<>+-*/", r):
			toks = append(toks, string(r))
		default:
			return nil, fmt.Errorf("%q is not expected", r)
		}
	}
	return toks, nil
}

func nameRune(r rune) bool { return r == '_' || r == ':' || r < 128 && unicode.IsLetter(r) }

func isName(tok string) bool { return nameRune([]rune(tok)[0]) }
