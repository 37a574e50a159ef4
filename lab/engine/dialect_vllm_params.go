package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
)

// kvParams is kv_transfer_params as vLLM's connectors read and write it: the NixlConnector (nixl/pull_scheduler.py),
// the NixlPushConnector, the MooncakeConnector (mooncake/mooncake_connector.py) and the OffloadingConnector's p2p tier
// (v1/kv_offload/tiering/p2p/manager.py).
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
	Cached          *int      `json:"remote_prefill_cached_tokens,omitempty"`

	TransferID string `json:"transfer_id,omitempty"`           // Mooncake's
	Bootstrap  string `json:"remote_bootstrap_addr,omitempty"` // Mooncake's: http://HOST:PORT

	Decoder   peer `json:"remote_decoder,omitzero"`   // the p2p tier's
	Prefiller peer `json:"remote_prefiller,omitzero"` // the p2p tier's
}

// peer is the other engine for the p2p tier.
type peer struct {
	ID   string `json:"kv_request_id"`
	Host string `json:"remote_host"` // with the port, of a prefiller
	Port int    `json:"remote_port"`
}

// vllmConnector is one of vLLM's connectors, as --kv-transfer-config chooses it.
type vllmConnector interface {
	// prefill is how the blocks of a request with do_remote_decode are kept: not at all if keep is false.
	prefill(d *vllm, c *call, p *kvParams) (h Hold, keep bool)
	// decode is where the blocks of a request with do_remote_prefill are. missing names the absent params.
	decode(d *vllm, c *call, p *kvParams) (r Remote, missing []string)
	// params returns the params of a prefill's answer, nil for none.
	params(d *vllm, p *Pinned) *kvParams
	// enforcesRoles: a prefill engine dies of do_remote_prefill, and a decode engine of do_remote_decode.
	enforcesRoles() bool
	// frees: a rejected request frees its prefill's blocks.
	frees() bool
}

// vllmConnectors are the connectors by the gateway's names. That of a store takes no notice of params.
var vllmConnectors = map[string]vllmConnector{
	"lmcache":        nil,
	"vllm-multi":     nixlPull{},
	"vllm-nixl":      nixlPull{},
	"vllm-nixl-push": nixlPush{},
	"vllm-mooncake":  mooncake{},
	"vllm-offload":   offload{},
}

// nixlPull is NixlConnector: decode pulls named blocks under a lease.
type nixlPull struct{}

func (nixlPull) prefill(*vllm, *call, *kvParams) (Hold, bool) { return Hold{}, true }

func (nixlPull) decode(_ *vllm, _ *call, p *kvParams) (Remote, []string) {
	missing := p.unreachable()
	if p.blocks() == 0 {
		missing = append(missing, "remote_block_ids")
	}
	return Remote{
		EngineID: p.EngineID, RequestID: p.RequestID, Host: p.Host, Port: p.Port, BlockIDs: p.BlockIDs, Cached: p.Cached, Lingers: Endless,
	}, missing
}

func (nixlPull) params(d *vllm, p *Pinned) *kvParams {
	return &kvParams{
		DoRemotePrefill: true,
		BlockIDs:        [][]int32{p.BlockIDs},
		EngineID:        d.s.cfg.EngineID(), RequestID: p.RequestID,
		Host: d.s.cfg.TransferHost, Port: d.s.cfg.TransferPort,
		TPSize: 1, NumTokens: p.Tokens, TransferMode: "pull", Cached: &p.Cached,
	}
}

func (nixlPull) enforcesRoles() bool { return false }
func (nixlPull) frees() bool         { return true }

// nixlPush is NixlPushConnector: decode registers with prefill, which writes the blocks when it has them. Both know the
// request by its id without the engine's own random end, so that both legs must have the same X-Request-Id and path.
type nixlPush struct{}

func (nixlPush) prefill(d *vllm, c *call, _ *kvParams) (Hold, bool) {
	return Hold{Shared: c.id + "-0", Deaf: true}, true
}

