package models

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tandem-pd/tandem/internal/jinja"
	"github.com/tandem-pd/tandem/internal/tokens"
)

// maxFileBytes bounds each file of a model that is read, so that a wrong path cannot take all memory. The largest
// tokenizer.json in use has 35 MB.
const maxFileBytes = 256 << 20

// Load reads a model's language from a Hugging Face folder, or from a tokenizer.json and what stands next to it:
// tokenizer_config.json, and the chat template in it, in chat_template.jinja, chat_template.json or
// additional_chat_templates/NAME.jinja. A model without a template serves text alone. cacheBytes bounds the memory for
// prompts already tokenized. The error names the file.
func Load(path string, cacheBytes int64) (*Language, error) {
	folder, file := path, "tokenizer.json"
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.IsDir() {
		folder, file = filepath.Dir(path), filepath.Base(path)
	}
	data, err := read(filepath.Join(folder, file))
	if err != nil {
		return nil, err
	}
	config, err := optional(filepath.Join(folder, "tokenizer_config.json"))
	if err != nil {
		return nil, err
	}
	t, err := tokens.LoadWith(data, config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(folder, file), err)
	}
	l := newLanguage(folder, t, cacheBytes)
	if l.vocab, err = embedded(folder); err != nil {
		return nil, err
	}
	if err := l.loadTemplates(config); err != nil {
		return nil, err
	}
	return l, nil
}

// embedded returns the rows of the model's embedding by its config.json, 0 unknown. It is padded: mostly more than the
// tokenizer has tokens.
func embedded(folder string) (rows int, err error) {
	data, err := optional(filepath.Join(folder, "config.json"))
	if data == nil || err != nil {
		return 0, err
	}
	type size struct {
		VocabSize int `json:"vocab_size"`
	}
	var config struct {
		size
		Text     size `json:"text_config"` // of models with several modalities
		LLM      size `json:"llm_config"`
		Language size `json:"language_config"`
	}
	_ = json.Unmarshal(data, &config) // up to what has another form
	return max(0, cmp.Or(config.Text.VocabSize, config.LLM.VocabSize, config.Language.VocabSize, config.VocabSize)), nil
}

// Info returns the tokenizer_config.json, nil without one.
func (l *Language) Info() []byte {
	if l.simulated() {
		return nil
	}
	config, _ := optional(filepath.Join(l.Path, "tokenizer_config.json")) // checked when the language was loaded
	return config
}

// read reads a file of a model.
func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	case len(data) > maxFileBytes:
		return nil, fmt.Errorf("%s: longer than %d bytes", path, maxFileBytes)
	}
	return data, nil
}

