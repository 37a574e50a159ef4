package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/lab/devfleet"
)

// adapters loads an adapter into a worker's engine, or unloads it, and gives the roster the worker as a look at
// /v1/models then finds it.
func (f *fleet) adapters(id, verb, adapter string) {
	f.t.Helper()
	m, ok := f.gateway.Roster.Lookup(id)
	if !ok {
		f.t.Fatalf("no worker %s", id)
	}
	w, prefix := *m.Worker, "/v1/"
	if w.Engine == "sglang" {
		prefix = "/"
	}
	res, err := http.Post(w.Address+prefix+verb+"_lora_adapter", "application/json", strings.NewReader(fmt.Sprintf(`{"lora_name":%q,"lora_path":"/adapters"}`, adapter)))
	if err != nil {
		f.t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		f.t.Fatalf("%s %s on %s: %d", verb, adapter, id, res.StatusCode)
	}
	w.Adapters = nil
	res, err = http.Get(w.Address + "/v1/models")
	if err != nil {
		f.t.Fatal(err)
	}
	defer res.Body.Close()
	var list openai.ModelList
	if err := json.NewDecoder(res.Body).Decode(&list); err != nil {
		f.t.Fatal(err)
	}
	for _, model := range list.Data {
		if model.Parent == w.Model {
			w.Adapters = append(w.Adapters, model.ID)
		}
	}
	if err := f.gateway.Roster.Put(w); err != nil {
		f.t.Fatal(err)
	}
}

// chose is what an answer's nvext says of its workers and of what they had cached.
type chose struct {
	WorkerID struct {
		Prefill string `json:"prefill_worker_id"`
		Decode  string `json:"decode_worker_id"`
	} `json:"worker_id"`
	Routing struct {
		Predicted int  `json:"predicted_cached_tokens"`
		Actual    *int `json:"actual_cached_tokens"`
	} `json:"routing"`
}

func (f *fleet) chosen(model, prompt, more string) (c chose) {
	f.t.Helper()
	a := f.post("/v1/chat/completions", fmt.Sprintf(`{"model":%q,"max_tokens":2,"messages":[{"role":"user","content":%q}],"nvext":{"extra_fields":["worker_id","routing"]}%s}`, model, prompt, more))
	var got struct{ Nvext chose }
	if err := json.Unmarshal(a.body, &got); err != nil || a.status != http.StatusOK {
		f.t.Fatalf("%s: %d %s", model, a.status, a.body)
	}
	return got.Nvext
}

