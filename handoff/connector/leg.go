package connector

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// leg edits the body for the round's worker of a role: without nvext and meaningless fields that the engine refuses,
// and with token ids instead of a completion's text if the worker takes tokens. A chat stays a chat, plus the ids of
// its prompt if the engine accepts them. more makes the protocol's edits.
func leg(round Round, role pools.Role, more func(e *openai.Edit)) (http1.Leg, error) {
	w, rank, again := round.D, round.DRank, round.DReannounce
	if role == pools.Prefill {
		w, rank, again = round.P, round.PRank, round.PReannounce
	}
	r := round.Request
	l := http1.Leg{
		Purpose: string(role), Worker: w.ID, Base: w.Address, Method: r.Endpoint.Method(), Path: r.Endpoint.PathAt(w.Engine), RequestID: round.ID,
		Rank: -1, TraceParent: round.TraceParent, TraceState: round.TraceState, Forward: round.Forward, Stream: r.Stream,
	}
	if w.Ranks() > 1 {
		l.Rank = rank
	}
	if round.Memory != nil {
		l.Memory = &round.Memory.Refs
	}
	e := r.Edit()
	defer e.Release()
	if round.Resume.Prompt != nil {
		if r.Endpoint == openai.Chat && round.Resume.Generated > 0 && !takesIDs(w) {
			return l, ErrTakesNoIDs
		}
		r.Resume(e, round.Resume)
	} else if w.ModelInput == "tokens" && r.Endpoint == openai.Completions && r.Prompt.Kind == openai.PromptText {
		if round.IDs == nil {
			return l, openai.BadRequest("prompt",
				"this model's workers take token ids, and the gateway cannot make them of this prompt: send the prompt as token ids")
		}
		e.SetIDs("prompt", round.IDs)
	}
	if err := r.Fit(e, w.Engine); err != nil {
		return l, err
	}
	if suffix, _ := r.Field("suffix"); w.IgnoresSuffix && r.Endpoint == openai.Completions && len(suffix) > len(`""`) &&
		string(suffix) != "null" {
		return l, openai.BadRequest("suffix", "suffix: this model's workers run without --completion-template, and SGLang would ignore it")
	}
	own := ownName(w, r.Adapter)
	if name, _ := r.Field("model"); string(name) != `"`+own+`"` { // the client used another served name
		e.SetString("model", own)
	}
	e.Delete("nvext")
	salts := r.Endpoint.Generates() || speech(w) == ofVLLM
	if given, ok := r.Field("cache_salt"); salts && r.CacheSalt != "" && (r.Isolated || !ok || string(given) == "null") {
		e.SetString("cache_salt", r.CacheSalt) // engines read only the body
	}
	if role == pools.Decode && round.ShowIDs {
		e.Set("return_token_ids", jsonTrue)
	}
	if r.Truncate < 0 && round.Kept < math.MaxInt && round.Resume.Prompt == nil {
		// The engine would count by max_tokens, which differs between the legs.
		e.SetInt("truncate_prompt_tokens", int64(round.Kept))
	}
	if again {
		reannounce(e, r)
	}
	how := speech(w)
	if role == pools.Decode && Counts(w, r, round.ShowIDs) {
		options := []byte(`{"continuous_usage_stats":true}`)
		if given, ok := r.Field("stream_options"); ok {
			if own, ok := openai.NewEdit(given); ok {
				own.Set("continuous_usage_stats", jsonTrue)
				options = own.Bytes()
			}
		}
		e.Set("stream_options", options)
	}
	if how == ofVLLM {
		if r.Endpoint.Generates() {
			r.NameMedia(e)
		}
		if round.Priority != nil && w.Prioritizes {
			e.SetInt("priority", -int64(*round.Priority)) // the lower first, unlike the gateway
		}
	}
	pinned := round.PinnedIDs
	if l.Path != openai.Chat.Path() || r.HasMedia() || !takesIDs(w) {
		pinned = nil // every engine drops images if given the ids
	}
	switch {
	case pinned == nil:
	case how == ofSGLang:
		e.Set("input_ids", pinned)
	case how == ofTensorRT:
		e.Set("prompt_token_ids", pinned)
	}
	if more != nil {
		more(e)
	}
	if round.ShowPrompt && (role == pools.Prefill) == (round.P != nil) {
		switch {
		case how == ofSGLang && r.Endpoint == openai.Chat:
			e.Set("return_prompt_token_ids", jsonTrue)
		case how != ofTensorRT: // context workers always report them
			e.Set("return_token_ids", jsonTrue)
		}
	}
	if l.Method == http.MethodGet {
		return l, nil
	}
	if pinned == nil || how != ofVLLM {
		l.Body = round.Memory.body(e, role)
		return l, nil
	}
	params := e.Take(paramsField)
	l.Body = withMember(round.Memory.body(e, role), openIDs, pinned, closeIDs)
	if params != nil {
		l.Body = withParams(l.Body, params)
	}
	return l, nil
}

