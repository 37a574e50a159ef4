package connector

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/prefill"
)

// mooncakePair is a round of two vLLM workers. Prefill has two ranks; the second computes.
func mooncakePair() Round {
	r := pair("text")
	r.TransferID, r.PRank = 4611686018427387905, 1
	r.P.DataParallelRanks, r.P.TransferIDs = 2, []string{"e_dp0", "e_dp1"}
	r.P.Transfer = "10.0.0.1:8998"
	return r
}

// pushed is what a prefill engine of NixlPushConnector answers (vLLM 0.32).
const pushed = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4,5]],"remote_engine_id":"p-1",` +
	`"remote_request_id":"cmpl-0123456789abcdef-1-0-87ebc034","remote_host":"10.0.0.9","remote_port":5600,"tp_size":1,"dcp_size":1,"pp_size":1,` +
	`"remote_num_tokens":600,"transfer_mode":"push"}`

// What prefill and decode carry so that they find each other, byte for byte: decode's leg has nothing of it before prefill has
// answered. A retry of decode is known to prefill's engine as the round that prefilled.
func TestVLLMHandOffs(t *testing.T) {
	const xfer, request = `"transfer_id":"xfer-4611686018427387905"`, `"kv_request_id":"xfer-4611686018427387905"`
	const pulls = `{"do_remote_decode":false,"do_remote_prefill":true,` + xfer +
		`,"remote_engine_id":"e_dp1","remote_bootstrap_addr":"http://10.0.0.1:8998"}`
	for name, c := range map[string]struct {
		connector                Connector
		prefill, answers, decode string
		lease                    time.Duration
		id                       string
		released                 []string
	}{
		"mooncake": {
			Mooncake{}, `{"do_remote_decode":true,"do_remote_prefill":false,` + xfer + `}`, `null`, pulls, 480 * time.Second, "0123456789abcdef-2",
			[]string{`release at d2: {"model":"tandem-release","prompt":"-","max_tokens":1,"kv_transfer_params":` + pulls + `}`},
		},
		"pull": {
			NIXL{}, string(prefillParams), goodParams, goodParams, 30 * time.Second, "0123456789abcdef-2",
			[]string{`release at d2: {"model":"tandem-release","prompt":"-","max_tokens":1,"kv_transfer_params":` + goodParams + `}`},
		},
		"offload": { // the forms of https://docs.vllm.ai/en/v0.32.0/features/kv_offloading_usage/, of the rank's own port
			Offload{}, `{"remote_decoder":{` + request + `}}`, `null`, `{"remote_prefiller":{` + request +
				`,"remote_host":"10.0.0.1","remote_port":8999}}`,
			time.Minute, "0123456789abcdef-2", nil,
		},
		"push": {NIXLPush{}, string(prefillParams), pushed, pushed, 30 * time.Second, "0123456789abcdef-1", nil},
	} {
		r := carrying(mooncakePair(), scan(t, hi+`,"stream":true,"max_tokens":9}`), nil)
		plan := planned(t, c.connector, r)
		assert.Equal(t, PrefillFirst, plan.Order)
		assert.Equal(t, hi+`,"stream":false,"max_tokens":1,"ignore_eos":true,"kv_transfer_params":`+c.prefill+`}`, text(plan.Prefill), name)
		assert.Equal(t, hi+`,"stream":true,"max_tokens":9}`, text(plan.Decode), name)
		now := time.Unix(1000, 0)
		kv := took(t, c.connector, r, `{"choices":[],"kv_transfer_params":`+c.answers+`}`, now)
		require.True(t, kv.Validate() == nil && kv.Producer == r.P.ID && kv.Expires.Equal(now.Add(c.lease)), "%s: %+v", name, kv)
		again := r
		again.P, again.ID = nil, "0123456789abcdef-2"
		retry := planned(t, c.connector, again)
		assert.Nil(t, retry.Prefill.Body, name)
		c.connector.Bind(&retry.Decode, kv)
		assert.Equal(t, hi+`,"stream":true,"max_tokens":9,"kv_transfer_params":`+c.decode+`}`, text(retry.Decode), name)
		assert.Equal(t, c.id, retry.Decode.RequestID, name)
		var released []string
		for _, l := range c.connector.Release(r, kv) {
			released = append(released, l.Purpose+" at "+l.Worker+": "+text(l))
			assert.True(t, l.Base == r.D.Address && l.RequestID != r.ID && !l.Stream, "%s: %+v", name, l)
		}
		assert.Equal(t, c.released, released, name)
	}
}

// An answer that hands over otherwise than the engines' connector does, or is none, reaches no decode engine.
func TestVLLMHandOffsThatAreNone(t *testing.T) {
	r := mooncakePair()
	for name, c := range map[string]struct {
		connector Connector
		answer    string
	}{
		"pull's answer to push": {NIXLPush{}, `{"kv_transfer_params":` + strings.Replace(pushed, `"push"`, `"pull"`, 1) + `}`},
		"push's answer to pull": {NIXL{}, `{"kv_transfer_params":` + pushed + `}`},
		"push without blocks":   {NIXLPush{}, `{"kv_transfer_params":` + strings.Replace(pushed, `[[1,2,3,4,5]]`, `[]`, 1) + `}`},
		"push without params":   {NIXLPush{}, `{"choices":[]}`},
		"mooncake's abort":      {Mooncake{}, `{"choices":[{"index":0,"text":"","finish_reason":"abort"}]}`},
		"mooncake's nothing":    {Mooncake{}, ``},
		"offload's abort":       {Offload{}, `{"choices":[{"index":0,"text":"","finish_reason":"abort"}]}`},
	} {
		_, _, err := c.connector.OnPrefill(r, prefill.ReadAnswer([]byte(c.answer)), time.Now())
		assert.Error(t, err, name)
	}
	// Decode's engine reaches prefill's where the gateway does.
	local := strings.Replace(pushed, "10.0.0.9", "localhost", 1)
	kv := took(t, NIXLPush{}, r, `{"kv_transfer_params":`+local+`}`, time.Now())
	assert.Contains(t, string(kv.Params), `"remote_host":"10.0.0.1"`)
	r.P.Address, r.P.Transfer = "http://10.0.0.5:8000", "localhost:9000"
	assert.Contains(t, string(took(t, Mooncake{}, r, `{"choices":[]}`, time.Now()).Params), `"http://10.0.0.5:9000"`)
	r.P.Transfer = ""
	assert.Contains(t, string(took(t, Offload{}, r, `{"choices":[]}`, time.Now()).Params), `"remote_host":"10.0.0.5","remote_port":5711}`)
}

// Through a store nothing is handed over: prefill's leg is one token, decode's is the client's, and nothing is to be freed.
func TestLMCachePlan(t *testing.T) {
	r := carrying(pair("text"), scan(t, hi+`,"stream":true,"max_tokens":9,"stop":["x"]}`), nil)
	plan := planned(t, LMCache{}, r)
	assert.Equal(t, PrefillFirst, plan.Order)
	assert.Equal(t, hi+`,"stream":false,"max_tokens":1,"ignore_eos":true}`, text(plan.Prefill))
	assert.Equal(t, hi+`,"stream":true,"max_tokens":9,"stop":["x"]}`, text(plan.Decode))
	now := time.Unix(1000, 0)
	kv := took(t, LMCache{}, r, `{}`, now)
	assert.True(t, kv.Producer == "p1" && kv.Bindable(now.Add(time.Minute)) && len(LMCache{}.Release(r, kv)) == 0, "%+v", kv)
	r.P = nil
	assert.Nil(t, planned(t, LMCache{}, r).Prefill.Body, "of stored KV")
}
