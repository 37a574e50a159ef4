package connector

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// leg edits the body for the round's worker of a role: as the client sent it less nvext and what the engine refuses
// though it means nothing, and with token ids in the place of a completion's text for a worker that takes tokens. A chat
// stays a chat, with the ids of its prompt added where the engine takes them. more makes the protocol's own edits.
func leg(round Round, role pools.Role, more func(e *openai.Edit)) (upstream.Leg, error) {
	w, rank, again := round.D, round.DRank, round.DReannounce
	if role == pools.Prefill {
		w, rank, again = round.P, round.PRank, round.PReannounce
	}
	r := round.Request
	l := upstream.Leg{
		Purpose: string(role), Worker: w.ID, Base: w.Address, Path: r.Endpoint.Path(), RequestID: round.ID,
		Rank: -1, TraceParent: round.TraceParent, TraceState: round.TraceState, Forward: round.Forward, Stream: r.Stream,
	}
	if w.Ranks() > 1 {
		l.Rank = rank
	}
	e := r.Edit()
	defer e.Release()
	if round.Resume.Prompt != nil {
		if r.Endpoint == openai.Chat && round.Resume.Generated > 0 && !takesIDs(w) {
			return l, ErrTakesNoIDs
		}
		r.Resume(e, round.Resume)
	} else if w.ModelInput == "tokens" && r.Prompt.Kind == openai.PromptText {
		if round.IDs == nil {
			return l, openai.BadRequest("prompt", "this model's workers take token ids, and the gateway cannot make them of this prompt: send the prompt as token ids")
		}
		e.SetIDs("prompt", round.IDs)
	}
	if err := r.Fit(e, w.Engine); err != nil {
		return l, err
	}
	own := ownName(w, r.Adapter)
	if name, _ := r.Field("model"); string(name) != `"`+own+`"` { // another name that it serves under
		e.SetString("model", own)
	}
	e.Delete("nvext")
	if given, ok := r.Field("cache_salt"); r.CacheSalt != "" && (r.Isolated || !ok || string(given) == "null") {
		e.SetString("cache_salt", r.CacheSalt) // engines read only the body's
	}
	if role == pools.Decode && round.ShowIDs {
		e.Set("return_token_ids", jsonTrue)
	}
	if r.Truncate < 0 && round.Kept < math.MaxInt && round.Resume.Prompt == nil {
		// The engine would reckon by max_tokens, which the legs have not in common.
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
		r.NameMedia(e)
		if round.Priority != nil && w.Prioritizes {
			e.SetInt("priority", -int64(*round.Priority)) // the lower first, other than in the gateway
		}
	}
	pinned := round.PinnedIDs
	if l.Path != openai.Chat.Path() || r.HasMedia() || !takesIDs(w) {
		pinned = nil // every engine loses images where it is given the ids
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
		case how != ofTensorRT: // a context worker reports them unasked
			e.Set("return_token_ids", jsonTrue)
		}
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

// mostSegments is how many segments a leg of a short body has that pins its ids, with the metadata that is bound to it.
const mostSegments = 6

// Memory is what the bodies of one round's legs are written to, where they are short. It may be used again once both legs
// have been sent. A nil Memory is new each time.
type Memory struct {
	bytes           []byte
	prefill, decode [mostSegments][]byte
}

// Reset has the memory used again.
func (m *Memory) Reset() { *m = Memory{bytes: m.bytes[:0]} }

// body is the edited body of a role's leg.
func (m *Memory) body(e *openai.Edit, role pools.Role) (body upstream.Body) {
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

// ownName is how a worker's engine calls the model, or the adapter of it that is asked for (clients.md §5.1).
func ownName(w *pools.Worker, adapter string) string {
	switch {
	case adapter == "":
		return w.Model
	case speech(w) == ofSGLang:
		return w.Model + ":" + adapter
	}
	return adapter
}

// dialect is whose fields an engine reads.
type dialect uint8

const (
	ofVLLM dialect = iota + 1
	ofSGLang
	ofTensorRT
)

// speech is the dialect of a worker's engine, 0 for an unknown one. The simulated engine speaks vLLM's.
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

// pinsSince is the first release of an engine that takes a chat together with its prompt's token ids: vLLM #48145;
// SGLang #23751, of which 0.5.20 is the first release that is known to have it; TensorRT-LLM's ChatCompletionRequest,
// which has the field in 1.2. A release that does not know it refuses it (TensorRT-LLM) or makes the ids again.
var pinsSince = map[string]string{"vllm": "0.27.0", "sglang": "0.5.20", "trtllm": "1.2.0"}

// ErrTakesNoIDs is a plan that would go on with a chat whose worker does not take its tokens.
var ErrTakesNoIDs = errors.New("the engine takes no tokens of a chat")

// takesIDs reports whether a worker takes a chat's token ids. Of a release that is not known it is not assumed.
func takesIDs(w *pools.Worker) bool {
	since, ok := pinsSince[w.Engine]
	if !ok {
		return w.Engine == "sim"
	}
	return w.EngineVersion != "" && !older(w.EngineVersion, since)
}

// ShowsIDs reports whether a worker's stream can show the tokens that it generates, so that another one can go on with
// them: completions of vLLM and SGLang, whose prompt every release takes as ids, and chats of the releases of vLLM that take
// a chat's (clients.md §4.3). A release that does not know return_token_ids ignores it (vLLM's OpenAIBaseModel).
func ShowsIDs(w *pools.Worker, endpoint openai.Endpoint) bool {
	switch speech(w) {
	case ofVLLM:
		return endpoint == openai.Completions || takesIDs(w)
	case ofSGLang:
		return endpoint == openai.Completions
	}
	return false
}

// Counts reports whether decode's engine is asked to count the tokens of its stream, though the client did not ask for that: an event
// may bring several, where the engine speculates or its server falls behind, and shows no ids that count them. SGLang writes the
// usage so far into each event then, whatever include_usage says (should_include_usage in 0.5.23's entrypoints/openai/utils.py).
func Counts(w *pools.Worker, r *openai.Request, showIDs bool) bool {
	return speech(w) == ofSGLang && r.Stream && !showIDs && r.N <= 1 && !r.ContinuousUsage
}

// ShowsPrompt reports whether a worker can report the ids of the prompt that it computes: SGLang's chats do in whole answers
// alone, TensorRT-LLM's context workers always, and its others never.
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

// TakesPrompt reports whether a decode worker takes, with the KV of a chat, the ids that prefill's engine reported of it.
func TakesPrompt(w *pools.Worker) bool { return speech(w) == ofVLLM && takesIDs(w) }

// Pin adds to a decode leg, before anything is bound to it, the ids that prefill's engine reported of the prompt, a JSON
// array: KV that was computed of these goes with no others.
func Pin(d *upstream.Leg, w *pools.Worker, ids []byte) {
	if TakesPrompt(w) && d.Path == openai.Chat.Path() {
		d.Body = withMember(d.Body, openIDs, ids, closeIDs)
	}
}

// older reports whether a version's leading dotted numbers, 0, 27 and 1 of "v0.27.1rc2", come before another's.
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

// leading is the number at the beginning of dotted ones, −1 for none, and those behind it.
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

// paramsField is vLLM's object of what concerns the hand-off, and of the ids that pin a chat's prompt.
const paramsField = "kv_transfer_params"

// The segments before and behind the ids of a leg that pins them. They stand right before the body's last segment, so
// that withParams finds them.
var (
	openIDs  = []byte(`,"` + paramsField + `":{"prompt_token_ids":`)
	closeIDs = []byte(`}`)
)

// withMember puts segments that begin with a comma before the brace that closes a body, in the place of the body's own
// list of segments. The segments are shared with other legs and stay as they are.
func withMember(body upstream.Body, member ...[]byte) upstream.Body {
	last := len(body) - 1
	whole := body[last]
	end := bytes.LastIndexByte(whole, '}')
	body[last] = whole[:end]
	return append(append(body, member...), whole[end:])
}

// withParams gives a leg params as its kv_transfer_params, in addition to the ids where it pins them. The body has that
// member in no other way: the scan refuses it of clients. params is an object that is not empty.
func withParams(body upstream.Body, params []byte) upstream.Body {
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

// firstToken edits the body of a prefill leg of vLLM: one token, not streamed, that no stop can end. Blocks are kept
// only when prefill ends by length (engines.md §1.1). What changes the prompt stays (clients.md §2.4).
func firstToken(e *openai.Edit, r *openai.Request) {
	e.Set("stream", jsonFalse)
	e.Set("max_tokens", jsonOne)
	if r.Has("max_completion_tokens") {
		e.Set("max_completion_tokens", jsonOne) // it counts before max_tokens
	}
	e.Set("ignore_eos", jsonTrue)
	if r.ToolRequired {
		// One token is no tool call, and releases answer 400 or 500 to that. Where the prompt's ids are pinned no
		// template reads the choice.
		e.Delete("tool_choice")
	}
	for _, name := range endFields {
		e.Delete(name)
	}
}

// endFields say when an answer ends, or ask for more of it than its text: both concern a token that decode computes
// again.
var endFields = openai.EndFields()

// answered reports a prefill answer that is none, though its status is 200: nothing, which is what an engine's server
// writes when its caller has closed its half of the connection, or an aborted request.
func answered(a prefill.Answer) error {
	switch {
	case !a.Said.Valid:
		return errors.New("prefill's answer is not a JSON object")
	case a.Said.Aborted:
		return errors.New("prefill's engine aborted the request")
	}
	return nil
}

// reannounce asks the engine to announce the cached blocks of the prompt that it uses again
// (vllm_xargs.kv_cache_report_mode, vLLM 0.26.0; older ones take no notice), unless the client has set that itself.
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

// sameRelease reports two engines of different releases. What is not known is not compared.
func sameRelease(p, d *pools.Worker) error {
	if a, b := p.EngineVersion, d.EngineVersion; a != "" && b != "" && a != b {
		return fmt.Errorf("%s is %s %s and %s is %s %s: a hand-off takes the same release", p.ID, p.Engine, a, d.ID, d.Engine, b)
	}
	return nil
}