// mostSegments is the segments of a short body with pinned ids and bound metadata.
const mostSegments = 6

// Memory holds the short bodies of one round's legs, pooled. A nil Memory allocates each time.
type Memory struct {
	http1.Refs
	bytes           []byte
	prefill, decode [mostSegments][]byte
}

// Reset implements [http1.Pooled].
func (m *Memory) Reset() { *m = Memory{Refs: m.Refs, bytes: m.bytes[:0]} }

func (m *Memory) body(e *openai.Edit, role pools.Role) (body http1.Body) {
	if m == nil {
		m = new(Memory)
	}
	segments := m.decode[:0]
	if role == pools.Prefill {
		segments = m.prefill[:0]
	}
	body, m.bytes = e.AppendSegments(segments, m.bytes)
	return body
}

// ownName returns the engine's name of the model, or of the requested adapter (clients.md §5.1).
func ownName(w *pools.Worker, adapter string) string {
	switch {
	case adapter == "":
		return w.Model
	case speech(w) == ofSGLang:
		return w.Model + ":" + adapter
	}
	return adapter
}

// dialect is the family of fields that an engine reads.
type dialect uint8

const (
	ofVLLM dialect = iota + 1
	ofSGLang
	ofTensorRT
)

// speech returns a worker's dialect, 0 if unknown. The simulated engine has vLLM's.
func speech(w *pools.Worker) dialect {
	switch w.Engine {
	case "vllm", "sim":
		return ofVLLM
	case "sglang":
		return ofSGLang
	case "trtllm":
		return ofTensorRT
	}
	return 0
}

// pinsSince is the first release of an engine that accepts a chat together with its prompt's token ids: vLLM #48145;
// SGLang #23751, known to be in 0.5.20; TensorRT-LLM's ChatCompletionRequest since 1.2. Older releases refuse the
// field (TensorRT-LLM) or ignore it.
var pinsSince = map[string]string{"vllm": "0.27.0", "sglang": "0.5.20", "trtllm": "1.2.0"}

// ErrTakesNoIDs fails a plan that would resume a chat on a worker that does not accept its tokens.
var ErrTakesNoIDs = errors.New("the engine takes no tokens of a chat")

// takesIDs reports whether a worker accepts a chat's token ids. An unknown release does not.
func takesIDs(w *pools.Worker) bool {
	since, ok := pinsSince[w.Engine]
	if !ok {
		return w.Engine == "sim"
	}
	return w.EngineVersion != "" && !older(w.EngineVersion, since)
}

// ShowsIDs reports whether a worker's stream can report the generated tokens so that another can resume it:
// completions of vLLM and SGLang, and chats of vLLM releases that accept a chat's ids (clients.md §4.3). Others
// ignore return_token_ids (vLLM's OpenAIBaseModel).
func ShowsIDs(w *pools.Worker, endpoint openai.Endpoint) bool {
	switch speech(w) {
	case ofVLLM:
		return endpoint == openai.Completions || takesIDs(w)
	case ofSGLang:
		return endpoint == openai.Completions
	}
	return false
}

// Counts reports whether the gateway requests decode's running token count: an event without ids may have several
// tokens with speculation or a slow server. SGLang then writes the usage into each event, regardless of include_usage
// (should_include_usage in 0.5.23's entrypoints/openai/utils.py).
func Counts(w *pools.Worker, r *openai.Request, showIDs bool) bool {
	return speech(w) == ofSGLang && r.Stream && !showIDs && r.N <= 1 && !r.ContinuousUsage
}

// ShowsPrompt reports whether a worker can report the ids of the prompt it computes: SGLang's chats only in whole
// answers, TensorRT-LLM's context workers always, its others never.
func ShowsPrompt(w *pools.Worker, endpoint openai.Endpoint, role pools.Role, stream bool) bool {
	switch speech(w) {
	case ofVLLM:
		return true
	case ofSGLang:
		return endpoint == openai.Completions || role == pools.Prefill || !stream
	case ofTensorRT:
		return role == pools.Prefill
	}
	return false
}

// TakesPrompt reports whether a decode worker accepts a chat's prompt ids, as reported by prefill, with the KV.
func TakesPrompt(w *pools.Worker) bool { return speech(w) == ofVLLM && takesIDs(w) }

// Pin adds the prompt ids reported by prefill, a JSON array, to a decode leg before its metadata is bound: the KV
// fits no other ids.
func Pin(d *http1.Leg, w *pools.Worker, ids []byte) {
	if TakesPrompt(w) && d.Path == openai.Chat.Path() {
		d.Body = withMember(d.Body, openIDs, ids, closeIDs)
	}
}

