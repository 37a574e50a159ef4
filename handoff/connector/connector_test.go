package connector

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// scan reads a chat, or a completion if there are no messages.
func scan(t testing.TB, body string) *openai.Request {
	t.Helper()
	endpoint := openai.Completions
	if strings.Contains(body, `"messages"`) {
		endpoint = openai.Chat
	}
	r, err := openai.Limits{}.Scan(endpoint, []byte(body))
	require.NoError(t, err, body)
	return r
}

// The smallest bodies that clients send, open for more fields.
const (
	hi     = `{"model":"m","prompt":"hi"`
	hiChat = `{"model":"m","messages":[{"role":"user","content":"hi"}]`
)

// pair is a round of two vLLM workers that take text or tokens.
func pair(input string) Round {
	r := roundOf("", nil, nil)
	r.P.ModelInput, r.D.ModelInput, r.TraceParent = input, input, "00-a-b-01"
	return r
}

// carrying is the round of a request.
func carrying(r Round, request *openai.Request, ids []uint32) Round {
	r.Request, r.IDs = request, ids
	return r
}

// planned is a connector's plan of a round.
func planned(t testing.TB, c Connector, r Round) Plan {
	t.Helper()
	plan, err := c.Plan(r)
	require.NoError(t, err)
	return plan
}

// took is what a connector makes of prefill's answer.
func took(t *testing.T, c Connector, r Round, answer string, now time.Time) prefill.KV {
	t.Helper()
	kv, whole, err := c.OnPrefill(r, prefill.ReadAnswer([]byte(answer)), now)
	require.NoError(t, err)
	require.False(t, whole)
	return kv
}

// sameMembers holds an object against another with the same members, each byte for byte, in any order.
func sameMembers(t *testing.T, want, got, what string) {
	t.Helper()
	w, _ := raw(t, []byte(want))
	g, _ := raw(t, []byte(got))
	assert.Equal(t, w, g, what)
}

func TestBetween(t *testing.T) {
	for _, c := range []struct {
		p, d string
		ok   bool
	}{{"vllm", "vllm", true}, {"sim", "vllm", true}, {"vllm", "sglang", false}, {"trtllm", "trtllm", true}, {"trtllm", "vllm", false}} {
		_, err := Between(&pools.Worker{Engine: c.p}, &pools.Worker{Engine: c.d})
		assert.Equal(t, c.ok, err == nil, "%s → %s: %v", c.p, c.d, err)
	}
	_, err := Between(&pools.Worker{Engine: "vllm", EngineVersion: "0.26.0"}, &pools.Worker{Engine: "vllm", EngineVersion: "0.27.1"})
	assert.Error(t, err, "two releases hand over")
	_, err = Between(&pools.Worker{Engine: "sglang", Connector: "vllm-nixl"}, &pools.Worker{Engine: "vllm"})
	assert.NoError(t, err, "the record's connector does not count")
	_, err = Between(&pools.Worker{Connector: "vllm-mooncake"}, &pools.Worker{Connector: "vllm-nixl-push"})
	assert.ErrorContains(t, err, "vllm-mooncake", "two connectors")
	assert.ErrorContains(t, Check(&pools.Worker{Engine: "vllm", Connector: "vllm-telepathy"}), "vllm-nixl", "an unknown connector")
}