func (nixlPush) decode(d *vllm, c *call, p *kvParams) (Remote, []string) {
	return Remote{
		EngineID: p.EngineID, RequestID: c.id + "-0", Host: p.Host, Port: p.Port, Cached: p.Cached,
		// The watchdog (push_registration_timeout) drops decode's registration; the blocks that the
		// request waits for will then never arrive.
		Shared: true, Registered: d.s.cfg.AbortTimeout, Lingers: Endless,
	}, p.unreachable()
}

func (nixlPush) params(d *vllm, p *Pinned) *kvParams {
	params := nixlPull{}.params(d, p)
	params.TransferMode = "push"
	return params
}

func (nixlPush) enforcesRoles() bool { return false }

// frees: an empty receive sends prefill nothing (start_load_kv in 0.32's nixl/push_worker.py).
func (nixlPush) frees() bool { return false }

// mooncake is MooncakeConnector: both legs have a transfer id, and decode asks
// prefill's bootstrap server for the engine.
type mooncake struct{}

func (mooncake) prefill(d *vllm, _ *call, p *kvParams) (Hold, bool) {
	// Without a transfer id it logs a line and keeps nothing.
	return Hold{Shared: p.TransferID, For: d.s.cfg.AbortTimeout, Deaf: true}, p.TransferID != ""
}

func (mooncake) decode(d *vllm, _ *call, p *kvParams) (r Remote, missing []string) {
	r = Remote{EngineID: p.EngineID, RequestID: p.TransferID, Shared: true, Patience: d.s.cfg.AbortTimeout, Lingers: Endless}
	u, err := url.Parse(p.Bootstrap)
	if err == nil {
		r.Host = u.Hostname()
		r.Port, err = strconv.Atoi(u.Port())
	}
	for _, f := range []struct {
		name string
		ok   bool
	}{{"transfer_id", p.TransferID != ""}, {"remote_engine_id", p.EngineID != ""}, {"remote_bootstrap_addr", err == nil && r.Host != ""}} {
		if !f.ok {
			missing = append(missing, f.name)
		}
	}
	return r, missing
}

func (mooncake) params(*vllm, *Pinned) *kvParams { return nil }

func (mooncake) enforcesRoles() bool { return true }

// frees: an empty pull has prefill's blocks freed (request_finished and _handle_failed_recv in 0.32's
// mooncake_connector.py); before, a request that was refused left them where they were (vLLM #50425).
func (mooncake) frees() bool { return true }

// offload is OffloadingConnector with a p2p tier: decode requests the blocks of an id that both legs have from prefill,
// and computes the rest. The real one holds them in the host's memory, prefill's and decode's; here it is the cache's.
type offload struct{ mooncake }

// offloadPatience is how long decode waits for the blocks (_LOAD_TIMEOUT_S of session/client.py).
const offloadPatience = 30 * time.Second

// read takes the keys that the tier has of its own. A source that lacks something is none (_parse_source).
func (offload) read(p *kvParams) {
	p.DoRemoteDecode = p.Decoder.ID != ""
	p.DoRemotePrefill = p.Prefiller.ID != "" && p.Prefiller.Host != "" && p.Prefiller.Port > 0
}

func (offload) prefill(d *vllm, _ *call, p *kvParams) (Hold, bool) {
	return Hold{Shared: p.Decoder.ID, For: d.s.cfg.AbortTimeout}, true
}

func (offload) decode(_ *vllm, _ *call, p *kvParams) (r Remote, missing []string) {
	from := p.Prefiller
	return Remote{RequestID: from.ID, Host: from.Host, Port: from.Port, Shared: true, Patience: offloadPatience, Recomputes: true}, nil
}

func (offload) enforcesRoles() bool { return false }
func (offload) frees() bool         { return false }

// query is Mooncake's bootstrap server: which engine has which rank.
func (d *vllm) query(w http.ResponseWriter, _ *http.Request) {
	type entry struct {
		EngineID   string                       `json:"engine_id"`
		WorkerAddr map[string]map[string]string `json:"worker_addr"`
	}
	at := "tcp://" + net.JoinHostPort(d.s.cfg.TransferHost, strconv.Itoa(d.s.cfg.TransferPort))
	writeJSON(w, http.StatusOK, map[string]entry{"0": {d.s.cfg.EngineID(), map[string]map[string]string{"0": {"0": at}}}})
}

