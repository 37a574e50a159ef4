package jinja

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// members are those of a JSON object.
func members(v Value) map[string]Value {
	all := map[string]Value{}
	d, _ := v.Dict()
	for i := 0; d != nil && i < d.Len(); i++ {
		key, value := d.At(i)
		all[key] = value
	}
	return all
}

// vars reads a JSON object as variables.
func vars(t testing.TB, raw []byte) map[string]Value {
	t.Helper()
	v, err := FromJSON(raw, nil)
	require.NoError(t, err, "%.200s", raw)
	return members(v)
}

func parsed(t testing.TB, source string) *Template {
	t.Helper()
	tmpl, err := Parse(source)
	require.NoError(t, err, source)
	return tmpl
}

// goldenCase is what Python's jinja2 makes of a template, set up as transformers sets it up; testdata/golden.py makes
// the file.
type goldenCase struct {
	Template    string
	Vars        json.RawMessage
	Want, Error *string
}

func golden(t testing.TB) (all []goldenCase) {
	t.Helper()
	file, err := os.ReadFile("testdata/golden.jsonl")
	require.NoError(t, err)
	for line := range bytes.Lines(file) {
		var c goldenCase
		require.NoError(t, json.Unmarshal(line, &c))
		all = append(all, c)
	}
	require.GreaterOrEqual(t, len(all), 100)
	return all
}

// What Python's jinja2 renders: the same text, and an error where it has one. Qwen's own template over shared
// conversations is TestQwenConversations' of models.
func TestGolden(t *testing.T) {
	for _, c := range golden(t) {
		var out []byte
		tmpl, err := Parse(c.Template)
		if err == nil {
			all := vars(t, c.Vars)
			all["strftime_now"] = Func(func(a []Value) (Value, error) { // as of golden.py's date
				form, _ := a[0].Str()
				return String(strings.NewReplacer("%Y", "2026", "%m", "03", "%d", "07", "%b", "Mar").Replace(form)), nil
			})
			out, err = tmpl.Render([]byte("before "), all, nil)
		}
		if c.Error != nil {
			assert.Error(t, err, "%s\n%s\nrendered %q, want the error %q", c.Template, c.Vars, out, *c.Error)
			continue
		}
		assert.NoError(t, err, "%s\n%s", c.Template, c.Vars)
		assert.Equal(t, "before "+*c.Want, string(out), "%s\n%s", c.Template, c.Vars)
	}
}

// The conversation of n tokens or so, as a client sends it: turns of 2 kB.
func conversation(bytes int) []byte {
	var b strings.Builder
	b.WriteString(`{"add_generation_prompt":true,"messages":[{"role":"system","content":"You are terse."}`)
	for turn := 0; b.Len() < bytes; turn++ {
		role := "user"
		if turn%2 == 1 {
			role = "assistant"
		}
		b.WriteString(`,{"role":"` + role + `","content":"` + strings.Repeat(`Some words, \"quoted\" now and then.\n`,
			min(54, max(1, bytes/37))) + `"}`)
	}
	b.WriteString("]}")
	return []byte(b.String())
}

func BenchmarkRender(b *testing.B) {
	for _, family := range []string{"qwen3", "llama3", "harmony"} {
		source, err := os.ReadFile("testdata/" + family + ".jinja")
		require.NoError(b, err)
		tmpl := parsed(b, string(source))
		for name, size := range map[string]int{"2kB": 2 << 10, "400kB": 400 << 10} {
			b.Run(family+"/"+name, func(b *testing.B) {
				raw := conversation(size)
				b.SetBytes(int64(len(raw)))
				b.ReportAllocs()
				var out []byte
				for b.Loop() {
					all := vars(b, raw)
					all["strftime_now"] = Func(func([]Value) (Value, error) { return String("2026-03-07"), nil })
					var err error
					if out, err = tmpl.Render(out[:0], all, nil); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
