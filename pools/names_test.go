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
		if got := r.Resolve(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if got := r.View().ServedNames("a"); !slices.Equal(got, []string{"x"}) {
		t.Errorf("a is also served as %q", got)
	}
	put("a1", "a")
	if got := r.Resolve("x"); got != "x" {
		t.Errorf("a name that no worker has any more is still %s", got)
	}
	for _, names := range [][]string{{"a"}, {"x", "x"}, {""}, {"\n"}, slices.Repeat([]string{"x"}, MaxServedNames+1)} {
		w := Worker{ID: "bad", Model: "a", ServedNames: names, Role: Both, Engine: "vllm", Address: "http://h:1", BlockSize: 16}
		if err := r.Put(w); err == nil {
			t.Errorf("%q was taken", names)
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
		if got := r.Resolve(name); got != want {
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
