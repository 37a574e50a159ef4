package pools

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A name is the model of that name before it is another name of one.
func TestServedNames(t *testing.T) {
	r := NewRoster(Config{}, quiet)
	put := func(id, model string, names ...string) {
		t.Helper()
		join(t, r, id, func(w *Worker) { w.Model, w.ServedNames = model, names })
	}
	put("a1", "a", "x", "b")
	put("a2", "a")
	put("b1", "b", "y")
	for name, want := range map[string]string{"a": "a", "x": "a", "b": "b", "y": "b", "z": "z"} {
		got, _ := r.Resolve(name)
		assert.Equal(t, want, got, name)
	}
	assert.Equal(t, []string{"x"}, r.View().ServedNames("a"))
	put("a1", "a")
	got, _ := r.Resolve("x")
	assert.Equal(t, "x", got, "a name that no worker has any more")
	for _, names := range [][]string{{"a"}, {"x", "x"}, {""}, {"\n"}, slices.Repeat([]string{"x"}, MaxServedNames+1)} {
		assert.Error(t, r.Put(with("bad", func(w *Worker) { w.Model, w.ServedNames = "a", names })), "%q", names)
	}
}

// An adapter's name, with its base model's before it or without, means the base model with the adapter, as long as a
// worker has it loaded; a model's own names come first.
func TestAdaptersResolve(t *testing.T) {
	r := NewRoster(Config{}, quiet)
	put := func(id, model string, role Role, adapters ...string) {
		t.Helper()
		join(t, r, id, func(w *Worker) {
			w.Model, w.ServedNames, w.Adapters, w.Role = model, []string{model + "-alias"}, adapters, role
		})
	}
	put("a1", "a", Prefill, "sql", "b", "x:y")
	put("a2", "a", Decode)
	put("b1", "org/b:8", Both, "math", "sql")
	put("c1", "b", Both)
	resolves := func(name, model, adapter string) {
		t.Helper()
		if gotModel, gotAdapter := r.Resolve(name); gotModel != model || gotAdapter != adapter {
			t.Errorf("%s is %q with %q, want %q with %q", name, gotModel, gotAdapter, model, adapter)
		}
	}
	for name, want := range map[string][2]string{
		"a": {"a", ""}, "sql": {"a", "sql"}, "b": {"b", ""}, "a:b": {"a", "b"}, "a-alias:sql": {"a", "sql"}, "org/b:8": {"org/b:8", ""},
		"org/b:8:sql": {"org/b:8", "sql"},
		"math":        {"org/b:8", "math"}, "x:y": {"a", "x:y"}, "a:x:y": {"a", "x:y"}, "a:math": {"a:math", ""}, "a:": {"a:", ""},
		":sql": {":sql", ""}, "none": {"none", ""},
	} {
		resolves(name, want[0], want[1])
	}
	assert.Equal(t, []string{"sql", "x:y"}, r.View().Adapters("a"))
	put("a1", "a", Prefill)
	resolves("a:sql", "a:sql", "") // no worker has it any more
	resolves("sql", "org/b:8", "sql")
	for _, adapters := range [][]string{{"a"}, {"x", "x"}, {""}, {"\n"}} {
		assert.Error(t, r.Put(with("bad", func(w *Worker) { w.Model, w.Adapters = "a", adapters })), "%q", adapters)
	}
}

// An alias stands for a model or for a name that it is served under, and for nothing where a model has its name.
func TestAliases(t *testing.T) {
	cfg := Config{Aliases: []string{"small=a", "other=x", "b=a", "later=c"}}
	require.NoError(t, cfg.Validate())
	r := NewRoster(cfg, quiet)
	join(t, r, "a1", func(w *Worker) { w.Model, w.ServedNames = "a", []string{"x"} })
	join(t, r, "b1", func(w *Worker) { w.Model = "b" })
	for name, want := range map[string]string{"small": "a", "other": "a", "b": "b", "later": "c", "x": "a", "none": "none"} {
		got, _ := r.Resolve(name)
		assert.Equal(t, want, got, name)
	}
	assert.Equal(t, []string{"other", "small", "x"}, r.View().ServedNames("a"))
	for _, bad := range [][]string{{"a"}, {"=a"}, {"a="}, {"a=a"}, {"a=b", "a=c"}, {"a=b", "b=c"}, {"a=\n"}} {
		assert.Error(t, (Config{Aliases: bad}).Validate(), "%q", bad)
	}
}

