package engine

import (
	"encoding/json"
	"errors"
	"strings"
)

// kvParams is kv_transfer_params as the NIXL connector of vLLM reads and writes
// it (nixl/pull_scheduler.py).
type kvParams struct {
	DoRemotePrefill bool      `json:"do_remote_prefill"`
	DoRemoteDecode  bool      `json:"do_remote_decode"`
	BlockIDs        [][]int32 `json:"remote_block_ids"`
	EngineID        string    `json:"remote_engine_id"`
	RequestID       string    `json:"remote_request_id"`
	Host            string    `json:"remote_host"`
	Port            int       `json:"remote_port"`
	TPSize          int       `json:"tp_size"`
	NumTokens       int       `json:"remote_num_tokens"`
	ExpiryTime      *float64  `json:"remote_blocks_expiry_time"`
	TransferMode    string    `json:"transfer_mode"`
}

// handedOver is the params that a prefill answers with, nil for nothing pinned.
func (d *vllm) handedOver(p *Pinned) json.RawMessage {
	if p == nil {
		return nil
	}
	s := d.s
	raw, _ := json.Marshal(kvParams{ // cannot fail: plain fields
		DoRemotePrefill: true,
		BlockIDs:        [][]int32{p.BlockIDs},
		EngineID:        s.cfg.EngineID(), RequestID: p.RequestID,
		Host: s.cfg.TransferHost, Port: s.cfg.TransferPort,
		TPSize: 1, NumTokens: p.Tokens, TransferMode: "pull",
	})
	return raw
}

// remote is where the params say that the blocks are, nil when they do not ask
// to pull any. It names what is missing: vLLM only logs "invalid
// KVTransferParams" there and lets the request wait for ever, or, without block
// ids, fails an assertion that takes the whole engine down. No engine needs those
// two simulated.
func (p *kvParams) remote() (*Remote, error) {
	if !p.DoRemotePrefill {
		return nil, nil
	}
	if p.DoRemoteDecode {
		return nil, errors.New("invalid kv_transfer_params: do_remote_prefill and do_remote_decode exclude each other")
	}
	blocks := 0
	for _, group := range p.BlockIDs {
		blocks += len(group)
	}
	var missing []string
	for _, f := range []struct {
		name string
		ok   bool
	}{
		{"remote_engine_id", p.EngineID != ""}, {"remote_request_id", p.RequestID != ""},
		{"remote_host", p.Host != ""}, {"remote_port", p.Port > 0 && p.Port < 1<<16}, {"remote_block_ids", blocks > 0},
	} {
		if !f.ok {
			missing = append(missing, f.name)
		}
	}
	if missing != nil {
		return nil, errors.New("invalid kv_transfer_params: no " + strings.Join(missing, ", "))
	}
	return &Remote{EngineID: p.EngineID, RequestID: p.RequestID, Host: p.Host, Port: p.Port, BlockIDs: p.BlockIDs}, nil
}
