package jinja

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// vars reads a JSON object as variables.
func vars(t testing.TB, raw []byte) map[string]Value {
	t.Helper()
	v, err := FromJSON(raw, nil)
	if err != nil {
		t.Fatalf("%v: %.200s", err, raw)
	}
	d, _ := v.Dict()
	all := map[string]Value{}
	for i := range d.Len() {
		key, value := d.At(i)
		all[key] = value
	}
	return all
}

// What Python's jinja2 renders, set up as transformers sets it up (testdata/golden.py makes the file): the same text,
// and an error where it has one.
func TestGolden(t *testing.T) {
	file, err := os.Open("testdata/golden.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	n := 0
	for lines.Scan() {
		var c struct {
			Template    string
			Vars        json.RawMessage
			Want, Error *string
		}
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		n++
		got, err := "", error(nil)
		tmpl, err := Parse(c.Template)
		if err == nil {
			var out []byte
			all := vars(t, c.Vars)
			all["strftime_now"] = Func(func(a []Value) (Value, error) { // as of golden.py's date
				form, _ := a[0].Str()
				return String(strings.NewReplacer("%Y", "2026", "%m", "03", "%d", "07", "%b", "Mar").Replace(form)), nil
			})
			out, err = tmpl.Render([]byte("before "), all, nil)
			got = strings.TrimPrefix(string(out), "before ")
		}
		switch {
		case c.Error != nil && err == nil:
			t.Errorf("%s\n%s\nrendered %q, want the error %q", c.Template, c.Vars, got, *c.Error)
		case c.Error != nil:
		case err != nil:
			t.Errorf("%s\n%s\n%v, want %q", c.Template, c.Vars, err, *c.Want)
		case got != *c.Want:
			t.Errorf("%s\n%s\ngot  %q\nwant %q", c.Template, c.Vars, got, *c.Want)
		}
	}
	if n < 100 {
		t.Errorf("%d cases", n)
	}
}

// zipped reads a file of the shared vectors, or skips the test.
func zipped(t testing.TB, name string) []byte {
	t.Helper()
	file, err := os.Open(filepath.Join("../../../shared/vectors", name))
	if err != nil {
		t.Skipf("reads ../shared, which is absent: %v", err)
	}
	defer file.Close()
	r, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := b.ReadFrom(r); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Qwen 2.5's own template over the shared conversations.
func TestQwenVectors(t *testing.T) {
	var config struct {
		ChatTemplate string `json:"chat_template"`
	}
	if err := json.Unmarshal(zipped(t, "tokenizer/qwen2.5/tokenizer_config.json.gz"), &config); err != nil {
		t.Fatal(err)
	}
	tmpl, err := Parse(config.ChatTemplate)
	if err != nil {
		t.Fatal(err)
	}
	if tmpl.LoopsOverContent() {
		t.Error("its contents are strings")
	}
	n := 0
	for line := range bytes.Lines(zipped(t, "chat/qwen2.5.jsonl.gz")) {
		var c struct {
			Request  json.RawMessage
			Rendered string
		}
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		n++
		got, err := tmpl.Render(nil, vars(t, c.Request), nil)
		if err != nil || string(got) != c.Rendered {
			t.Errorf("%s\n%v\ngot  %q\nwant %q", c.Request, err, got, c.Rendered)
		}
	}
	if n != 12 {
		t.Errorf("%d conversations, want 12", n)
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
		b.WriteString(`,{"role":"` + role + `","content":"` + strings.Repeat(`Some words, \"quoted\" now and then.\n`, min(54, max(1, bytes/37))) + `"}`)
	}
	b.WriteString("]}")
	return []byte(b.String())
}

func BenchmarkRender(b *testing.B) {
	for _, family := range []string{"qwen3", "llama3", "harmony"} {
		source, err := os.ReadFile("testdata/" + family + ".jinja")
		if err != nil {
			b.Fatal(err)
		}
		tmpl, err := Parse(string(source))
		if err != nil {
			b.Fatal(err)
		}
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
