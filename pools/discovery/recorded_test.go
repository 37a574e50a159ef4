package discovery

import (
	"encoding/json"
	"maps"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/pools"
)

// recordedInfo is what a running SGLang 0.5.23 answered to GET /server_info, by its mode.
func recordedInfo(t *testing.T, mode string) map[string]any {
	raw, err := os.ReadFile("../../../shared/vectors/sglang-0.5.23/server_info.json")
	if os.IsNotExist(err) {
		t.Skip("no recordings: ../shared/vectors is absent")
	}
	var all map[string]map[string]any
	if err == nil {
		err = json.Unmarshal(raw, &all)
	}
	require.NoError(t, err)
	info := all["unified"]
	maps.Copy(info, all[mode]) // a mode's recording has what differs
	return info
}

// What SGLang reports under other arguments is its recording with the fields that its own argument code gives then
// (shared/real/sglang/probes/dp.py; srt/arg_groups/parallel_hook.py, srt/runtime_context.py, srt/mem_cache/kv_cache_configurator.py).
func TestRecordedSGLangReports(t *testing.T) {
	states := func(most ...int) (all []map[string]any) {
		for _, n := range most {
			all = append(all, map[string]any{"effective_max_running_requests_per_dp": n})
		}
		return all
	}
	events := func(block, ranks int) map[string]any {
		return map[string]any{"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 9610, "topic": "kv-events",
			"block_size": block, "dp_size": ranks, "replay_endpoint_port_base": 9611}
	}
	for _, c := range []struct {
		name string
		mode string
		with map[string]any // nil takes the field out
		but  func(f *facts)
	}{
		{"as recorded", "unified", nil, func(*facts) {}},
		{"prefill", "prefill", nil, func(f *facts) { f.disaggregatesAs, f.bootstrapPort = "prefill", 9624 }},
		{"decode", "decode", nil, func(f *facts) { f.disaggregatesAs = "decode" }},
		{
			"--tp-size 4 --attn-dp-size 4", "unified",
			map[string]any{"attn_dp_size": 4, "enable_dp_attention": true, "chunked_prefill_size": 1024, "kv_events": events(16, 4),
				"internal_states": states(4, 4, 4, 4)},
			func(f *facts) { f.maxSeqs, f.maxBatchTokens, f.ranks = 4, 1024, 4 },
		},
		{
			"the same up to 0.5.20", "unified",
			map[string]any{"dp_size": 4, "attn_dp_size": nil, "enable_dp_attention": true, "kv_events": events(16, 4), "internal_states": nil},
			func(f *facts) { f.maxSeqs, f.ranks = 4, 4 },
		},
		{
			"--dp-size 2", "unified", map[string]any{"dp_size": 2, "kv_events": events(16, 2), "internal_states": states(16, 12)},
			func(f *facts) { f.maxSeqs, f.ranks = 12, 2 },
		},
		{
			"--dcp-size 2", "unified", map[string]any{"dcp_size": 2, "max_total_num_tokens": 32768, "kv_events": events(32, 1)},
			func(f *facts) { f.blockTokens, f.kvTokens = 32, 32768 },
		},
		{"--dcp-size 2 without events", "unified", map[string]any{"dcp_size": 2, "kv_events": nil}, func(f *facts) { f.blockTokens = 32 }},
		{
			"defaults", "unified", map[string]any{"max_running_requests": nil, "chunked_prefill_size": -1, "internal_states": states(2048)},
			func(f *facts) { f.maxSeqs, f.maxBatchTokens = 2048, 16384 },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			info := recordedInfo(t, c.mode)
			for name, v := range c.with {
				if info[name] = v; v == nil {
					delete(info, name)
				}
			}
			body, err := json.Marshal(info)
			require.NoError(t, err)
			var got facts
			require.True(t, got.readServerInfo(body), "not SGLang's")
			w, noEvents := got.record(pools.Worker{Role: pools.Both, Address: "http://127.0.0.1:1"}, 0)
			if published := info["kv_events"] != nil; noEvents != "" || published != (w.KVEvents == "zmq") || w.Page() != 16 {
				t.Errorf("events %q of %d ranks, %q; pages of %d", w.KVEvents, w.Ranks(), noEvents, w.Page())
			}
			want := facts{
				blockTokens: 16, pageTokens: 16, kvTokens: 16384, maxSeqs: 16, maxBatchTokens: 4096, disaggregatesAs: "null",
				contextTokens: 8192, version: "0.5.23", born: "42", kv: got.kv, ignoresSuffix: true,
			}
			c.but(&want)
			assert.Equal(t, want, got)
		})
	}
}

// Labels of vLLM's cache_config_info as v1/engine/core_client.py leaves them: num_gpu_blocks is added up over the ranks,
// kv_cache_size_tokens is one rank's, and both are in every rank's sample.
func TestVLLMCacheIsOneRanks(t *testing.T) {
	for _, c := range []struct {
		name, metrics              string
		blocks, tokens, kv, ranked int
	}{
		{"a rank", `vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0`, 1000, 16, 16000, 0},
		{
			"three, before 0.26", `vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="3000"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="3000"} 1.0
vllm:cache_config_info{block_size="16",engine="2",num_gpu_blocks="3000"} 1.0`, 1000, 16, 16000, 3,
		},
		{
			"two of a hybrid cache", `vllm:cache_config_info{block_size="16",effective_attention_block_size="16",engine="0",kv_cache_size_tokens="9600",num_gpu_blocks="2000"} 1.0
vllm:cache_config_info{block_size="16",effective_attention_block_size="16",engine="1",kv_cache_size_tokens="9600",num_gpu_blocks="2000"} 1.0`, 600, 16, 9600, 2,
		},
		{"decode context parallel", `vllm:cache_config_info{block_size="16",effective_attention_block_size="32",engine="0",kv_cache_size_tokens="32000",num_gpu_blocks="1000"} 1.0`, 1000, 32, 32000, 0},
		{"not known", `vllm:cache_config_info{block_size="16",effective_attention_block_size="None",engine="0",kv_cache_size_tokens="None",num_gpu_blocks="None"} 1.0`, 0, 16, 0, 0},
	} {
		var got facts
		want := (facts{blockTokens: c.tokens, kvTokens: c.kv, ranks: c.ranked})
		assert.True(t, got.readMetrics([]byte(c.metrics+"\n")) && got == want, "%s: %+v, want %+v", c.name, got, want)
		w, _ := got.record(pools.Worker{Role: pools.Both}, 0)
		assert.True(t, w.TotalKVBlocks == c.blocks, "%s: %d blocks, want %d", c.name, w.TotalKVBlocks, c.blocks)
	}
}