// older reports whether a version's leading dotted numbers (0, 27, 1 of "v0.27.1rc2") precede another's.
func older(version, than string) bool {
	version, than = strings.TrimPrefix(version, "v"), strings.TrimPrefix(than, "v")
	for than != "" {
		var n, m int
		n, version = leading(version)
		if m, than = leading(than); n != m {
			return n < m
		}
	}
	return false
}

// leading splits off the first of dotted numbers, −1 for none.
func leading(version string) (n int, rest string) {
	digits := 0
	for ; digits < len(version) && version[digits] >= '0' && version[digits] <= '9'; digits++ {
		n = min(10*n+int(version[digits]-'0'), 1<<30)
	}
	switch {
	case digits == 0:
		return -1, ""
	case digits < len(version) && version[digits] == '.':
		return n, version[digits+1:]
	}
	return n, ""
}

// paramsField is vLLM's object for hand-offs and for ids that pin a chat's prompt.
const paramsField = "kv_transfer_params"

// The segments around a leg's pinned ids. They precede the body's last segment, where withParams finds them.
var (
	openIDs  = []byte(`,"` + paramsField + `":{"prompt_token_ids":`)
	closeIDs = []byte(`}`)
)

// withMember inserts segments that begin with a comma before the brace that closes a body. It edits the list of
// segments; the shared segments stay unchanged.
func withMember(body http1.Body, member ...[]byte) http1.Body {
	last := len(body) - 1
	whole := body[last]
	end := bytes.LastIndexByte(whole, '}')
	body[last] = whole[:end]
	return append(append(body, member...), whole[end:])
}

// withParams sets a leg's kv_transfer_params, merged with pinned ids. The scan refuses that field from clients.
// params is a non-empty object.
func withParams(body http1.Body, params []byte) http1.Body {
	if at := len(body) - 2; at >= 2 && bytes.Equal(body[at], closeIDs) && bytes.Equal(body[at-2], openIDs) {
		body[at] = comma
		return slices.Insert(body, at+1, params[bytes.IndexByte(params, '{')+1:])
	}
	return withMember(body, kvMember, params)
}

var comma = []byte(",")

// kvMember precedes the metadata in a leg's body.
var kvMember = []byte(`,"` + paramsField + `":`)

// Values that edits set.
var (
	jsonTrue  = []byte("true")
	jsonFalse = []byte("false")
	jsonOne   = []byte("1")
)

// firstToken edits the body of a vLLM prefill leg: one token, not streamed, that no stop ends, since blocks are kept
// only when prefill ends by length (engines.md §1.1). What changes the prompt stays (clients.md §2.4).
func firstToken(e *openai.Edit, r *openai.Request) {
	e.Set("stream", jsonFalse)
	e.Set("max_tokens", jsonOne)
	if r.Has("max_completion_tokens") {
		e.Set("max_completion_tokens", jsonOne) // overrides max_tokens
	}
	e.Set("ignore_eos", jsonTrue)
	if r.ToolRequired {
		// One token is no tool call, which some releases answer with 400 or 500. With pinned ids no template reads
		// the choice.
		e.Delete("tool_choice")
	}
	for _, name := range endFields {
		e.Delete(name)
	}
}

// endFields end an answer or request more than its text: they do not apply to a token that decode computes again.
var endFields = openai.EndFields()

// answered rejects a prefill answer of status 200 that is empty, as engines send when the caller has half closed, or
// an aborted request.
func answered(a prefill.Answer) error {
	switch {
	case !a.Info.Valid:
		return errors.New("prefill's answer is not a JSON object")
	case a.Info.Aborted:
		return errors.New("prefill's engine aborted the request")
	}
	return nil
}

// reannounce makes the engine announce the cached blocks that the prompt reuses (vllm_xargs.kv_cache_report_mode,
// vLLM 0.26.0; older ones ignore it), unless the client has set it.
func reannounce(e *openai.Edit, r *openai.Request) {
	const field, mode = "vllm_xargs", "kv_cache_report_mode"
	given, ok := r.Field(field)
	if !ok || string(given) == "null" {
		e.Set(field, []byte(`{"`+mode+`":"full"}`))
		return
	}
	if xargs, ok := openai.NewEdit(given); ok && !xargs.Has(mode) {
		xargs.SetString(mode, "full")
		e.Set(field, xargs.Bytes())
	}
}

// sameRelease rejects engines of different known releases.
func sameRelease(p, d *pools.Worker) error {
	if a, b := p.EngineVersion, d.EngineVersion; a != "" && b != "" && a != b {
		return fmt.Errorf("%s is %s %s and %s is %s %s: a hand-off takes the same release", p.ID, p.Engine, a, d.ID, d.Engine, b)
	}
	return nil
}
