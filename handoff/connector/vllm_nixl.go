package connector

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// NIXL is vLLM's NixlConnector in pull mode: prefill computes one token and answers with the location of its blocks;
// decode gets that answer and pulls them. Fields as in vLLM's
// tests/v1/kv_connector/nixl_integration/toy_proxy_server.py and
// distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py.
type NIXL struct{}

var _ Connector = NIXL{}

// LeaseDuration is how long vLLM holds a finished prefill's blocks before a decode worker's first heartbeat
// (kv_lease_duration).
const LeaseDuration = 30 * time.Second

// parting is how long prefill's answer is awaited after the client has left. A computing engine stops at once and
// closes; one that has just finished has sent the location of its blocks, without which they stay until their lease
// ends.
const parting = 250 * time.Millisecond

// prefillParams make the prefill engine keep the blocks for a decode worker.
var prefillParams = []byte(`{"do_remote_decode":true,"do_remote_prefill":false,` +
	`"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`)

// Pairs requires equal releases, as the compatibility hash does (nixl/metadata.py). NixlConnector converts between
// block sizes and tensor-parallel ranks.
func (NIXL) Pairs(p, d *pools.Worker) error { return sameRelease(p, d) }

// Plan edits the body into the two legs, or the decode leg of staged KV.
func (NIXL) Plan(r Round) (Plan, error) { return vllmPlan(r, prefillParams) }

// vllmPlan plans a prefill with params, and decode.
func vllmPlan(r Round, params []byte) (plan Plan, err error) {
	plan.Order = PrefillFirst
	if r.Slice > 0 {
		plan.Prefill = vllmSlice(r)
		return plan, nil
	}
	if !r.DecodeLater {
		plan.Decode, err = leg(r, pools.Decode, nil)
	}
	if err == nil && r.P != nil {
		plan.Prefill, err = vllmPrefill(r, params)
	}
	return plan, err
}

// DecodeLater: any decode engine can pull the blocks.
func (NIXL) DecodeLater() {}

// vllmSlice requests a completion of the prompt's first tokens, which leaves their blocks in the prefix cache. Their
// hashes depend on tokens, adapter and salt only.
func vllmSlice(r Round) http1.Leg {
	l := http1.Leg{
		Purpose: string(pools.Prefill), Worker: r.P.ID, Base: r.P.Address, Path: openai.Completions.Path(), RequestID: r.ID,
		Rank: -1, TraceParent: r.TraceParent, TraceState: r.TraceState, Forward: r.Forward,
	}
	if r.P.Ranks() > 1 {
		l.Rank = r.PRank
	}
	e, _ := openai.NewEdit([]byte("{}"))
	defer e.Release()
	e.SetString("model", ownName(r.P, r.Request.Adapter))
	e.SetIDs("prompt", r.IDs[:r.Slice])
	e.Set("max_tokens", jsonOne)
	e.Set("ignore_eos", jsonTrue)
	if r.Request.CacheSalt != "" {
		e.SetString("cache_salt", r.Request.CacheSalt)
	} else if salt, ok := r.Request.Field("cache_salt"); ok {
		e.Set("cache_salt", salt)
	}
	if r.Priority != nil && r.P.Prioritizes {
		e.SetInt("priority", -int64(*r.Priority))
	}
	l.Body, _ = e.AppendSegments(nil, nil)
	return l
}

// vllmPrefill edits the body for a vLLM worker that computes the prompt and one token, and keeps the blocks by
// params.
func vllmPrefill(r Round, params []byte) (http1.Leg, error) {
	prefill, err := leg(r, pools.Prefill, func(e *openai.Edit) {
		firstToken(e, r.Request)
		e.Set(paramsField, params)
	})
	prefill.Stream, prefill.Parting = false, parting
	return prefill, err
}

// nixlParams are the fields of vLLM's hand-off object that the gateway reads. The rest passes unchanged.
type nixlParams struct {
	DoRemotePrefill bool        `json:"do_remote_prefill"`
	DoRemoteDecode  bool        `json:"do_remote_decode"`
	Blocks          blockCount  `json:"remote_block_ids"`
	EngineID        string      `json:"remote_engine_id"`
	RequestID       string      `json:"remote_request_id"`
	Host            string      `json:"remote_host"`
	Port            json.Number `json:"remote_port"`
	TransferMode    *string     `json:"transfer_mode"`
}

// blockCount is the number of blocks in remote_block_ids: one list per group of KV caches or, before March 2026, one
// list. Decode runs the same release as prefill, so either form passes unchanged.
type blockCount int

// UnmarshalJSON counts the ids of either form, 0 for anything else.
func (n *blockCount) UnmarshalJSON(raw []byte) error {
	var groups [][]json.Number
	var flat []json.Number
	switch {
	case json.Unmarshal(raw, &groups) == nil:
		for _, group := range groups {
			*n += blockCount(len(group))
		}
	case json.Unmarshal(raw, &flat) == nil:
		*n = blockCount(len(flat))
	}
	return nil
}

// readNIXL reads a hand-off. Its error is of the first unreadable field; the others are set.
func readNIXL(raw []byte) (p nixlParams, err error) {
	if t, plain := openai.ReadTransfer(raw); plain {
		return nixlParams{
			t.DoRemotePrefill, t.DoRemoteDecode, blockCount(t.Blocks), t.EngineID, t.RequestID, t.Host,
			json.Number(t.Port), t.Mode,
		}, nil
	}
	return slowNIXL(raw)
}