// refusedAs is the status and code of a request for a model that is refused.
func (f *fleet) refusedAs(model string) string {
	f.t.Helper()
	a := f.post("/v1/chat/completions", fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"x"}]}`, model))
	var got struct{ Error struct{ Code string } }
	_ = json.Unmarshal(a.body, &got)
	return fmt.Sprint(a.status, " ", got.Error.Code)
}

// TestAdaptersGoWhereTheyAreLoaded: an adapter's requests are served by workers that have it loaded alone, both legs;
// nowhere loaded it is no model, and with one leg's workers lacking it unavailable.
func TestAdaptersGoWhereTheyAreLoaded(t *testing.T) {
	f := newFleet(t, options{})
	if got := f.refusedAs("sql"); got != "404 model_not_found" {
		t.Errorf("an adapter that no worker has: %s", got)
	}
	f.adapters("prefill-2", "load", "sql")
	if got := f.refusedAs("sql"); got != "503 no_adapter_worker" {
		t.Errorf("an adapter that no decode worker has: %s", got)
	}
	f.adapters("decode-1", "load", "sql")
	var list openai.ModelList
	f.get("/v1/models", &list)
	if !slices.ContainsFunc(list.Data, func(m openai.Model) bool { return m.ID == "sql" && m.Parent == "tandem-sim" }) {
		t.Errorf("the list of models is %+v", list.Data)
	}
	for i := range 12 {
		name := []string{"sql", "tandem-sim:sql"}[i%2]
		if c := f.chosen(name, fmt.Sprint("question ", i, " ", long), ""); c.WorkerID.Prefill != "prefill-2" || c.WorkerID.Decode != "decode-1" {
			t.Fatalf("%s went to %+v", name, c.WorkerID)
		}
	}
	others := map[string]bool{}
	for i := range 24 {
		c := f.chosen("tandem-sim", fmt.Sprint("base ", i, " ", long), "")
		others[c.WorkerID.Prefill], others[c.WorkerID.Decode] = true, true
	}
	if len(others) != 4 {
		t.Errorf("the base model is served by %v alone", others)
	}
	f.adapters("decode-1", "unload", "sql")
	if got := f.refusedAs("sql"); got != "503 no_adapter_worker" {
		t.Errorf("an adapter that was unloaded from decode: %s", got)
	}
	f.adapters("prefill-2", "unload", "sql")
	if got := f.refusedAs("sql"); got != "404 model_not_found" {
		t.Errorf("an adapter that was unloaded everywhere: %s", got)
	}
	f.idle()
}

// TestUnloadedAdapters: an adapter that the engines have lost since the roster read their lists is tried wherever it is listed, then no
// model; no circuit opens by it, and the base model keeps every worker.
func TestUnloadedAdapters(t *testing.T) {
	for engine, fleet := range map[string]options{"": {}, "sglang": {both: 2}} {
		fleet.worker = func(c *devfleet.WorkerConfig) { c.Engine.Engine = engine }
		f := newFleet(t, fleet)
		for id := range f.workers {
			f.adapters(id, "load", "sql")
			m, _ := f.gateway.Roster.Lookup(id)
			f.adapters(id, "unload", "sql")
			if err := f.gateway.Roster.Put(*m.Worker); err != nil { // as it was read before
				t.Fatal(err)
			}
		}
		for range 8 {
			if got := f.refusedAs("tandem-sim:sql"); got != "404 model_not_found" {
				t.Fatalf("%s: %s", engine, got)
			}
		}
		if open := f.circuits(); len(open) > 0 {
			t.Errorf("%s: circuits %v", engine, open)
		}
		f.idle()
	}
}

// TestOverlapsOfAdaptersAndSalts: equal prompts under another adapter or salt share no block, and what the gateway
// expects to be cached by the engines' events is what the engine then reports.
func TestOverlapsOfAdaptersAndSalts(t *testing.T) {
	f := newFleet(t, options{prefill: 1, decode: 1})
	for _, id := range []string{"prefill-1", "decode-1"} {
		f.adapters(id, "load", "sql")
		f.adapters(id, "load", "math")
	}
	prompt := strings.Repeat(long, 3)
	for _, kind := range []struct{ model, more string }{
		{"tandem-sim", ""}, {"sql", ""}, {"math", ""}, {"tandem-sim", `,"cache_salt":"a"`}, {"sql", `,"cache_salt":"a"`}, {"sql", `,"cache_salt":"b"`},
	} {
		first := f.chosen(kind.model, prompt, kind.more)
		if first.Routing.Predicted != 0 || first.Routing.Actual == nil || *first.Routing.Actual != 0 {
			t.Errorf("%s%s, first: %+v; no request asked that before", kind.model, kind.more, first.Routing)
		}
		held := f.value("tandem_component_router_index_held_blocks", "prefill")
		var again chose
		f.eventually("its events are here", func() bool {
			again = f.chosen(kind.model, prompt, kind.more)
			return again.Routing.Predicted > 0
		})
		if again.Routing.Actual == nil || *again.Routing.Actual != again.Routing.Predicted || again.Routing.Predicted < 64 {
			t.Errorf("%s%s, again: %+v, with %v blocks in the index", kind.model, kind.more, again.Routing, held)
		}
	}
	f.idle()
}
