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