// Pairs that could not exchange a block are refused where they are chosen, with the reason.
func TestPairs(t *testing.T) {
	vllm, trtllm := []string{"vllm-mooncake", "vllm-nixl-push", "vllm-offload"}, []string{"trtllm", "trtllm-gen-first"}
	for _, c := range []struct {
		name       string
		connectors []string
		change     func(p, d *pools.Worker)
		why        string
	}{
		{"alike", slices.Concat(vllm, trtllm, []string{"sglang"}), func(p, d *pools.Worker) {}, ""},
		{"decode's are not", vllm, func(p, d *pools.Worker) { d.Transfer, d.TransferIDs = "", nil }, ""},
		{"no endpoint", vllm[:1], func(p, d *pools.Worker) { p.Transfer = "" }, "transfer"},
		{"prefill's answer has its location", vllm[1:], func(p, d *pools.Worker) { p.Transfer, p.TransferIDs = "", nil }, ""},
		{"a rank unknown", vllm[:1], func(p, d *pools.Worker) { p.DataParallelRanks = 2 }, "1 of its 2 ranks"},
		{"block sizes", vllm, func(p, d *pools.Worker) { p.BlockSize = 32 }, "blocks of 32"},
		{"block sizes", trtllm, func(_, d *pools.Worker) { d.BlockSize = 64 }, "tokens_per_block"},
		{"another release", slices.Concat(vllm, trtllm), func(p, d *pools.Worker) { p.EngineVersion, d.EngineVersion = "1.2.0", "1.3.0" },
			"same release"},
		{"no endpoint", trtllm[:1], func(p, _ *pools.Worker) { p.TransferIDs = nil }, ""},
		{"no endpoint", trtllm[1:], func(p, _ *pools.Worker) { p.TransferIDs = nil }, "ctx_info_endpoint"},
		{"larger pages at decode", []string{"sglang"}, func(_, d *pools.Worker) { d.BlockSize = 64 }, "16"},
		{"larger pages at prefill", []string{"sglang"}, func(p, _ *pools.Worker) { p.BlockSize = 64 }, "64"},
		// --dcp-size 2 on decode alone makes its blocks two pages (srt/disaggregation/common/conn.py, requires_dcp_relayout).
		{"pages of one size in wider blocks", []string{"sglang"}, func(_, d *pools.Worker) { d.BlockSize, d.PageSize = 32, 16 }, ""},
		{"pages of two sizes", []string{"sglang"}, func(p, d *pools.Worker) { p.PageSize, d.BlockSize, d.PageSize = 1, 32, 16 }, "16"},
	} {
		for _, connector := range c.connectors {
			r := roundOf(connector, nil, nil)
			c.change(r.P, r.D)
			_, err := Between(r.P, r.D)
			assert.True(t, (err == nil) == (c.why == "") && (err == nil || strings.Contains(err.Error(), c.why)),
				"%s, %s: %v", connector, c.name, err)
		}
	}
	assert.False(t, MixesBlocks(roundOf("sglang", nil, nil).P), "pages of two sizes would be paired")
}

// A worker that schedules by priority gets the request's, and no other does: vLLM's with the sign turned, as there the lower is
// first; TensorRT-LLM's as a number from 0 to 1.
func TestPriorityOfLegs(t *testing.T) {
	vllm, sglang, trtllm := []string{"vllm-nixl", "lmcache"}, []string{"sglang"}, []string{"trtllm", "trtllm-gen-first"}
	for _, c := range []struct {
		connectors []string
		given      *int32
		p, d       bool
		want       string
	}{
		{vllm, nil, true, true, ""},
		{vllm, new(int32(7)), false, false, ""},
		{vllm, new(int32(7)), true, true, `"priority":-7`},
		{vllm, new(int32(math.MinInt32)), false, true, `"priority":2147483648`},
		{sglang, nil, true, true, ""},
		{sglang, new(int32(7)), true, false, `"priority":7`},
		{sglang, new(int32(7)), true, true, `"priority":7`},
		{sglang, new(int32(7)), false, false, ""},
		{trtllm, new(int32(0)), true, false, `"priority":0.5`},
		{trtllm, new(int32(1)), true, false, `"priority":0.75`},
		{trtllm, new(int32(-1)), true, false, `"priority":0.25`},
		{trtllm, new(int32(1 << 30)), true, false, `"priority":0.99999`},
		{trtllm, new(int32(math.MinInt32)), true, false, `"priority":0.0000000`},
	} {
		for _, name := range c.connectors {
			r := roundOf(name, scan(t, hi+"}"), nil)
			r.Priority, r.P.Prioritizes, r.D.Prioritizes = c.given, c.p, c.d
			plan := planned(t, connectors[name], r)
			for leg, schedules := range map[*http1.Leg]bool{&plan.Prefill: c.p, &plan.Decode: c.d} {
				assert.Equal(t, schedules && c.want != "", strings.Contains(text(*leg), "priority"), "%s: %s", name, text(*leg))
				assert.True(t, !schedules || strings.Contains(text(*leg), c.want), "%s: %s, want %s", name, text(*leg), c.want)
			}
		}
	}
}

// text is a leg's body.
func text(l http1.Leg) string { return string(l.Body.AppendTo(nil)) }
