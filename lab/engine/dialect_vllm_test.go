package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// reply is what came of a call that may hang.
type reply struct {
	status int // 0: nothing, until its client left
	took   time.Duration
	answer whole
}

// call sends a body in the background; its client leaves after so long.
func (b *bench) call(engine string, patience time.Duration, id string, v any) <-chan reply {
	out := make(chan reply, 1)
	raw, err := json.Marshal(v)
	require.NoError(b.t, err)
	begin := time.Now()
	go func() {
		ctx, cancel := context.WithTimeout(b.t.Context(), patience)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+engine+completions, strings.NewReader(string(raw)))
		assert.NoError(b.t, err)
		req.Header.Set("X-Request-Id", id)
		var r reply
		if resp, err := b.client.Do(req); err == nil {
			if json.NewDecoder(resp.Body).Decode(&r.answer) == nil {
				r.status = resp.StatusCode
			}
			_ = resp.Body.Close()
		}
		r.took = time.Since(begin)
		out <- r
	}()
	return out
}

// The legs of a hand-off that is right, by connector.
func legsOf(connector string) (p, d map[string]any) {
	switch connector {
	case "vllm-mooncake":
		return map[string]any{"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": "xfer-1"},
			map[string]any{"do_remote_decode": false, "do_remote_prefill": true, "transfer_id": "xfer-1", "remote_engine_id": "p/1",
				"remote_bootstrap_addr": "http://p-kv:5600"}
	case "vllm-offload":
		return map[string]any{"remote_decoder": map[string]any{"kv_request_id": "xfer-1"}},
			map[string]any{"remote_prefiller": map[string]any{"kv_request_id": "xfer-1", "remote_host": "p-kv", "remote_port": 5600}}
	default:
		return map[string]any{"do_remote_decode": true, "do_remote_prefill": false},
			map[string]any{"do_remote_decode": false, "do_remote_prefill": true, "remote_engine_id": "p/1", "remote_request_id": "a",
				"remote_host": "p-kv", "remote_port": 5600, "tp_size": 1, "pp_size": 1}
	}
}

// handOff is the two legs of one, right until a test spoils it.
type handOff struct {
	p, d       map[string]any // kv_transfer_params
	id, model  string         // of prefill's request, in decode's
	prefillEnd []uint32       // tokens that end prefill's answer
}

