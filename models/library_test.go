package models

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
)

// library returns a library whose models these workers serve, and its log.
func library(t *testing.T, cfg Config, by http1.Transport, workers ...*pools.Worker) (*Library, *strings.Builder) {
	t.Helper()
	roster, log := pools.NewRoster(pools.Config{}, slog.New(slog.DiscardHandler)), &strings.Builder{}
	for _, w := range workers {
		require.NoError(t, roster.Put(*w))
	}
	l, err := NewLibrary(cfg, roster, by, slog.New(slog.NewTextHandler(log, nil)), nil)
	require.NoError(t, err)
	return l, log
}

const contains = `{"model":"m","messages":[{"role":"user","content":"a"}]}`

// rendered is what the model's template makes of a short chat.
func rendered(t *testing.T, l *Library, model string) string {
	t.Helper()
	language := l.Of(model)
	if language == nil {
		return ""
	}
	text, err := language.Render(nil, scanned(t, openai.Chat, contains), "vllm")
	require.NoError(t, err)
	return string(text)
}

// put makes a model's folder with a template at path.
func put(t *testing.T, path, template string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.Rename(folder(t, map[string]string{"chat_template.jinja": template}), path))
}

// Models are found by name, by the name's last part and in the layout of the Hugging Face cache; a name that leads out
// of the folder finds nothing.
func TestModelsAreFound(t *testing.T) {
	root := t.TempDir()
	for path, template := range map[string]string{
		"shelf/org/whole": "whole", "shelf/last": "last", "shelf/models--org--cached/snapshots/abc": "abc",
		"shelf/models--org--cached/snapshots/def":   "def",
		"shelf/models--org--unnamed/snapshots/only": "only", "shelf/broken": "{% broken %}", "secret": "secret",
	} {
		put(t, filepath.Join(root, path), template)
	}
	write(t, filepath.Join(root, "shelf/models--org--cached/refs/main"), "abc\n")
	l, _ := library(t, Config{Tokenizers: []string{filepath.Join(root, "shelf")}}, nil)
	for model, want := range map[string]string{
		"org/whole": "whole", "any/last": "last", "last": "last", "org/cached": "abc", "org/unnamed": "only",
		"../secret": "", "org/../../secret": "", filepath.Join(root, "secret"): "", "absent": "", "broken": "", "": "",
	} {
		l.find(model)
		assert.Equal(t, want, rendered(t, l, model), model)
	}
}

// A reload takes what can be read and leaves what cannot as it was, with an error that names it.
func TestReload(t *testing.T) {
	a, b := folder(t, map[string]string{"chat_template.jinja": "a1"}), folder(t, map[string]string{"chat_template.jinja": "b1"})
	shelf := t.TempDir()
	l, _ := library(t, Config{Tokenizers: []string{"a=" + a, "b=" + filepath.Join(b, "tokenizer.json"), shelf}}, nil)
	l.find("c")
	write(t, filepath.Join(a, "chat_template.jinja"), "a2")
	write(t, filepath.Join(b, "chat_template.jinja"), "{{ broken")
	put(t, filepath.Join(shelf, "c"), "c1")
	l.find("c") // it was looked for
	assert.Empty(t, rendered(t, l, "c"), "before the reload")
	err := l.Reload()
	assert.ErrorContains(t, err, `"b"`)
	assert.ErrorContains(t, err, "chat_template.jinja")
	assert.NotContains(t, err.Error(), `"a"`)
	l.find("c")
	for model, want := range map[string]string{"a": "a2", "b": "b1", "c": "c1"} {
		assert.Equal(t, want, rendered(t, l, model), model)
	}
}

// A tokenizer without a model is the only served model's, whichever that is, also read again, and no model's while several are.
func TestTheOnlyModelNeedsNoName(t *testing.T) {
	path := folder(t, map[string]string{"chat_template.jinja": "1"})
	l, _ := library(t, Config{Tokenizers: []string{path}}, nil)
	l.Put("a", Sim(0))
	check := func(when string, want map[string]string, served ...string) {
		t.Helper()
		l.adopt(served)
		for _, model := range []string{"", "a", "b"} {
			assert.Equal(t, want[model], rendered(t, l, model), "%s: %s", when, model)
		}
	}
	check("one", map[string]string{"a": "1"}, "a")
	write(t, filepath.Join(path, "chat_template.jinja"), "2")
	assert.NoError(t, l.Reload())
	check("read again", map[string]string{"a": "2"}, "a")
	check("without workers", map[string]string{"a": "2"})
	check("two", nil, "a", "b")
	assert.NoError(t, l.Reload())
	check("two, read again", nil, "a", "b")
	check("the other", map[string]string{"b": "2"}, "b")
}

func TestConfigIsChecked(t *testing.T) {
	here := folder(t, nil)
	for want, cfg := range map[string]Config{
		"MODEL=PATH":     {Tokenizers: []string{"=" + here}},
		"single model":   {Tokenizers: []string{here, "a=" + here}},
		"/nothing: no":   {Tokenizers: []string{here + "/nothing"}},
		"has two":        {Tokenizers: []string{"a=" + here, "a=" + here}},
		"no such file":   {Tokenizers: []string{"a=" + here + "/nothing"}},
		"use MODEL=PATH": {Tokenizers: []string{filepath.Join(here, "tokenizer.json"), here}},
		"tokenizer.json": {Tokenizers: []string{"a=" + t.TempDir()}},
	} {
		_, err := NewLibrary(cfg, nil, nil, slog.New(slog.DiscardHandler), nil)
		assert.ErrorContains(t, err, want)
	}
}
