package connector

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// TestSGLangDecodeNamesPrefill: decode ends its process over a leg with a room and no bootstrap_host (srt/disaggregation/decode.py
// of 0.5.23, _bootstrap_addr). No plan has one, and decode alone has no plan.
func TestSGLangDecodeNamesPrefill(t *testing.T) {
	r, err := openai.Limits{}.Scan(openai.Completions, []byte(`{"model":"m","prompt":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	round := roundOf("sglang", r, nil)
	for _, address := range []string{"http://10.0.0.1:8000", "http://[fd00::1]:8000", "http://p"} {
		for _, transfer := range []string{"", ":8998", "10.0.0.1:8998", "127.0.0.1:8998", "[::1]:8998", "nonsense"} {
			round.P.Address, round.P.Transfer = address, transfer
			plan, err := SGLang{}.Plan(round)
			if err != nil {
				t.Fatal(err)
			}
			var leg struct {
				Host string `json:"bootstrap_host"`
			}
			if err := json.Unmarshal(plan.Decode.Body.AppendTo(nil), &leg); err != nil || leg.Host == "" {
				t.Errorf("%s, %q: %v, %q", address, transfer, err, leg.Host)
			}
		}
	}
	round.P = nil
	if plan, err := (SGLang{}).Plan(round); err == nil {
		t.Errorf("decode alone: %s", plan.Decode.Body.AppendTo(nil))
	}
}

// rooms is a round between two SGLang workers.
func rooms(change func(r *Round)) Round {
	r := pair("text")
	r.P.Engine, r.D.Engine = "sglang", "sglang"
	r.P.Transfer, r.D.Transfer = "10.0.0.1:8998", ""
	r.TransferID = 9007199254740993 // no float has it
	if change != nil {
		change(&r)
	}
	return r
}

// sent is a leg's fields that a hand-off sets, with the rest of its body.
func sent(t *testing.T, leg upstream.Leg) (fields map[string]string, rest string) {
	t.Helper()
	body := string(leg.Body.AppendTo(nil))
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(body), &members); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	fields = map[string]string{}
	for _, name := range []string{"bootstrap_host", "bootstrap_port", "bootstrap_room", "rid", "routed_dp_rank", "disagg_prefill_dp_rank"} {
		if raw, ok := members[name]; ok {
			fields[name] = string(raw)
			member := `,"` + name + `":` + string(raw)
			if strings.Count(body, member) != 1 {
				t.Errorf("%s is not there once: %s", name, body)
			}
			body = strings.Replace(body, member, "", 1)
		}
	}
	return fields, body
}

// Both legs carry the client's body as it came, less what only a stream has in prefill's; the room and its address are
// the same, the ids are not.
func TestSGLangPlan(t *testing.T) {
	const sampling = `"seed":9007199254740993,"max_tokens":9,"min_tokens":3,"stop":["x"],"logprobs":true,"top_logprobs":2,"tool_choice":"required","tools":[{"type":"function","function":{"name":"f"}}],"x":{"b":1,"a":2}`
	for _, stream := range []string{"", `,"stream":true,"stream_options":{"include_usage":true}`} {
		body := `{"model":"m","messages":[{"role":"user","content":"hi"}],` + sampling + stream + `}`
		plan, err := SGLang{}.Plan(carrying(rooms(nil), scan(t, openai.Chat, body), nil))
		if err != nil {
			t.Fatal(err)
		}
		if plan.Order != Together || plan.Prefill.Stream || plan.Decode.Stream != (stream != "") {
			t.Errorf("%+v", plan)
		}
		p, rest := sent(t, plan.Prefill)
		if want := strings.TrimSuffix(strings.Replace(body, stream, "", 1), "}") + `,"stream":false}`; stream == "" && rest != want {
			t.Errorf("prefill gets %s\nwant %s", rest, want)
		}
		if !strings.Contains(rest, sampling) || !strings.Contains(rest, `"stream":false`) || strings.Contains(rest, "stream_options") {
			t.Errorf("prefill gets %s", rest)
		}
		d, rest := sent(t, plan.Decode)
		if want := strings.Replace(body, `"include_usage":true}`, `"include_usage":true,"continuous_usage_stats":true}`, 1); rest != want {
			t.Errorf("decode gets %s\nwant %s", rest, want)
		}
		if p["bootstrap_host"] != `"10.0.0.1"` || p["bootstrap_port"] != "8998" || p["bootstrap_room"] != "9007199254740992" || len(p["rid"]) != 34 {
			t.Errorf("prefill's hand-off: %v", p)
		}
		if d["rid"] == p["rid"] || len(d["rid"]) != 34 {
			t.Errorf("ids %s and %s", p["rid"], d["rid"])
		}
		delete(p, "rid")
		delete(d, "rid")
		if fmt.Sprint(p) != fmt.Sprint(d) {
			t.Errorf("the legs cannot meet: %v and %v", p, d)
		}
	}
	if _, err := (SGLang{}).Plan(carrying(rooms(func(r *Round) { r.P = nil }), scan(t, openai.Chat, `{"model":"m","messages":[{"role":"user","content":"hi"}]}`), nil)); err == nil {
		t.Error("decode alone was planned")
	}
}

// A request's priority goes to the workers that schedule by it, and to no others.
func TestSGLangPriority(t *testing.T) {
	seven := int32(7)
	for _, c := range []struct {
		given *int32
		p, d  bool
	}{{&seven, true, true}, {&seven, true, false}, {&seven, false, false}, {nil, true, true}} {
		r := rooms(func(r *Round) { r.Priority, r.P.Prioritizes, r.D.Prioritizes = c.given, c.p, c.d })
		plan, err := SGLang{}.Plan(carrying(r, scan(t, openai.Completions, `{"model":"m","prompt":"hi"}`), nil))
		if err != nil {
			t.Fatal(err)
		}
		for leg, want := range map[*upstream.Leg]bool{&plan.Prefill: c.given != nil && c.p, &plan.Decode: c.given != nil && c.d} {
			if got := strings.Contains(string(leg.Body.AppendTo(nil)), `"priority":7`); got != want {
				t.Errorf("%+v: %s", c, leg.Body.AppendTo(nil))
			}
		}
	}
}

// Decode is given an address at which it can reach prefill.
func TestSGLangBootstrapAddress(t *testing.T) {
	for _, c := range []struct{ address, transfer, host, port string }{
		{"http://10.0.0.1:8000", "10.0.0.9:9001", `"10.0.0.9"`, "9001"},
		{"http://10.0.0.1:8000", "", `"10.0.0.1"`, "8998"},
		{"http://10.0.0.1:8000", "127.0.0.1:9001", `"10.0.0.1"`, "9001"},
		{"http://10.0.0.1:8000", "localhost:9001", `"10.0.0.1"`, "9001"},
		{"http://10.0.0.1:8000", "0.0.0.0:9001", `"10.0.0.1"`, "9001"},
		{"http://127.0.0.1:8000", "127.0.0.1:9001", `"127.0.0.1"`, "9001"},
		{"http://[fd00::1]:8000", "[::]:9001", `"[fd00::1]"`, "9001"}, // releases put host and port together as they come
		{"http://[fd00::1]:8000", "", `"[fd00::1]"`, "8998"},
		{"http://p1.example:8000", "[fd00::2]:9001", `"[fd00::2]"`, "9001"},
		{"https://p1.example", "", `"p1.example"`, "8998"},
	} {
		r := rooms(func(r *Round) { r.P.Address, r.P.Transfer = c.address, c.transfer })
		plan, err := SGLang{}.Plan(carrying(r, scan(t, openai.Completions, `{"model":"m","prompt":"hi"}`), nil))
		if err != nil {
			t.Fatal(err)
		}
		if p, _ := sent(t, plan.Prefill); p["bootstrap_host"] != c.host || p["bootstrap_port"] != c.port {
			t.Errorf("%s with %q: %v", c.address, c.transfer, p)
		}
	}
}

// Whatever balances prefill's ranks, they compute on the rank that was chosen: by its field, or by the room.
func TestSGLangRanks(t *testing.T) {
	for _, id := range []int64{1 << 42, 1<<42 | 1, 9007199254740993, math.MaxInt64 - 1, math.MaxInt64} {
		for _, ranks := range []int{1, 2, 3, 8, 72, pools.MaxRanks} {
			for _, rank := range []int{0, ranks / 2, ranks - 1} {
				r := rooms(func(r *Round) {
					r.TransferID, r.P.DataParallelRanks, r.PRank, r.D.DataParallelRanks, r.DRank = id, ranks, rank, 2, 1
				})
				room := SGLang{}.room(r)
				if room < 1 || int(room%int64(ranks)) != rank {
					t.Errorf("id %d: room %d of %d ranks is not on rank %d", id, room, ranks, rank)
				}
				plan, err := SGLang{}.Plan(carrying(r, scan(t, openai.Completions, `{"model":"m","prompt":"hi"}`), nil))
				if err != nil {
					t.Fatal(err)
				}
				p, _ := sent(t, plan.Prefill)
				d, _ := sent(t, plan.Decode)
				wantP, wantD := map[string]string{"routed_dp_rank": fmt.Sprint(rank), "disagg_prefill_dp_rank": fmt.Sprint(rank)}, map[string]string{"routed_dp_rank": "1", "disagg_prefill_dp_rank": fmt.Sprint(rank)}
				if ranks == 1 {
					wantP["routed_dp_rank"], wantP["disagg_prefill_dp_rank"], wantD["disagg_prefill_dp_rank"] = "", "", ""
				}
				for name := range wantP {
					if p[name] != wantP[name] || d[name] != wantD[name] {
						t.Errorf("%d ranks: %s is %q and %q, want %q and %q", ranks, name, p[name], d[name], wantP[name], wantD[name])
					}
				}
				if plan.Decode.Rank != 1 || (plan.Prefill.Rank == rank) != (ranks > 1) {
					t.Errorf("headers name the ranks %d and %d", plan.Prefill.Rank, plan.Decode.Rank)
				}
			}
		}
	}
}

// Each attempt has a room and ids of its own; no id begins another, for aborts go by the beginning.
func TestSGLangIDsAreNeverUsedAgain(t *testing.T) {
	seen := map[string]bool{}
	for n := range 2000 {
		r := rooms(func(r *Round) { r.TransferID += int64(n) * 2; r.P.DataParallelRanks = 1 })
		for _, id := range []string{fmt.Sprint(SGLang{}.room(r)), SGLang{}.rid(r, pools.Prefill), SGLang{}.rid(r, pools.Decode)} {
			if seen[id] {
				t.Fatalf("%s was used before", id)
			}
			seen[id] = true
		}
		if len(SGLang{}.rid(r, pools.Prefill)) != 32 {
			t.Fatal("an id of another length could begin another one")
		}
	}
}

func TestSGLangOnPrefill(t *testing.T) {
	for _, c := range []struct {
		answer string
		ok     bool
	}{
		{`{"object":"chat.completion","choices":[{"message":{"content":"x"},"finish_reason":"length","matched_stop":null}],"usage":{"prompt_tokens":3}}`, true},
		{`{"choices":[{"text":"","finish_reason":"stop","matched_stop":151645}]}`, true}, // decode reports that end
		{`{"choices":[{"text":"","finish_reason":"abort"}]}`, false},
		{`<html>`, false},
		{``, false},
	} {
		kv, whole, err := SGLang{}.OnPrefill(rooms(nil), prefill.ReadAnswer([]byte(c.answer)), time.Now())
		if (err == nil) != c.ok || whole || kv.Params != nil {
			t.Errorf("%s: %v %v %v", c.answer, kv, whole, err)
		}
	}
}

// A round that ends early is aborted at both workers, by the ids that its legs had and no others.
func TestSGLangAbandon(t *testing.T) {
	r := carrying(rooms(nil), scan(t, openai.Completions, `{"model":"m","prompt":"hi"}`), nil)
	plan, err := SGLang{}.Plan(r)
	if err != nil {
		t.Fatal(err)
	}
	called := map[string]string{}
	for _, l := range (SGLang{}).Abandon(r, prefill.KV{}) {
		called[l.Base+l.Path] = string(l.Body.AppendTo(nil))
		if l.RequestID == r.ID || l.Stream || l.Rank != -1 {
			t.Errorf("%+v", l)
		}
	}
	p, _ := sent(t, plan.Prefill)
	d, _ := sent(t, plan.Decode)
	want := map[string]string{r.P.Address + "/abort_request": `{"rid":` + p["rid"] + `}`, r.D.Address + "/abort_request": `{"rid":` + d["rid"] + `}`}
	if fmt.Sprint(called) != fmt.Sprint(want) {
		t.Errorf("called %v, want %v", called, want)
	}
}

func TestSGLangPairs(t *testing.T) {
	for _, c := range []struct {
		p, d int
		ok   bool
	}{{16, 16, true}, {64, 64, true}, {16, 64, false}, {64, 16, false}} {
		r := rooms(func(r *Round) { r.P.BlockSize, r.D.BlockSize = c.p, c.d })
		if err := (SGLang{}).Pairs(r.P, r.D); (err == nil) != c.ok {
			t.Errorf("pages of %d and %d: %v", c.p, c.d, err)
		}
	}
	// --dcp-size 2 on decode alone makes its blocks two pages (srt/disaggregation/common/conn.py, requires_dcp_relayout).
	r := rooms(func(r *Round) { r.P.BlockSize, r.D.BlockSize, r.D.PageSize = 16, 32, 16 })
	if err := (SGLang{}).Pairs(r.P, r.D); err != nil {
		t.Errorf("pages of one size in wider blocks: %v", err)
	}
	if r.P.PageSize = 1; (SGLang{}).Pairs(r.P, r.D) == nil {
		t.Error("pages of two sizes in blocks of any are paired")
	}
	w := rooms(nil).P
	w.BlockSize = 16
	if MixesBlocks(w) {
		t.Error("pages of two sizes would be paired")
	}
}