// What is missing, wrong, late or used twice makes the real engine hang, fail or die: so it does here. hangs is how
// long decode's answer fails to come, of an hour; status is its answer.
func TestVLLMIsStrictAboutHandOffs(t *testing.T) {
	const hangs = time.Hour
	prompt := ids(1, 100)
	source := func(field string, value any) func(h *handOff) { // of what vllm-offload's decode fetches
		return func(h *handOff) { h.d["remote_prefiller"].(map[string]any)[field] = value }
	}
	type row struct {
		connector, name string
		spoil           func(h *handOff)
		status          int // 0 for none within the hour
		after           time.Duration
		dead            string // the engine that has died of it
		pins            time.Duration
	}
	rows := []row{
		{"vllm-nixl", "no blocks", func(h *handOff) { h.d["remote_block_ids"] = []any{} }, 500, 0, "d", 30 * time.Second},
		{"vllm-nixl", "port of another type", func(h *handOff) { h.d["remote_port"] = "x" }, 500, 0, "d", 30 * time.Second},
		{"vllm-nixl-push", "prefill has another id", func(h *handOff) { h.id = "b" }, 0, hangs, "", 30 * time.Second},
		{"vllm-nixl-push", "prefill keeps nothing", func(h *handOff) { delete(h.p, "do_remote_decode") }, 0, hangs, "", 0},
		{"vllm-mooncake", "address without port", func(h *handOff) { h.d["remote_bootstrap_addr"] = "http://p-kv" }, 0, hangs, "",
			480 * time.Second},
		{"vllm-mooncake", "no transfer id in prefill", func(h *handOff) { delete(h.p, "transfer_id") }, 500, 480 * time.Second, "", 0},
		{"vllm-mooncake", "prefill ends by a stop token", func(h *handOff) { h.prefillEnd = expected(prompt, 0, 1) }, 500,
			480 * time.Second, "", 0},
		{"vllm-mooncake", "prefill runs as decode", func(h *handOff) { h.p["do_remote_decode"], h.p["do_remote_prefill"] = false, true },
			500, 0, "p", 0},
		{"vllm-mooncake", "decode runs as prefill", func(h *handOff) { h.d["do_remote_decode"], h.d["do_remote_prefill"] = true, false },
			500, 0, "d", 480 * time.Second},
		{"vllm-mooncake", "refused before the core", func(h *handOff) { h.model = "unknown" }, 404, 0, "", 0},
		{"vllm-offload", "no id in prefill", func(h *handOff) { delete(h.p, "remote_decoder") }, 200, 30 * time.Second, "", 0},
		{"vllm-offload", "another id in prefill", func(h *handOff) { h.p["remote_decoder"] = map[string]any{"kv_request_id": "xfer-2"} },
			200, 30 * time.Second, "", time.Minute},
		{"vllm-offload", "nothing listens", source("remote_port", 5601), 200, 30 * time.Second, "", time.Minute},
		{"vllm-offload", "no id", source("kv_request_id", ""), 200, 0, "", time.Minute},
		{"vllm-offload", "no host", source("remote_host", nil), 200, 0, "", time.Minute},
		{"vllm-offload", "no port", source("remote_port", nil), 200, 0, "", time.Minute},
		{"vllm-offload", "refused before the core", func(h *handOff) { h.model = "unknown" }, 404, 0, "", time.Minute},
		{"vllm-nixl", "refused before the core", func(h *handOff) { h.model = "unknown" }, 404, 0, "", 0},
		{"vllm-nixl-push", "refused before the core", func(h *handOff) { h.model = "unknown" }, 404, 0, "", 30 * time.Second},
	}
	nixl := []string{"remote_engine_id", "remote_request_id", "remote_host", "remote_port"}
	for connector, needs := range map[string][]string{"vllm-nixl": nixl, "vllm-nixl-push": nixl,
		"vllm-mooncake": {"transfer_id", "remote_engine_id", "remote_bootstrap_addr"}} {
		pins := 30 * time.Second
		if connector == "vllm-mooncake" {
			pins = 480 * time.Second
		}
		for _, field := range needs {
			rows = append(rows, row{connector, "no " + field, func(h *handOff) { delete(h.d, field) }, 0, hangs, "", pins})
		}
		rows = append(rows, row{connector, "another process", func(h *handOff) { h.d["remote_engine_id"] = "p/0" }, 500, 0, "", pins})
	}
	for _, tc := range rows {
		t.Run(tc.connector+", "+tc.name, func(t *testing.T) {
			pair(t, Config{Engine: "vllm", Connector: tc.connector}, func(b *bench, p, d *Server) {
				h := &handOff{id: "a", model: "tandem-sim"}
				h.p, h.d = legsOf(tc.connector)
				if tc.connector == "vllm-nixl" { // decode's leg is what prefill answers
					require.NoError(t, json.Unmarshal(b.prefill("p", prompt), &h.d))
				}
				tc.spoil(h)
				if tc.connector != "vllm-nixl" {
					<-b.call("p", time.Minute, h.id, body(prompt, 1, "stop_token_ids", h.prefillEnd, "kv_transfer_params", h.p))
				}
				prefilled := time.Now()
				r := <-b.call("d", hangs, "a", body(prompt, 5, "model", h.model, "kv_transfer_params", h.d))
				if r.status != tc.status || r.took < tc.after || tc.after < hangs && r.took > tc.after+time.Second {
					t.Errorf("decode answered %d after %v, want %d after %v: %+v", r.status, r.took, tc.status, tc.after, r.answer.Error)
				}
				for name, s := range map[string]*Server{"p": p, "d": d} {
					if status, _ := b.get(name, "/health"); (status != http.StatusOK) != (tc.dead == name) {
						t.Errorf("%s is healthy: %d", name, status)
					}
					if tc.dead != name {
						continue
					}
					if r := <-b.call(name, time.Minute, "later", body(ids(2, 10), 1)); r.status != http.StatusInternalServerError {
						t.Errorf("a dead engine answered %d", r.status)
					}
					assert.Empty(t, s.Books().Requests, "a dead engine runs")
				}
				if tc.after < tc.pins { // the hour of a hanging request is longer than any pin
					synctest.Wait()
					assert.Len(t, p.Books().Pinned, 1, "prefill does not hold the blocks: %+v", p.Books())
				}
				time.Sleep(time.Until(prefilled.Add(tc.pins + time.Second)))
				b.idle(p)
				switch {
				case tc.after == hangs: // its client has left, and the KV never comes
					if books := d.Books(); books.Blocks.Active == 0 || len(books.Requests) > 0 {
						t.Errorf("decode holds %+v, want the blocks of a request that has ended", books)
					}
				case tc.dead != "d":
					b.idle(d)
				}
			})
		})
	}
}