// blocks counts the blocks that the params name.
func (p *kvParams) blocks() (n int) {
	for _, group := range p.BlockIDs {
		n += len(group)
	}
	return n
}

// unreachable names the absent params without which a NIXL producer cannot be reached.
func (p *kvParams) unreachable() (missing []string) {
	for _, f := range []struct {
		name string
		ok   bool
	}{
		{"remote_engine_id", p.EngineID != ""}, {"remote_request_id", p.RequestID != ""},
		{"remote_host", p.Host != ""}, {"remote_port", p.Port > 0 && p.Port < 1<<16},
	} {
		if !f.ok {
			missing = append(missing, f.name)
		}
	}
	return missing
}

// handOff reads kv_transfer_params. Where vLLM would hang or die, an engine that is
// not strict returns an error instead.
func (d *vllm) handOff(c *call, _ *http.Request, f *fields) *apiError {
	raw := f.get("kv_transfer_params")
	if raw == nil || d.connector == nil || f.flag("use_beam_search") { // whose parameters have no extra_args (to_beam_search_params of 0.32.0)
		return nil
	}
	required := "prompt"
	if c.endpoint == openai.Chat {
		required = "messages"
	}
	if d.strict && f.get(required) == nil {
		// The request's model refuses it before its hand-off is looked at: nothing is released.
		return newError(http.StatusBadRequest, required, "%s is required", required)
	}
	var p kvParams
	if err := json.Unmarshal(raw, &p); err != nil {
		if raw[0] != '{' {
			return newError(http.StatusBadRequest, "kv_transfer_params", "kv_transfer_params must be an object")
		}
		c.kills = "kv_transfer_params: " + err.Error()
		if d.strict {
			return nil
		}
		return newError(http.StatusInternalServerError, "", "invalid kv_transfer_params")
	}
	if o, is := d.connector.(offload); is {
		o.read(&p)
	}
	var wrong error
	switch {
	case p.DoRemotePrefill && p.DoRemoteDecode:
		wrong = errors.New("do_remote_prefill and do_remote_decode exclude each other")
	case p.DoRemotePrefill:
		wrong = d.takeOver(c, &p)
	case p.DoRemoteDecode:
		if d.connector.enforcesRoles() && d.s.cfg.Role == "decode" {
			c.kills = "assert not self.is_kv_consumer"
		}
		c.request.Hold, c.request.Pin = d.connector.prefill(d, c, &p)
	}
	if wrong != nil && !d.strict {
		return newError(http.StatusInternalServerError, "", "invalid kv_transfer_params: %v", wrong)
	}
	if c.kills != "" && !d.strict {
		return newError(http.StatusInternalServerError, "", "%s", c.kills)
	}
	return nil
}

// takeOver reads the hand-off of a decode leg.
func (d *vllm) takeOver(c *call, p *kvParams) error {
	if d.connector.enforcesRoles() && d.s.cfg.Role == "prefill" {
		c.kills = "assert not self.is_kv_producer"
		return nil
	}
	r, missing := d.connector.decode(d, c, p)
	switch {
	case missing == nil:
		if d.connector.frees() {
			c.remote = &r
		}
	case slices.Equal(missing, []string{"remote_block_ids"}):
		c.kills = "assert num_external_tokens == 0" // inside EngineCore
	default:
		// It logs "invalid KVTransferParams", queues no transfer, and still waits for one.
		r = Remote{Lost: true, Lingers: Endless}
	}
	c.request.Remote = &r
	if missing != nil {
		return fmt.Errorf("no %s", strings.Join(missing, ", "))
	}
	return nil
}

// handedOver is the params that a prefill answers with, nil for none.
func (d *vllm) handedOver(p *Pinned) json.RawMessage {
	if p == nil {
		return nil
	}
	params := d.connector.params(d, p)
	if params == nil {
		return nil
	}
	raw, _ := json.Marshal(params) // cannot fail: plain fields
	return raw
}
