package jinja

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// texts are what holes are filled with: what templates look for, and what they do not.
var texts = []string{
	"Hello", "a <b> & c", "</think>", "x</think>y", "<think>x", "<tool_response>a</tool_response>", " blank", "blank\n", "", "{{ x }}",
	"é", "0", "None",
	"[THINK]", "system", "user", "CONTINUE_FINAL_MESSAGE_TAG ", "\n", "it's \"so\"", "You are a helpful assistant.",
}

// outlined compares a template's outline over messages whose contents are holes with its render of each text in their
// place. It reports whether there is an outline.
func outlined(t *testing.T, source string, all map[string]Value, pick func(i int) string) bool {
	t.Helper()
	tmpl, err := Parse(source)
	if err != nil {
		return false
	}
	with := func(content func(i int) Value) (map[string]Value, int) {
		n, vars := 0, maps.Clone(all)
		items, _ := all["messages"].Items()
		out := make([]Value, len(items))
		for i, item := range items {
			out[i] = item
			if d, ok := item.Dict(); ok {
				if v, _ := d.Get("content"); v.kind == text {
					d = d.Clone()
					d.Set("content", content(n))
					n++
					out[i] = Map(d)
				}
			}
		}
		vars["messages"] = List(out)
		return vars, n
	}
	vars, holes := with(Hole)
	o, err := tmpl.Outline(vars, holes)
	if holes == 0 || err != nil {
		return false
	}
	got, ok := o.Append([]byte("before "), func(dst []byte, i int) []byte { return append(dst, pick(i)...) })
	if !ok {
		assert.Equal(t, "before ", string(got), "%s\nleaves %q", source, got)
		return true
	}
	vars, _ = with(func(i int) Value { return String(pick(i)) })
	if want, err := tmpl.Render([]byte("before "), vars, nil); err != nil || string(got) != string(want) {
		t.Errorf("%s\ngot  %q\nwant %q (%v)", source, got, want, err)
	}
	return true
}

// TestOutlinesEqualRenders fills the outlines of the golden templates with texts that templates look for and others.
func TestOutlinesEqualRenders(t *testing.T) {
	n := 0
	for _, c := range golden(t) {
		for k := range texts {
			if outlined(t, c.Template, vars(t, c.Vars), func(i int) string { return texts[(i*7+k)%len(texts)] }) {
				n++
			}
		}
	}
	assert.GreaterOrEqual(t, n, 10*len(texts), "outlines that were filled")
}

// TestOutlinesRefuse has a template look into a text in every way: it has no outline, or one that holds where it did
// not find what it looked for.
func TestOutlinesRefuse(t *testing.T) {
	const chat = `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"n":3,"t":"a"}`
	for _, of := range []string{
		"{{ c|length }}", "{{ c|upper }}", "{{ c[0] }}", "{{ c[:1] }}", "{{ c == t }}", "{{ c != 'x' }}", "{{ c == '' }}",
		"{{ c == none }}", "{{ c < 'b' }}",
		"{{ 'a' in c }}", "{{ c in 'ab' }}", "{{ c in ['a', 1] }}", "{{ c in {'a': 1} }}", "{{ {'a': 1}[c] }}", "{{ {c: 1} }}",
		"{{ {'a': 1}.get(c) }}",
		"{{ c.startswith('b') }}", "{{ c.startswith(('b', 'c')) }}", "{{ c.endswith('k') }}", "{{ c.strip() }}", "{{ c.lstrip() }}",
		"{{ c.strip('a') }}",
		"{{ c.split('a')[0] }}", "{{ c|trim }}", "{{ (c + ' ')|trim }}", "{{ c|tojson }}", "{{ [c]|tojson }}", "{{ [c]|join(',') }}",
		"{{ [c]|map('upper')|join }}",
		"{{ [c]|map('int')|list }}", "{{ [c, 'a']|sort }}", "{{ [c, 'a']|unique|list }}", "{{ [c]|select('equalto', 'a')|list|length }}",
		"{{ [m]|selectattr('content', 'equalto', 'a')|list|length }}", "{{ messages|map(attribute='content')|join(' ') }}",
		"{{ c ~ 1 ~ c }}", "{{ 1 ~ c }}",
		"{{ c + 'x' + c }}", "{{ c * 2 }}", "{{ '%s' % c }}", "{{ c|int }}", "{{ c is string }}", "{{ c is mapping }}",
		"{{ c is sameas 'a' }}", "{{ c is defined }}",
		"{{ c is iterable }}", "{{ c is none }}", "{{ c is true }}", "{{ c is lower }}", "{{ c is eq 'a' }}",
		"{% for x in c %}{{ x }}.{% endfor %}", "{{ c|default('x', true) }}",
		"{{ c|safe }}", "{{ c|string }}", "{{ c|list }}", "{{ c|first }}", "{{ c|reverse }}", "{{ c|replace('a', 'b') }}",
		"{{ 'xay'|replace('a', c) }}", "{{ c|indent }}",
		"{% set x = c %}{{ x }}", "{% set x %}[{{ c }}]{% endset %}{{ x|length }}", "{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(c)|length }}",
		"{% filter upper %}{{ c }}{% endfilter %}", "{% set ns = namespace(x=c) %}{{ ns.x }}", "{{ c and 1 }}", "{{ not c }}",
		"{{ 1 if c else 2 }}", "{{ [c] + [1] }}",
		"{{ c.x }}", "{{ c['x'] }}", "{{ m }}", "{{ m|string }}", "{{ m.items()|list }}", "{{ m|dictsort }}", "{{ loop.changed(c) }}",
		"{{ range(c) }}",
		"{{ raise_exception(c) }}", "{{ dict([[c, 1]]) }}", "{{ [c, 'b']|min }}", "{{ n }}", "{{ [[c]] == [['a']] }}",
		"{{ [c] == ['a'] }}", "{{ ['a'].index(c) }}",
		"{{ c|count }}", "{{ c.upper() }}", "{{ c.find('a') }}", "{{ 'a'.startswith(c) }}", "{{ ','.join([c]) }}", "{{ 'x{}'.format(c) }}",
	} {
		for _, shown := range []string{"", "{{ c }}"} {
			source := "{% for m in messages %}{% set c = m.content %}" + shown + of + "{% endfor %}"
			for k := range texts {
				outlined(t, source, vars(t, json.RawMessage(chat)), func(i int) string { return texts[(i+k)%len(texts)] })
			}
		}
	}
	tmpl := parsed(t, "{{ messages[0].content }}")
	list := List([]Value{Map(NewDict(1)), Map(NewDict(1))})
	for i, m := range list.items() {
		m.dict().Set("content", Hole(i))
	}
	_, err := tmpl.Outline(map[string]Value{"messages": list}, 2)
	assert.ErrorIs(t, err, errHole, "a text that is left out")
}

// FuzzOutline is TestOutlinesEqualRenders of the fuzzer's templates, messages and texts.
func FuzzOutline(f *testing.F) {
	for _, c := range golden(f) {
		f.Add(c.Template, []byte(c.Vars), "Hello", "x</think>y ")
	}
	f.Fuzz(func(t *testing.T, source string, raw []byte, one, other string) {
		v, err := FromJSON(raw, nil)
		if err != nil {
			return
		}
		all := members(v)
		one, other = strings.ToValidUTF8(one, "?"), strings.ToValidUTF8(other, "?")
		outlined(t, source, all, func(i int) string { return [2]string{one, other}[i%2] })
	})
}
