package handoff

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
)

// NIXL is vLLM's NixlConnector in pull mode: prefill runs first, for one
// token, and answers with where its blocks lie; decode gets that answer and
// pulls them. Fields as in vLLM's
// tests/v1/kv_connector/nixl_integration/toy_proxy_server.py and
// distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py.
type NIXL struct{}

var _ Connector = NIXL{}

// LeaseDuration is how long vLLM holds a finished prefill's blocks before a
// decode worker's first heartbeat (kv_lease_duration).
const LeaseDuration = 30 * time.Second

// parting is how long prefill's answer is awaited after the client has left. An
// engine that still computes stops at once and closes; one that had just
// finished has sent where its blocks lie, and only that answer lets them be
// released before their lease ends.
const parting = 250 * time.Millisecond

// prefillParams asks the prefill engine to keep the blocks for a decode
// worker.
const prefillParams = `{"do_remote_decode":true,"do_remote_prefill":false,` +
	`"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

// answerFields ask for more of an answer than its text. They change nothing of the
// prompt.
var answerFields = []string{"logprobs", "top_logprobs", "return_token_ids", "return_tokens_as_token_ids", "echo"}

// Plan edits the body into one or two legs.
func (NIXL) Plan(b Body, a Attempt) (Plan, error) {
	decode, err := leg(b, a, a.D, a.DRank, a.DRetell, nil)
	if err != nil || a.P == nil {
		return Plan{Mode: Local, Decode: decode}, err
	}
	prefill, err := leg(b, a, a.P, a.PRank, a.PRetell, func(e *openai.Edit, tokens bool) {
		e.Set("stream", []byte("false"))
		e.Delete("stream_options")
		e.Set("max_tokens", []byte("1"))
		if hasField(b.Request, "max_completion_tokens") && !tokens {
			e.Set("max_completion_tokens", []byte("1"))
		}
		e.Delete("min_tokens")
		e.Delete("min_completion_tokens")
		// Blocks are kept only when prefill ends by length: its one token,
		// which decode computes again, must not end it as an end-of-text or
		// a stop string.
		e.Delete("stop")
		e.Delete("stop_token_ids")
		e.Set("ignore_eos", []byte("true"))
		if b.Request.ToolRequired {
			// One token is no tool call, and releases answer 400 or 500 to that.
			e.Delete("tool_choice")
		}
		for _, name := range answerFields { // of a token that is thrown away
			e.Delete(name)
		}
		e.Set("kv_transfer_params", []byte(prefillParams))
	})
	prefill.Kind, prefill.Stream, prefill.Parting = upstream.Prefill, false, parting
	return Plan{Mode: Relay, Prefill: prefill, Decode: decode}, err
}

// leg edits the body for one worker: as the client sent it less nvext, or with
// token ids in the prompt's place for a worker that takes tokens.
func leg(b Body, a Attempt, w *pools.Worker, rank int, again bool, more func(e *openai.Edit, tokens bool)) (upstream.Leg, error) {
	r := b.Request
	l := upstream.Leg{
		Kind: upstream.Decode, Worker: w.ID, Base: w.Address, Path: r.Endpoint.Path(), RequestID: a.ID,
		Rank: -1, TraceParent: a.TraceParent, TraceState: a.TraceState, Forward: a.Forward, Stream: r.Stream,
	}
	if w.Ranks() > 1 {
		l.Rank = rank
	}
	tokens := w.ModelInput == "tokens"
	e := r.Edit()
	switch {
	case tokens && r.Endpoint == openai.Chat:
		var err error
		if e, err = openai.CompletionFromChat(r, b.IDs, w.ContextLength); err != nil {
			return l, err
		}
		l.Path = openai.Completions.Path()
	case tokens && b.IDs == nil:
		return l, openai.BadRequest("prompt", "this model's workers take token ids, and the gateway cannot make them of this prompt: send the prompt as token ids")
	case tokens && r.Prompt.Kind != openai.PromptIDs:
		e.SetIDs("prompt", b.IDs)
	}
	if name, _ := r.Field("model"); string(name) != `"`+w.Model+`"` { // another name that it serves under
		e.SetString("model", w.Model)
	}
	e.Delete("nvext")
	if salt := r.Nvext.CacheSalt; salt != "" && !hasField(r, "cache_salt") {
		e.SetString("cache_salt", salt) // engines read only the body's
	}
	if r.Truncate < 0 && b.Kept < math.MaxInt {
		// The engine would reckon by max_tokens, which the legs have not in common.
		e.SetInt("truncate_prompt_tokens", int64(b.Kept))
	}
	if again {
		retell(e, r)
	}
	if more != nil {
		more(e, tokens)
	}
	l.Body = e.Segments()
	return l, nil
}

// retell asks the engine to announce the cached blocks of the prompt that it uses
// again (vllm_xargs.kv_cache_report_mode, vLLM 0.26.0; older ones take no notice),
// unless the client has said itself what it wants there.
func retell(e *openai.Edit, r *openai.Request) {
	const field, mode = "vllm_xargs", "kv_cache_report_mode"
	said, ok := r.Field(field)
	if !ok || string(said) == "null" {
		e.Set(field, []byte(`{"`+mode+`":"full"}`))
		return
	}
	if xargs, ok := openai.NewEdit(said); ok && !xargs.Has(mode) {
		xargs.SetString(mode, "full")
		e.Set(field, xargs.Bytes())
	}
}

// nixlParams are the fields of vLLM's hand-off object that the gateway reads.
// The rest passes as it came.
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

// blockCount is how many blocks remote_block_ids lists: one list for each group
// of KV caches, or, in releases before March 2026, one list. Decode runs the same
// release as prefill, so that either form passes as it came.
type blockCount int

// UnmarshalJSON counts the ids of either form, none in anything else.
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

// OnPrefill takes kv_transfer_params from prefill's answer. vLLM does not
// check them: with a field missing decode logs a line and waits forever, with
// no blocks it fails an assertion inside its core, so they are checked here.
func (NIXL) OnPrefill(a Attempt, answer []byte, now time.Time) (KV, error) {
	raw, ok := openai.KVParams(answer)
	if !ok {
		return KV{}, errors.New("prefill's answer has no kv_transfer_params")
	}
	var p nixlParams
	err := json.Unmarshal(raw, &p) // what it can read, it has read
	if err == nil {
		err = p.check()
	}
	if len(raw) > MaxKVBytes {
		err = fmt.Errorf("%d bytes, the limit is %d", len(raw), MaxKVBytes)
	}
	e, _ := openai.NewEdit(raw) // an object, as KVParams found it
	if loopback(p.Host) {
		// vLLM's side channel is "localhost" unless it is told otherwise,
		// which decode would look for on its own machine.
		e.SetString("remote_host", transferHost(a.P))
	}
	kv := KV{Producer: a.P.ID, Incarnation: a.P.Incarnation, Expires: now.Add(LeaseDuration)}
	switch {
	case err == nil:
		kv.Params = e.Bytes()
		return kv, nil
	case p.reachable() == nil:
		// Enough to tell prefill that its blocks are not needed, in the form
		// that a decode engine acts on. It reads none of the ids for that.
		e.Set("do_remote_prefill", []byte("true"))
		e.Set("do_remote_decode", []byte("false"))
		e.Set("remote_block_ids", []byte("[[0]]"))
		e.Delete("transfer_mode")
		if released := e.Bytes(); len(released) <= MaxKVBytes {
			kv.Params = released
		}
	}
	return kv, fmt.Errorf("kv_transfer_params: %w", err)
}

func (p *nixlParams) check() error {
	if err := p.reachable(); err != nil {
		return err
	}
	switch {
	case !p.DoRemotePrefill || p.DoRemoteDecode:
		return errors.New("do_remote_prefill is not true, or do_remote_decode is not false")
	case p.Blocks == 0:
		return errors.New("remote_block_ids lists no blocks")
	case p.TransferMode != nil && *p.TransferMode != "pull":
		return fmt.Errorf("transfer_mode is %.20q, not pull", *p.TransferMode)
	}
	return nil
}

// reachable says what is missing to reach prefill's engine about the request.
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

// Bind adds the metadata as the body's last member. The client's body cannot
// hold that key: the scan refuses it. The segments before it are shared with
// other legs and stay as they are.
func (NIXL) Bind(d *upstream.Leg, kv KV) {
	last := len(d.Body) - 1
	end := bytes.LastIndexByte(d.Body[last], '}')
	body := make(upstream.Body, 0, len(d.Body)+3)
	body = append(body, d.Body[:last]...)
	d.Body = append(body, d.Body[last][:end], kvMember, kv.Params, d.Body[last][end:])
}

// kvMember precedes the metadata in a decode leg's body.
var kvMember = []byte(`,"kv_transfer_params":`)

// releaseModel is a model name that no engine serves.
const releaseModel = "tandem-release"

// Abandon frees prefill's blocks through a decode worker: a request that
// carries the hand-off and fails validation after parsing, here for its model,
// makes the engine tell prefill at once that nobody will come
// (_with_kv_transfer_rejection_cleanup, vLLM #41269). Without it the blocks
// stay pinned for the whole lease.
func (NIXL) Abandon(a Attempt, kv KV) []upstream.Leg {
	d := upstream.Leg{
		Kind: upstream.Release, Worker: a.D.ID, Base: a.D.Address, Path: openai.Completions.Path(), RequestID: a.ID + "-release", Rank: -1,
		Body: upstream.Body{[]byte(`{"model":"` + releaseModel + `","prompt":"-","max_tokens":1}`)},
	}
	if a.D.Ranks() > 1 {
		d.Rank = a.DRank
	}
	NIXL{}.Bind(&d, kv)
	return []upstream.Leg{d}
}

// loopback reports whether host names the machine it is used on.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && (addr.IsLoopback() || addr.IsUnspecified())
}

// transferHost is where a worker's side channel is reached from outside.
func transferHost(w *pools.Worker) string {
	if host, _, err := net.SplitHostPort(w.Transfer); err == nil && host != "" {
		return host
	}
	if u, err := url.Parse(w.Address); err == nil {
		return u.Hostname()
	}
	return ""
}

func hasField(r *openai.Request, name string) bool {
	_, ok := r.Field(name)
	return ok
}