// A worker of half a pair whose engine hands nothing over does not join; alone
// it serves.
func TestPairsWithoutAHandOffAreRefused(t *testing.T) {
	r := NewRoster(Config{HandsOver: func(w *Worker) error {
		if w.Engine != "vllm" {
			return errors.New("no connector")
		}
		return nil
	}}, quiet)
	for _, engine := range []string{"vllm", "sglang", "trtllm"} {
		for _, role := range []Role{Prefill, Decode, Both} {
			joins := engine == "vllm" || role == Both
			w := with(engine+"-"+string(role), func(w *Worker) { w.Role, w.Engine = role, engine })
			_, refused := errors.AsType[*NoHandOffError](r.Put(w))
			_, joined := r.Lookup(w.ID)
			assert.True(t, joined == joins && refused == !joins, "%s: joined %t, refused %t", w.ID, joined, refused)
		}
	}
	require.Len(t, r.Refused(), 4, "are refused, want 4")
	w := *r.Refused()[0].Worker
	w.Role = Both
	assert.True(t, r.Put(w) == nil && len(r.Refused()) == 3, "with role both it does not come in")
}

// Prefill and decode may differ in block size where the hand-off converts; within
// a pool, with workers that serve alone, and of other engines they may not.
func TestPoolsOfDifferentBlockSizes(t *testing.T) {
	for _, c := range []struct {
		name, engine    string
		role, otherRole Role // with blocks of 16 and 64 tokens
		forced          int
		joins           bool
		otherPage       int
	}{
		{"a pair", "vllm", Prefill, Decode, 0, true, 0},
		{"the other way round", "vllm", Decode, Prefill, 0, true, 0},
		{"one pool", "vllm", Prefill, Prefill, 0, false, 0},
		{"with one that serves alone", "vllm", Both, Decode, 0, false, 0},
		{"an engine that does not convert", "sglang", Prefill, Decode, 0, false, 0},
		{"blocks of several pages", "sglang", Prefill, Decode, 0, true, 16},
		{"one pool, blocks of several pages", "sglang", Decode, Decode, 0, false, 16},
		{"where the operator says one size", "vllm", Prefill, Decode, 16, false, 0},
	} {
		r := NewRoster(Config{BlockSize: c.forced, MixesBlocks: func(w *Worker) bool { return w.Engine == "vllm" }}, quiet)
		join(t, r, "a", func(w *Worker) { w.Role, w.Engine = c.role, c.engine })
		err := r.Put(with("b", func(w *Worker) { w.Role, w.Engine, w.BlockSize, w.PageSize = c.otherRole, c.engine, 64, c.otherPage }))
		_, typed := errors.AsType[*RefusedError](err)
		assert.True(t, (err == nil) == c.joins && (c.joins || typed), "%s: %v", c.name, err)
	}
}

// A fleet is mixed when two of its workers may be unable to hand over.
func TestMixedFleets(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(w *Worker)
		mixed  bool
	}{
		{"alike", func(*Worker) {}, false},
		{"another engine", func(w *Worker) { w.Engine = "sglang" }, true},
		{"another release", func(w *Worker) { w.EngineVersion = "0.27.1" }, true},
		{"another connector", func(w *Worker) { w.Connector = "vllm-mooncake" }, true},
		{"other pages in blocks of one size", func(w *Worker) { w.PageSize = 1 }, true},
		{"one that serves alone", func(w *Worker) { w.Engine, w.Role = "sglang", Both }, false},
	} {
		r := NewRoster(Config{}, quiet)
		join(t, r, "p", func(w *Worker) {})
		join(t, r, "d", func(w *Worker) { w.Role = Decode; c.change(w) })
		assert.Equal(t, c.mixed, r.Fleet("m").Mixed, c.name)
	}
}