// slowNIXL is readNIXL for any form.
func slowNIXL(raw []byte) (p nixlParams, err error) {
	err = json.Unmarshal(raw, &p)
	return p, err
}

// OnPrefill reads and checks kv_transfer_params from prefill's answer. vLLM does not check them: with a field missing
// decode waits forever, and without blocks it fails an assertion in its core.
func (NIXL) OnPrefill(r Round, answer prefill.Answer, now time.Time) (kv prefill.KV, whole bool, err error) {
	kv, err = onPrefill(r, answer, now, "pull")
	return kv, false, err
}

// onPrefill is OnPrefill for engines of a transfer mode.
func onPrefill(r Round, answer prefill.Answer, now time.Time, mode string) (kv prefill.KV, err error) {
	if r.Slice > 0 {
		return kv, nil
	}
	raw := answer.Info.KVParams
	if raw == nil || !utf8.Valid(raw) {
		return kv, errors.New("prefill's answer has no kv_transfer_params")
	}
	p, err := readNIXL(raw)
	if err == nil {
		err = p.check(mode)
	}
	if kv = nixlKV(r, raw, now); err == nil && !loopback(p.Host) && kv.Validate() == nil {
		return kv, nil
	}
	e, _ := openai.NewEdit(raw) // an object, as Inspect checked
	defer e.Release()
	if loopback(p.Host) {
		// vLLM's side channel defaults to "localhost", which decode would look up on its own machine.
		e.SetString("remote_host", transferHost(r.P))
	}
	kv.Params = nil
	if err == nil {
		kv.Params = e.Bytes()
		if err = kv.Validate(); err == nil {
			return kv, nil
		}
		kv.Params = nil
	}
	if p.reachable() == nil {
		// Enough to make prefill release its blocks, in the form that a decode engine acts on. It reads none of the
		// ids for that.
		e.Set("do_remote_prefill", jsonTrue)
		e.Set("do_remote_decode", jsonFalse)
		e.Set("remote_block_ids", []byte("[[0]]"))
		e.Delete("transfer_mode")
		if kv.Params = e.Bytes(); kv.Validate() != nil {
			kv.Params = nil
		}
	}
	return kv, fmt.Errorf("kv_transfer_params: %w", err)
}

// nixlKV returns the KV that the round's prefill worker keeps until its lease ends.
func nixlKV(r Round, params []byte, now time.Time) prefill.KV {
	return prefill.KV{Params: params, Producer: r.P.ID, Incarnation: r.P.Incarnation, Expires: now.Add(LeaseDuration)}
}

func (p *nixlParams) check(mode string) error {
	if err := p.reachable(); err != nil {
		return err
	}
	switch {
	case !p.DoRemotePrefill || p.DoRemoteDecode:
		return errors.New("do_remote_prefill is not true, or do_remote_decode is not false")
	case p.Blocks == 0:
		return errors.New("remote_block_ids lists no blocks")
	case p.TransferMode != nil && *p.TransferMode != mode:
		return fmt.Errorf("transfer_mode is %.20q, not %s", *p.TransferMode, mode)
	}
	return nil
}

// reachable reports what is missing to contact prefill's engine about the request.
func (p *nixlParams) reachable() error {
	port, portErr := strconv.Atoi(p.Port.String())
	switch {
	case p.EngineID == "":
		return errors.New("remote_engine_id is missing")
	case p.RequestID == "":
		return errors.New("remote_request_id is missing")
	case p.Host == "":
		return errors.New("remote_host is missing")
	case portErr != nil || port < 1 || port > 65535:
		return errors.New("remote_port is missing or no port")
	}
	return nil
}

// Bind adds the metadata to the body.
func (NIXL) Bind(d *http1.Leg, kv prefill.KV) { d.Body = withParams(d.Body, kv.Params) }

// releaseModel is a model name that no engine serves.
const releaseModel = "tandem-release"

// Release frees prefill's blocks through a decode worker: a request with the hand-off that fails validation after
// parsing, here by its model, makes the engine notify prefill at once (_with_kv_transfer_rejection_cleanup, vLLM
// #41269). Otherwise the blocks stay for the whole lease.
func (NIXL) Release(r Round, kv prefill.KV) []http1.Leg {
	d := vllmRelease(r)
	NIXL{}.Bind(&d, kv)
	return []http1.Leg{d}
}

// ReleasedByAny: any engine with a NixlConnector can notify the holder of the blocks.
func (NIXL) ReleasedByAny() {}

// vllmRelease returns a request to the round's decode worker that fails validation after parsing; the caller binds
// the hand-off. It has the endpoint's required fields, without which the hand-off would not be read.
func vllmRelease(r Round) http1.Leg {
	d := http1.Leg{
		Purpose: fault.Release, Worker: r.D.ID, Base: r.D.Address, Path: openai.Completions.Path(), RequestID: r.ID + "-release", Rank: -1,
		Body: http1.Body{[]byte(`{"model":"` + releaseModel + `","prompt":"-","max_tokens":1}`)},
	}
	if r.D.Ranks() > 1 {
		d.Rank = r.DRank
	}
	return d
}

// loopback reports whether host names the machine it is used on.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && (addr.IsLoopback() || addr.IsUnspecified())
}

// transferHost returns the host of a worker's side channel as seen from outside.
func transferHost(w *pools.Worker) string {
	if host, _, err := net.SplitHostPort(w.Transfer); err == nil && host != "" {
		return host
	}
	if u, err := url.Parse(w.Address); err == nil {
		return u.Hostname()
	}
	return ""
}
