package jinja

import (
	"encoding/json"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Whatever is parsed renders, or fails, in bounded time; the same twice.
func FuzzTemplate(f *testing.F) {
	for _, c := range golden(f) {
		f.Add(c.Template, []byte(c.Vars))
	}
	f.Fuzz(func(t *testing.T, source string, raw []byte) {
		tmpl, err := Parse(source)
		if err != nil {
			return
		}
		v, err := FromJSON(raw, nil)
		if err != nil {
			return
		}
		all := members(v)
		tmpl.LoopsOverContent()
		began := cpuTime(t)
		first, err1 := tmpl.Render(nil, all, nil)
		assert.LessOrEqual(t, cpuTime(t)-began, 20*time.Second, "it took")
		second, err2 := tmpl.Render(nil, all, nil)
		assert.True(t, string(first) == string(second) && (err1 == nil) == (err2 == nil),
			"%q, %v and then %q, %v", first, err1, second, err2)
	})
}

// What encoding/json reads is read alike, and what is written is read back.
func FuzzJSON(f *testing.F) {
	for _, text := range []string{
		`{"a":[1,-0,1.5e3,"x\u00e9\ud83d\ude00\n\"",null,true,false],"b":{},"a":[]}`, `[]`, `"\ud800"`, `01`, `1.`, `{"a"}`, "\"\x01\"",
		`123456789012345678901`,
		strings.Repeat("[", 600), `nul`, `"\u12"`, `-`, `1e999`,
	} {
		f.Add([]byte(text))
	}
	print := parsed(f, `{{ v | tojson }}`)
	f.Fuzz(func(t *testing.T, raw []byte) {
		var want any
		wantErr := json.Unmarshal(raw, &want)
		v, err := FromJSON(raw, nil)
		if strings.Contains(strings.ToLower(string(raw)), `\ud`) || !utf8.Valid(raw) {
			return // encoding/json replaces half a character, which here is an error
		}
		if wantErr == nil && err != nil && strings.Count(string(raw), "[")+strings.Count(string(raw), "{") < maxNesting {
			t.Fatalf("%q is not read: %v", raw, err)
		}
		if wantErr != nil || err != nil {
			return // the scan of a body has refused what is no JSON
		}
		out, err := print.Render(nil, map[string]Value{"v": v}, nil)
		require.NoError(t, err, "%q", raw)
		var again any
		if err := json.Unmarshal(out, &again); err != nil || !reflect.DeepEqual(again, want) {
			t.Errorf("%q is written as %q: %v", raw, out, err)
		}
	})
}

// A message cannot make a template work without end, or take memory without end. TestEveryOperationPays has each
// operation.
func TestBudget(t *testing.T) {
	long := String(strings.Repeat("x ", 1<<19))
	many := make([]Value, 20_000)
	for i := range many {
		many[i] = Int(int64(i))
	}
	for source, want := range map[string]error{
		`{% for a in many %}{% for b in many %}{{ b }}{% endfor %}{% endfor %}`:                     ErrBudget,
		`{% set ns = namespace(t='') %}{% for a in many %}{% set ns.t = ns.t + long %}{% endfor %}`: ErrBudget,
		`{% for a in many %}{{ long }}{% endfor %}`:                                                 ErrBudget,
		`{% for a in many %}{{ long | replace('x', long) | length }}{% endfor %}`:                   ErrBudget,
		`{{ (('%s' * 10000) % ((long,) * 10000)) | length }}`:                                       ErrBudget,
		`{% for a in many %}{% if [] * 1000000000 %}{% endif %}{% endfor %}`:                        nil,
		`{{ long * 100000 }}`: ErrBudget,
		`{{ many * 100000 }}`: ErrBudget,
		`{{ long | length }}{{ long.split(' ') | length }}{{ many | sort | length }}`: nil,
	} {
		tmpl := parsed(t, source)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := cpuTime(t)
		out, err := tmpl.Render(nil, map[string]Value{"long": long, "many": List(many)}, nil)
		runtime.ReadMemStats(&after)
		assert.ErrorIs(t, err, want, "%s: %d bytes", source, len(out))
		assert.LessOrEqual(t, cpuTime(t)-began, 10*time.Second, source)
		assert.LessOrEqual(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<30), "%s: memory, one after the other", source)
	}
	_, err := parsed(t, `{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}`).Render(nil, nil, nil)
	assert.Error(t, err, "a macro calls itself without end")
	for _, source := range []string{
		strings.Repeat("{% if a %}", 500), "{{ " + strings.Repeat("(", 500), "{{ " + strings.Repeat("not ", 5000) + "a }}",
		"{{ " + strings.Repeat("-", 5000) + "1 }}",
		"{% for x in y recursive %}{% endfor %}", "{% include 'x' %}", "{{ x | nothing }}", "{{ x is nothing }}", "{{ f(*x) }}",
		"{% break %}", "{{ x", "{{ 'x }}", "{# x", "{% raw %}",
	} {
		_, err := Parse(source)
		assert.Error(t, err, "%.40s", source)
	}
}

// No JSON takes longer than its length explains.
func TestJSONIsLinear(t *testing.T) {
	var keys strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&keys, `"k%d":%d,"k%d":[],`, i, i, i/2)
	}
	for name, text := range map[string]string{
		"keys":     "{" + strings.TrimSuffix(keys.String(), ",") + "}",
		"escapes":  `["` + strings.Repeat(`\n`, 1<<20) + `"]`,
		"quotes":   `["` + strings.Repeat(`\"`, 1<<20) + `"]`,
		"strings":  `[` + strings.Repeat(`"\\",`, 1<<18) + `1]`,
		"numbers":  `[` + strings.Repeat(`1.5e3,`, 1<<18) + `1]`,
		"a number": strings.Repeat("1", 1<<20),
		"nested":   strings.Repeat("[", maxNesting) + strings.Repeat("]", maxNesting),
	} {
		began := cpuTime(t)
		v, err := FromJSON([]byte(text), nil)
		require.NoError(t, err, name)
		_, err = parsed(t, `{{ v | tojson | length }}`).Render(nil, map[string]Value{"v": v}, nil)
		assert.NoError(t, err, name)
		assert.LessOrEqual(t, cpuTime(t)-began, 5*time.Second, name)
	}
}

// cpuTime is what the process has used of its processors: a busy machine does not add to it.
func cpuTime(t testing.TB) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
