package connector

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

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
func sent(t *testing.T, leg http1.Leg) (fields map[string]string, rest string) {
	t.Helper()
	body := text(leg)
	members, _ := raw(t, []byte(body))
	fields = map[string]string{}
	for _, name := range []string{"bootstrap_host", "bootstrap_port", "bootstrap_room", "rid", "routed_dp_rank", "disagg_prefill_dp_rank"} {
		if member, ok := members[name]; ok {
			fields[name] = strings.TrimPrefix(member, `"`+name+`":`)
			body = strings.Replace(body, ","+member, "", 1)
		}
	}
	return fields, body
}

// Both legs carry the client's body as it came, less what only a stream has in prefill's; the room and its address are
// the same, the ids are not.
func TestSGLangPlan(t *testing.T) {
	const sampling = `"seed":9007199254740993,"max_tokens":9,"min_tokens":3,"stop":["x"],"logprobs":true,"top_logprobs":2,"tool_choice":"required","tools":[{"type":"function","function":{"name":"f"}}],"x":{"b":1,"a":2}`
	for _, stream := range []string{"", `,"stream":true,"stream_options":{"include_usage":true}`} {
		body := hiChat + `,` + sampling + stream + `}`
		plan := planned(t, SGLang{}, carrying(rooms(nil), scan(t, body), nil))
		assert.True(t, plan.Order == Together && !plan.Prefill.Stream && plan.Decode.Stream == (stream != ""), "%+v", plan)
		p, rest := sent(t, plan.Prefill)
		sameMembers(t, hiChat+`,`+sampling+`,"stream":false}`, rest, "prefill")
		d, rest := sent(t, plan.Decode)
		assert.Equal(t, strings.Replace(body, `"include_usage":true}`, `"include_usage":true,"continuous_usage_stats":true}`, 1), rest,
			"decode gets")
		assert.Len(t, p["rid"], 34)
		assert.Len(t, d["rid"], 34)
		assert.NotEqual(t, p["rid"], d["rid"])
		p["rid"], d["rid"] = "", ""
		assert.Equal(t, map[string]string{"bootstrap_host": `"10.0.0.1"`, "bootstrap_port": "8998", "bootstrap_room": "9007199254740992",
			"rid": ""}, p)
		assert.Equal(t, p, d, "the legs cannot meet")
	}
}

// Decode is given an address at which it can reach prefill, always: it ends its process over a leg with a room and no bootstrap_host
// (srt/disaggregation/decode.py of 0.5.23, _bootstrap_addr). Decode alone has no plan.
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
		{"http://p", ":8998", `"p"`, "8998"},
		{"http://10.0.0.1:8000", "nonsense", `"10.0.0.1"`, "8998"},
	} {
		r := rooms(func(r *Round) { r.P.Address, r.P.Transfer = c.address, c.transfer })
		plan := planned(t, SGLang{}, carrying(r, scan(t, hi+"}"), nil))
		for _, leg := range []http1.Leg{plan.Prefill, plan.Decode} {
			got, _ := sent(t, leg)
			assert.Equal(t, []string{c.host, c.port}, []string{got["bootstrap_host"], got["bootstrap_port"]}, "%s with %q", c.address, c.transfer)
		}
	}
	_, err := SGLang{}.Plan(rooms(func(r *Round) { r.P, r.Request = nil, scan(t, hi+"}") }))
	assert.Error(t, err, "decode alone")
}

// Whatever balances prefill's ranks, they compute on the rank that was chosen: by its field, or by the room.
func TestSGLangRanks(t *testing.T) {
	request := scan(t, hi+"}")
	for _, id := range []int64{1 << 42, 1<<42 | 1, 9007199254740993, math.MaxInt64 - 1, math.MaxInt64} {
		for _, ranks := range []int{1, 2, 3, 8, 72, pools.MaxRanks} {
			for _, rank := range []int{0, ranks / 2, ranks - 1} {
				r := rooms(func(r *Round) {
					r.TransferID, r.P.DataParallelRanks, r.PRank, r.D.DataParallelRanks, r.DRank = id, ranks, rank, 2, 1
				})
				room := SGLang{}.room(r)
				assert.True(t, room >= 1 && int(room%int64(ranks)) == rank,
					"id %d: room %d of %d ranks is not on rank %d", id, room, ranks, rank)
				plan := planned(t, SGLang{}, carrying(r, request, nil))
				p, _ := sent(t, plan.Prefill)
				d, _ := sent(t, plan.Decode)
				chosen := fmt.Sprint(rank)
				if ranks == 1 {
					chosen = ""
				}
				got := []string{p["routed_dp_rank"], p["disagg_prefill_dp_rank"], d["routed_dp_rank"], d["disagg_prefill_dp_rank"]}
				assert.Equal(t, []string{chosen, chosen, "1", chosen}, got, "%d ranks", ranks)
				assert.True(t, plan.Decode.Rank == 1 && (plan.Prefill.Rank == rank) == (ranks > 1),
					"headers name the ranks %d and %d", plan.Prefill.Rank, plan.Decode.Rank)
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
			require.False(t, seen[id], "%s was used before", id)
			seen[id] = true
		}
		require.Len(t, SGLang{}.rid(r, pools.Prefill), 32, "an id of another length could begin another one")
	}
}

func TestSGLangOnPrefill(t *testing.T) {
	for answer, ok := range map[string]bool{
		`{"object":"chat.completion","choices":[{"message":{"content":"x"},"finish_reason":"length","matched_stop":null}],"usage":{"prompt_tokens":3}}`: true,
		`{"choices":[{"text":"","finish_reason":"stop","matched_stop":151645}]}`:                                                                        true, // decode reports that end
		`{"choices":[{"text":"","finish_reason":"abort"}]}`:                                                                                             false,
		`<html>`: false,
		``:       false,
	} {
		kv, whole, err := SGLang{}.OnPrefill(rooms(nil), prefill.ReadAnswer([]byte(answer)), time.Now())
		assert.True(t, (err == nil) == ok && !whole && kv.Params == nil, "%s: %v %v %v", answer, kv, whole, err)
	}
}

// A round that ends early is aborted at both workers, by the ids that its legs had and no others.
func TestSGLangRelease(t *testing.T) {
	r := carrying(rooms(nil), scan(t, hi+"}"), nil)
	plan := planned(t, SGLang{}, r)
	called := map[string]string{}
	for _, l := range (SGLang{}).Release(r, prefill.KV{}) {
		called[l.Base+l.Path] = text(l)
		assert.True(t, l.RequestID != r.ID && !l.Stream && l.Rank == -1, "%+v", l)
	}
	p, _ := sent(t, plan.Prefill)
	d, _ := sent(t, plan.Decode)
	assert.Equal(t, map[string]string{
		r.P.Address + "/abort_request": `{"rid":` + p["rid"] + `}`, r.D.Address + "/abort_request": `{"rid":` + d["rid"] + `}`,
	}, called)
}