// optional is read, and nil for a file that is not there.
func optional(path string) ([]byte, error) {
	data, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// tokenizerConfig is a tokenizer_config.json, as far as it bears on templates.
type tokenizerConfig struct {
	ChatTemplate chatTemplates `json:"chat_template"`
}

// chatTemplates is a template, or a list of named ones.
type chatTemplates map[string]string

// UnmarshalJSON implements json.Unmarshaler.
func (c *chatTemplates) UnmarshalJSON(data []byte) error {
	var one *string
	if json.Unmarshal(data, &one) == nil {
		if one != nil {
			*c = chatTemplates{"default": *one}
		}
		return nil
	}
	var named []struct{ Name, Template string }
	if err := json.Unmarshal(data, &named); err != nil {
		return errors.New("chat_template is neither a text nor a list of name and template")
	}
	*c = chatTemplates{}
	for _, t := range named {
		(*c)[t.Name] = t.Template
	}
	return nil
}

// loadTemplates parses the model's templates. A file chat_template.jinja wins over chat_template.json, and both over
// tokenizer_config.json, as in transformers.
func (l *Language) loadTemplates(config []byte) error {
	sources, from := map[string]string{}, map[string]string{}
	add := func(file, name, source string) { sources[name], from[name] = source, file }
	for _, file := range []string{"tokenizer_config.json", "chat_template.json"} {
		path := filepath.Join(l.Path, file)
		data, err := optional(path)
		if err != nil {
			return err
		}
		if data == nil {
			continue
		}
		var c tokenizerConfig
		if err := json.Unmarshal(data, &c); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for name, source := range c.ChatTemplate {
			add(path, name, source)
		}
	}
	files := map[string]string{"default": filepath.Join(l.Path, "chat_template.jinja")}
	more, _ := filepath.Glob(filepath.Join(l.Path, "additional_chat_templates", "*.jinja")) // the pattern is valid
	for _, path := range more {
		files[strings.TrimSuffix(filepath.Base(path), ".jinja")] = path
	}
	for name, path := range files {
		data, err := optional(path)
		if err != nil {
			return err
		}
		if data != nil {
			add(path, name, string(data))
		}
	}
	for name, source := range sources {
		t, err := jinja.Parse(source)
		if err != nil {
			return fmt.Errorf("%s: the chat template %q: %w", from[name], name, err)
		}
		l.templates[name] = &template{t, t.LoopsOverContent(), t.LoopsOverContentOf("message", "msg", "m")}
	}
	return l.loadSpecials(config)
}

// specialNames are the special tokens that transformers hands to templates.
var specialNames = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// loadSpecials reads the special tokens that templates may write, from tokenizer_config.json and, where it has none,
// from special_tokens_map.json. A token that is null is undefined in templates.
func (l *Language) loadSpecials(config []byte) error {
	older, err := optional(filepath.Join(l.Path, "special_tokens_map.json"))
	if err != nil {
		return err
	}
	found := map[string]bool{}
	for _, data := range [][]byte{config, older} {
		if data == nil {
			continue
		}
		all := map[string]json.RawMessage{}
		if err := json.Unmarshal(data, &all); err != nil {
			return fmt.Errorf("%s: %w", l.Path, err)
		}
		for _, name := range specialNames {
			if text, ok := tokenText(all[name]); ok && !found[name] {
				found[name] = true
				l.specials = append(l.specials, special{name, jinja.String(text)})
			}
		}
	}
	return nil
}

// tokenText is a token in a config: its text, or an object with the text as content.
func tokenText(raw json.RawMessage) (text string, ok bool) {
	if raw == nil || string(raw) == "null" {
		return "", false
	}
	if json.Unmarshal(raw, &text) == nil {
		return text, true
	}
	var token struct{ Content *string }
	if json.Unmarshal(raw, &token) == nil && token.Content != nil {
		return *token.Content, true
	}
	return "", false
}

// search finds the folder of a model: FOLDER/MODEL, FOLDER/LAST-PART, or the newest snapshot in the layout of the
// Hugging Face cache. A model's name is a worker's text: it never leads out of the folder.
func (l *Library) search(model string) string {
	names := []string{model, model[strings.LastIndexByte(model, '/')+1:]}
	cached := "models--" + strings.ReplaceAll(model, "/", "--")
	for _, folder := range l.folders {
		for _, name := range names {
			if filepath.IsLocal(name) && isModel(filepath.Join(folder, name)) {
				return filepath.Join(folder, name)
			}
		}
		if filepath.IsLocal(cached) {
			if path := snapshot(filepath.Join(folder, cached)); path != "" {
				return path
			}
		}
	}
	return ""
}

func isModel(folder string) bool {
	info, err := os.Stat(filepath.Join(folder, "tokenizer.json"))
	return err == nil && info.Mode().IsRegular()
}

// snapshot is the snapshot of a cached model that its branch main names, or the newest one with a tokenizer.
func snapshot(folder string) string {
	if ref, err := os.ReadFile(filepath.Join(folder, "refs", "main")); err == nil {
		name := strings.TrimSpace(string(ref))
		if path := filepath.Join(folder, "snapshots", name); filepath.IsLocal(name) && isModel(path) {
			return path
		}
	}
	entries, err := os.ReadDir(filepath.Join(folder, "snapshots"))
	if err != nil {
		return ""
	}
	newest, at := "", int64(0)
	for _, e := range entries {
		path := filepath.Join(folder, "snapshots", e.Name())
		var info fs.FileInfo
		if info, err = e.Info(); err == nil && isModel(path) && (newest == "" || info.ModTime().UnixNano() > at) {
			newest, at = path, info.ModTime().UnixNano()
		}
	}
	return newest
}
