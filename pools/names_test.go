package pools

import (
	"log/slog"
	"slices"
	"testing"
)

// A name is the model of that name before it is another name of one.
func TestServedNames(t *testing.T) {
	r := NewRoster(Config{}, slog.New(slog.DiscardHandler))
	put := func(id, model string, names ...string) {
		t.Helper()
		w := Worker{ID: id, Model: model, ServedNames: names, Role: Both, Engine: "vllm", Address: "http://h:1", BlockSize: 16}
		if err := r.Put(w); err != nil {
			t.Fatal(err)
		}
	}
	put("a1", "a", "x", "b")
	put("a2", "a")
	put("b1", "b", "y")
	for name, want := range map[string]string{"a": "a", "x": "a", "b": "b", "y": "b", "z": "z"} {
		if got, _ := r.Resolve(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if got := r.View().ServedNames("a"); !slices.Equal(got, []string{"x"}) {
		t.Errorf("a is also served as %q", got)
	}
	put("a1", "a")
	if got, _ := r.Resolve("x"); got != "x" {
		t.Errorf("a name that no worker has any more is still %s", got)
	}
	for _, names := range [][]string{{"a"}, {"x", "x"}, {""}, {"\n"}, slices.Repeat([]string{"x"}, MaxServedNames+1)} {
		w := Worker{ID: "bad", Model: "a", ServedNames: names, Role: Both, Engine: "vllm", Address: "http://h:1", BlockSize: 16}
		if err := r.Put(w); err == nil {
			t.Errorf("%q was taken", names)
		}
	}
}

// An adapter's name, with its base model's before it or without, means the base model with the adapter, as long as a
// worker has it loaded; a model's own names come first.
func TestAdaptersResolve(t *testing.T) {
	r := NewRoster(Config{}, slog.New(slog.DiscardHandler))
	put := func(id, model string, role Role, adapters ...string) {
		t.Helper()
		w := Worker{ID: id, Model: model, ServedNames: []string{model + "-alias"}, Adapters: adapters, Role: role, Engine: "vllm", Address: "http://h:1", BlockSize: 16}
		if err := r.Put(w); err != nil {
			t.Fatal(err)
		}
	}
	put("a1", "a", Prefill, "sql", "b", "x:y")
	put("a2", "a", Decode)
	put("b1", "org/b:8", Both, "math", "sql")
	put("c1", "b", Both)
	for name, want := range map[string][2]string{
		"a": {"a", ""}, "sql": {"a", "sql"}, "b": {"b", ""}, "a:b": {"a", "b"}, "a-alias:sql": {"a", "sql"}, "org/b:8": {"org/b:8", ""}, "org/b:8:sql": {"org/b:8", "sql"},
		"math": {"org/b:8", "math"}, "x:y": {"a", "x:y"}, "a:x:y": {"a", "x:y"}, "a:math": {"a:math", ""}, "a:": {"a:", ""}, ":sql": {":sql", ""}, "none": {"none", ""},
	} {
		if model, adapter := r.Resolve(name); model != want[0] || adapter != want[1] {
			t.Errorf("%s is %q with %q, want %q", name, model, adapter, want)
		}
	}
	if got := r.View().Adapters("a"); !slices.Equal(got, []string{"sql", "x:y"}) {
		t.Errorf("a's adapters are %q", got)
	}
	put("a1", "a", Prefill)
	if model, adapter := r.Resolve("a:sql"); model != "a:sql" || adapter != "" {
		t.Errorf("an adapter that no worker has any more is %q of %q", adapter, model)
	}
	if model, adapter := r.Resolve("sql"); model != "org/b:8" || adapter != "sql" {
		t.Errorf("an adapter that another model has is %q of %q", adapter, model)
	}
	for _, adapters := range [][]string{{"a"}, {"x", "x"}, {""}, {"\n"}} {
		w := Worker{ID: "bad", Model: "a", Adapters: adapters, Role: Both, Engine: "vllm", Address: "http://h:1", BlockSize: 16}
		if err := r.Put(w); err == nil {
			t.Errorf("%q was taken", adapters)
		}
	}
}

// An alias stands for a model or for a name that it is served under, and for nothing where a model has its name.
func TestAliases(t *testing.T) {
	cfg := Config{Aliases: []string{"small=a", "other=x", "b=a", "later=c"}}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	r := NewRoster(cfg, slog.New(slog.DiscardHandler))
	for i, w := range []Worker{{ID: "a1", Model: "a", ServedNames: []string{"x"}}, {ID: "b1", Model: "b"}} {
		w.Role, w.Engine, w.Address, w.BlockSize = Both, "vllm", "http://h:1", 16
		if err := r.Put(w); err != nil {
			t.Fatal(i, err)
		}
	}
	for name, want := range map[string]string{"small": "a", "other": "a", "b": "b", "later": "c", "x": "a", "none": "none"} {
		if got, _ := r.Resolve(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if got := r.View().ServedNames("a"); !slices.Equal(got, []string{"other", "small", "x"}) {
		t.Errorf("a is also served as %q", got)
	}
	for _, bad := range [][]string{{"a"}, {"=a"}, {"a="}, {"a=a"}, {"a=b", "a=c"}, {"a=b", "b=c"}, {"a=\n"}} {
		if err := (Config{Aliases: bad}).Validate(); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