// A decode engine whose client leaves while it waits keeps the blocks until the KV has come, whether prefill is there
// or not.
func TestVLLMDecodeThatLeavesKeepsItsBlocks(t *testing.T) {
	for _, c := range []struct {
		connector string
		prefilled bool
		held      time.Duration
	}{
		{"vllm-mooncake", true, time.Minute}, {"vllm-nixl-push", true, time.Minute},
		{"vllm-mooncake", false, 480 * time.Second}, {"vllm-nixl-push", false, 24 * time.Hour},
	} {
		t.Run(fmt.Sprint(c.connector, c.prefilled), func(t *testing.T) {
			pair(t, Config{Engine: "vllm", Connector: c.connector}, func(b *bench, p, d *Server) {
				began := time.Now()
				pp, dp := legsOf(c.connector)
				if r := <-b.call("d", time.Second, "a", body(ids(1, 100), 5, "kv_transfer_params", dp)); r.status != 0 {
					t.Fatalf("%+v", r)
				}
				time.Sleep(time.Until(began.Add(c.held - time.Second)))
				if books := d.Books(); books.Blocks.Active != 7 || len(books.Requests) > 0 {
					t.Errorf("decode holds %+v, want the 7 blocks of a request that has ended", books)
				}
				if c.prefilled {
					if r := <-b.call("p", time.Minute, "a", body(ids(1, 100), 1, "kv_transfer_params", pp)); r.status != http.StatusOK {
						t.Fatalf("%+v", r)
					}
				}
				if time.Sleep(2 * time.Second); c.held < time.Hour {
					b.idle(d)
				}
				b.idle(p)
			})
		})
	}
}

// parts is the parts of a chat's answer so far.
type parts struct{ content, reasoning, tool, arguments, finish string }

func (s parts) with(m message, finish string) parts {
	s.content, s.reasoning, s.finish = s.content+m.Content, s.reasoning+m.Reasoning+m.Thought, s.finish+finish
	for _, t := range m.ToolCalls {
		s.tool, s.arguments = s.tool+t.Function.Name, s.arguments+t.Function.Arguments
	}
	return s
}

