package models

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
)

func library(t *testing.T, cfg Config) *Library {
	t.Helper()
	l, err := NewLibrary(cfg, pools.NewRoster(pools.Config{}, slog.New(slog.DiscardHandler)), nil, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

const says = `{"model":"m","messages":[{"role":"user","content":"a"}]}`

// rendered is what the model's template makes of a short chat.
func rendered(t *testing.T, l *Library, model string) string {
	t.Helper()
	language := l.Of(model)
	if language == nil {
		return ""
	}
	text, err := language.Render(nil, scanned(t, openai.Chat, says), "vllm")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Models are found by name, by the name's last part and in the layout of the Hugging Face cache; a name that leads out
// of the folder finds nothing.
func TestModelsAreFound(t *testing.T) {
	root := t.TempDir()
	put := func(path, template string) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(folder(t, map[string]string{"chat_template.jinja": template}), filepath.Join(root, path)); err != nil {
			t.Fatal(err)
		}
	}
	put("shelf/org/whole", "whole")
	put("shelf/last", "last")
	put("shelf/models--org--cached/snapshots/abc", "abc")
	put("shelf/models--org--cached/snapshots/def", "def")
	write(t, filepath.Join(root, "shelf/models--org--cached/refs/main"), "abc\n")
	put("shelf/models--org--unnamed/snapshots/only", "only")
	put("shelf/broken", "{% broken %}")
	put("secret", "secret")
	l := library(t, Config{ModelPaths: []string{filepath.Join(root, "shelf")}})
	for model, want := range map[string]string{
		"org/whole": "whole", "any/last": "last", "last": "last", "org/cached": "abc", "org/unnamed": "only",
		"../secret": "", "org/../../secret": "", filepath.Join(root, "secret"): "", "absent": "", "broken": "", "": "",
	} {
		l.find(model)
		if got := rendered(t, l, model); got != want {
			t.Errorf("%q has the template %q, want %q", model, got, want)
		}
	}
}

// A reload takes what can be read and leaves what cannot as it was, with an error that names it.
func TestReload(t *testing.T) {
	a, b := folder(t, map[string]string{"chat_template.jinja": "a1"}), folder(t, map[string]string{"chat_template.jinja": "b1"})
	shelf := t.TempDir()
	l := library(t, Config{Tokenizers: []string{"a=" + a, "b=" + filepath.Join(b, "tokenizer.json")}, ModelPaths: []string{shelf}})
	l.find("c")
	write(t, filepath.Join(a, "chat_template.jinja"), "a2")
	write(t, filepath.Join(b, "chat_template.jinja"), "{{ broken")
	if err := os.Rename(folder(t, map[string]string{"chat_template.jinja": "c1"}), filepath.Join(shelf, "c")); err != nil {
		t.Fatal(err)
	}
	l.find("c") // it was looked for
	if got := rendered(t, l, "c"); got != "" {
		t.Errorf("c is there before the reload: %q", got)
	}
	err := l.Reload()
	if err == nil || strings.Contains(err.Error(), `"a"`) || !strings.Contains(err.Error(), `"b"`) || !strings.Contains(err.Error(), "chat_template.jinja") {
		t.Errorf("the error is %v", err)
	}
	l.find("c")
	for model, want := range map[string]string{"a": "a2", "b": "b1", "c": "c1"} {
		if got := rendered(t, l, model); got != want {
			t.Errorf("%s has %q, want %q", model, got, want)
		}
	}
}

// A tokenizer without a model is the only served model's, whichever that is, also read again, and no model's while several are.
func TestTheOnlyModelNeedsNoName(t *testing.T) {
	path := folder(t, map[string]string{"chat_template.jinja": "1"})
	l := library(t, Config{Tokenizers: []string{path}})
	l.Put("a", Sim(0))
	check := func(when string, want map[string]string, served ...string) {
		t.Helper()
		l.adopt(served)
		for _, model := range []string{"", "a", "b"} {
			if got := rendered(t, l, model); got != want[model] {
				t.Errorf("%s: %q has %q, want %q", when, model, got, want[model])
			}
		}
	}
	check("one", map[string]string{"a": "1"}, "a")
	write(t, filepath.Join(path, "chat_template.jinja"), "2")
	if err := l.Reload(); err != nil {
		t.Error(err)
	}
	check("read again", map[string]string{"a": "2"}, "a")
	check("without workers", map[string]string{"a": "2"})
	check("two", nil, "a", "b")
	if err := l.Reload(); err != nil {
		t.Error(err)
	}
	check("two, read again", nil, "a", "b")
	check("the other", map[string]string{"b": "2"}, "b")
}

func TestConfigIsChecked(t *testing.T) {
	here := folder(t, nil)
	for want, cfg := range map[string]Config{
		"MODEL=PATH":     {Tokenizers: []string{"=" + here}},
		"PATH alone":     {Tokenizers: []string{here, "a=" + here}},
		"the only model": {Tokenizers: []string{here + "/nothing"}},
		"has two":        {Tokenizers: []string{"a=" + here, "a=" + here}},
		"no such file":   {Tokenizers: []string{"a=" + here + "/nothing"}},
		"is no folder":   {ModelPaths: []string{filepath.Join(here, "tokenizer.json")}},
		"model-path":     {ModelPaths: []string{here + "/nothing"}},
		"tokenizer.json": {Tokenizers: []string{"a=" + t.TempDir()}},
	} {
		_, err := NewLibrary(cfg, nil, nil, slog.New(slog.DiscardHandler), nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", cfg, err, want)
		}
	}
}
