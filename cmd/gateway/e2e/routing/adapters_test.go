package routing

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/fleet"
)

// adapters loads an adapter into a worker's engine, or unloads it, and gives the roster the worker as a look at
// /v1/models then finds it.
func loaded(f *fleet.Fleet, id, verb, adapter string) {
	f.T.Helper()
	m, ok := f.Gateway.Roster.Lookup(id)
	require.True(f.T, ok, "no worker %s", id)
	w, prefix := *m.Worker, "/v1/"
	if w.Engine == "sglang" {
		prefix = "/"
	}
	engine := &fleet.Fleet{T: f.T, URL: w.Address}
	engine.Good(prefix+verb+"_lora_adapter", fmt.Sprintf(`{"lora_name":%q,"lora_path":"/adapters"}`, adapter))
	var list openai.ModelList
	engine.Get("/v1/models", &list)
	w.Adapters = nil
	for _, model := range list.Data {
		if model.Parent == w.Model {
			w.Adapters = append(w.Adapters, model.ID)
		}
	}
	f.Put(w)
}

func chosenFor(f *fleet.Fleet, model, prompt, more string) *fleet.Nvext {
	f.T.Helper()
	return f.Nvext(f.Good("/v1/chat/completions",
		fmt.Sprintf(`{"model":%q,"max_tokens":2,"messages":[{"role":"user","content":%q}],"nvext":{"extra_fields":["worker_id",`+
			`"routing"]}%s}`, model, prompt, more)))
}

// refusedAs is the status and code of a request for a model that is refused.
func refusedAs(f *fleet.Fleet, model string) string {
	f.T.Helper()
	a := f.Post("/v1/chat/completions", fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"x"}]}`, model))
	var got struct{ Error struct{ Code string } }
	_ = json.Unmarshal(a.Body, &got)
	return fmt.Sprint(a.Status, " ", got.Error.Code)
}

// TestAdaptersGoWhereTheyAreLoaded: an adapter's requests are served by workers that have it loaded alone, both legs;
// nowhere loaded it is no model, and with one leg's workers lacking it unavailable.
func TestAdaptersGoWhereTheyAreLoaded(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, fleet.Options{})
	assert.Equal(t, "404 model_not_found", refusedAs(f, "sql"), "an adapter that no worker has")
	loaded(f, "prefill-2", "load", "sql")
	assert.Equal(t, "503 no_adapter_worker", refusedAs(f, "sql"), "an adapter that no decode worker has")
	loaded(f, "decode-1", "load", "sql")
	var list openai.ModelList
	f.Get("/v1/models", &list)
	if !slices.ContainsFunc(list.Data, func(m openai.Model) bool { return m.ID == "sql" && m.Parent == "tandem-sim" }) {
		t.Errorf("the list of models is %+v", list.Data)
	}
	for i := range 12 {
		name := []string{"sql", "tandem-sim:sql"}[i%2]
		if c := chosenFor(f, name, fmt.Sprint("question ", i, " ", fleet.Long), ""); c.WorkerID.Prefill != "prefill-2" ||
			c.WorkerID.Decode != "decode-1" {
			t.Fatalf("%s went to %+v", name, c.WorkerID)
		}
	}
	others := map[string]bool{}
	for i := range 24 {
		c := chosenFor(f, "tandem-sim", fmt.Sprint("base ", i, " ", fleet.Long), "")
		others[c.WorkerID.Prefill], others[c.WorkerID.Decode] = true, true
	}
	assert.Len(t, others, 4, "the workers that serve the base model")
	loaded(f, "decode-1", "unload", "sql")
	assert.Equal(t, "503 no_adapter_worker", refusedAs(f, "sql"), "an adapter that was unloaded from decode")
	loaded(f, "prefill-2", "unload", "sql")
	assert.Equal(t, "404 model_not_found", refusedAs(f, "sql"), "an adapter that was unloaded everywhere")
	f.Idle()
}

// TestOverlapsOfAdaptersAndSalts: equal prompts under another adapter or salt share no block, and what the gateway
// expects to be cached by the engines' events is what the engine then reports.
func TestOverlapsOfAdaptersAndSalts(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1})
	for _, id := range []string{"prefill-1", "decode-1"} {
		loaded(f, id, "load", "sql")
		loaded(f, id, "load", "math")
	}
	prompt := strings.Repeat(fleet.Long, 3)
	for _, kind := range []struct{ model, more string }{
		{"tandem-sim", ""}, {"sql", ""}, {"math", ""}, {"tandem-sim", `,"cache_salt":"a"`}, {"sql", `,"cache_salt":"a"`},
		{"sql", `,"cache_salt":"b"`},
	} {
		first := chosenFor(f, kind.model, prompt, kind.more)
		assert.True(t, first.Routing.Predicted == 0 && first.Routing.Actual != nil && *first.Routing.Actual == 0,
			"%s%s, first: %+v; no request asked that before", kind.model, kind.more, first.Routing)
		held := f.Value("tandem_component_router_index_held_blocks", "prefill")
		var again *fleet.Nvext
		f.Eventually("its events are here", func() bool {
			again = chosenFor(f, kind.model, prompt, kind.more)
			return again.Routing.Predicted > 0
		})
		if again.Routing.Actual == nil || *again.Routing.Actual != again.Routing.Predicted || again.Routing.Predicted < 64 {
			t.Errorf("%s%s, again: %+v, with %v blocks in the index", kind.model, kind.more, again.Routing, held)
		}
	}
	f.Idle()
}

// TestUnloadedAdapters: an adapter that the engines have lost since the roster read their lists is tried wherever it is
// listed, then no model; no circuit opens by it, and the base model keeps every worker.
func TestUnloadedAdapters(t *testing.T) {
	for engine, o := range map[string]fleet.Options{"": {}, "sglang": {Both: 2}} {
		o.Worker = func(c *devfleet.WorkerConfig) { c.Engine.Engine = engine }
		f := fleet.New(t, o)
		for id := range f.Workers {
			loaded(f, id, "load", "sql")
			m, _ := f.Gateway.Roster.Lookup(id)
			loaded(f, id, "unload", "sql")
			f.Put(*m.Worker) // as it was read before
		}
		for range 8 {
			require.Equal(t, "404 model_not_found", refusedAs(f, "tandem-sim:sql"), "%s", engine)
		}
		assert.LessOrEqual(t, len(f.Circuits()), 0, "%s: circuits", engine)
		f.Idle()
	}
}