// A thought has its engine's name, a call's arguments are JSON, and a stream adds up to the whole answer. vLLM refuses
// an empty list of tools, and usage has no cached tokens unless switched on.
func TestChats(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.engine(Config{ID: "vllm", Engine: "vllm"})
		b.engine(Config{ID: "sglang", Engine: "sglang"})
		b.engine(Config{ID: "quiet", Engine: "vllm", NoCacheReport: true})
		tools := []any{map[string]any{"type": "function", "function": map[string]any{"name": "look"}}}
		named := map[string]any{"type": "function", "function": map[string]any{"name": "look"}}
		thinks := map[string]any{"enable_thinking": true}
		for name, c := range map[string]struct {
			more                   []any
			tool, thought, content bool
			vllm, sglang           string // finish_reason
		}{
			"plain":             {nil, false, false, true, "stop", "stop"},
			"a thought":         {[]any{"chat_template_kwargs", thinks}, false, true, true, "stop", "stop"},
			"a thought as text": {[]any{"chat_template_kwargs", thinks, "separate_reasoning", false}, false, false, true, "", "stop"},
			"a required call":   {[]any{"tools", tools, "tool_choice", "required"}, true, false, false, "tool_calls", "tool_calls"},
			"a named call":      {[]any{"tools", tools, "tool_choice", named}, true, false, false, "stop", "tool_calls"},
			"a thought and call": {[]any{"tools", tools, "tool_choice", "required", "chat_template_kwargs", thinks}, true, true, false,
				"tool_calls", "tool_calls"},
			"tools not called": {[]any{"tools", tools, "tool_choice", "auto"}, false, false, true, "stop", "stop"},
		} {
			for engine, finish := range map[string]string{"vllm": c.vllm, "sglang": c.sglang} {
				if finish == "" {
					continue
				}
				ask := chat(1000, append(c.more, "ignore_eos", false)...)
				status, w := b.ask(engine, chats, ask)
				require.Equal(t, http.StatusOK, status, "%s, %s %+v", engine, name, w.Error)
				m := w.Choices[0].Message
				got := parts{}.with(m, w.Choices[0].FinishReason)
				assert.Equal(t, []any{c.tool, c.thought, c.content, finish, c.tool, ""},
					[]any{got.tool == "look", got.reasoning != "", m.Content != "", got.finish, json.Valid([]byte(got.arguments)),
						map[string]string{"vllm": m.Thought, "sglang": m.Reasoning}[engine]}, "%s, %s: %+v", engine, name, got)
				ask["stream"] = true
				streamed := parts{}
				for _, e := range b.events(b.send(t.Context(), engine, chats, ask)) {
					for _, ch := range e.Choices {
						streamed = streamed.with(ch.Delta, ch.FinishReason)
					}
				}
				assert.Equal(t, got, streamed, "%s, %s, streamed", engine, name)
			}
		}
		if status, raw := b.post("quiet", chats, chat(3)); status != http.StatusOK ||
			!strings.Contains(string(raw), `"prompt_tokens_details":null`) {
			t.Errorf("%d %s", status, raw)
		}
		b.wants("vllm", chats, chat(3, "tools", []any{}), http.StatusBadRequest, `"tools"`)
	})
}

// The seed of block hashes is each process's own until 0.29.0, and one for all from then on.
func TestVLLMHashSeeds(t *testing.T) {
	seed := func(release, incarnation string) uint64 {
		return Config{Engine: "vllm", EngineVersion: release, Incarnation: incarnation}.withDefaults().HashSeed
	}
	if seed("0.28.0", "a") == seed("0.28.0", "b") || seed("0.29.0", "a") != 0 || seed("0.33.0", "b") != 0 {
		t.Errorf("seeds %x %x %x", seed("0.28.0", "a"), seed("0.28.0", "b"), seed("0.29.0", "a"))
	}
}

// A request that its model refuses releases nothing: its hand-off is looked at afterwards.
func TestVLLMReleasesOnlyWhatItHasParsed(t *testing.T) {
	pair(t, Config{Engine: "vllm", Connector: "vllm-nixl"}, func(b *bench, p, d *Server) {
		params := b.prefill("p", ids(1, 100))
		for path, status := range map[string]int{completions: http.StatusBadRequest, chats: http.StatusBadRequest} {
			b.wants("d", path, map[string]any{"model": "unknown", "max_tokens": 1, "kv_transfer_params": params}, status)
		}
		synctest.Wait()
		assert.Len(t, p.Books().Pinned, 1, "prefill's blocks were released: %+v", p.Books())
		b.wants("d", chats, map[string]any{"model": "unknown", "messages": []any{}, "kv_transfer_params": params}, http.StatusNotFound)
		b.idle(p)
	})
}
