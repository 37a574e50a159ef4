package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
)

// sglangRelease is the release that is imitated unless another is named.
const sglangRelease = "0.5.23"

// SGLang's defaults.
const (
	// sglangTimeout is SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT and
	// SGLANG_DISAGGREGATION_WAITING_TIMEOUT: how long one leg of a pair waits for the other.
	sglangTimeout = 300 * time.Second
	// sglangNotice is SGLANG_REQUEST_STATE_WAIT_TIMEOUT: how often a waiting
	// request looks whether its caller is still there.
	sglangNotice = 4 * time.Second
	// fakeBootstrapHost requests a hand-off that moves nothing, as health probes do.
	fakeBootstrapHost = "2.2.2.2"
)

// sglang speaks as SGLang does, in its three modes: prefill and decode, which take only requests that name a room where
// their legs meet, and the plain one, which takes no notice of rooms.
type sglang struct{ s *Server }

var _ dialect = (*sglang)(nil)

// mode is --disaggregation-mode.
func (d *sglang) mode() string {
	if d.s.cfg.Role == "both" {
		return "null"
	}
	return d.s.cfg.Role
}

func (d *sglang) routes(mux *http.ServeMux) {
	s := d.s
	mux.HandleFunc("POST /v1/completions", s.answer(completionForm))
	mux.HandleFunc("POST /v1/chat/completions", s.answer(chatForm))
	for _, path := range []string{"/tokenize", "/v1/tokenize"} {
		mux.HandleFunc("POST "+path, s.tokenize)
	}
	s.inputRoutes(mux)
	mux.HandleFunc("POST /abort_request", d.abortRequest)
	mux.HandleFunc("POST /flush_cache", d.flushCache)
	mux.HandleFunc("GET /flush_cache", d.flushCache)
	for _, path := range []string{"/health", "/health_generate"} {
		mux.HandleFunc("GET "+path, d.health)
	}
	if !s.cfg.Before("0.5.20") { // it is there in 0.5.20, and not in 0.5.9
		mux.HandleFunc("GET /ready", s.health)
	}
	for _, path := range []string{"/server_info", "/get_server_info"} {
		mux.HandleFunc("GET "+path, d.serverInfo)
	}
	for _, path := range []string{"/model_info", "/get_model_info"} {
		mux.HandleFunc("GET "+path, d.modelInfo)
	}
	mux.HandleFunc("GET /v1/models", d.models)
	mux.HandleFunc("GET /v1/models/{id}", d.model)
	s.adapterRoutes(mux, "")
	mux.HandleFunc("GET /v1/loads", d.loads)
	mux.Handle("GET /metrics", s.metricsHandler())
}

// abortRequest ends every request whose id begins with the one named, which has to be a
// request's id itself; an id that is none does nothing.
func (d *sglang) abortRequest(w http.ResponseWriter, r *http.Request) {
	f, failure := readFields(w, r)
	if failure != nil {
		d.s.writeError(w, failure)
		return
	}
	rid, all := f.text("rid"), f.flag("abort_all")
	if f.err != nil {
		d.s.writeError(w, f.err)
		return
	}
	d.s.abortCalls(rid, all)
	w.WriteHeader(http.StatusOK)
}

func (d *sglang) flushCache(w http.ResponseWriter, r *http.Request) { d.s.resetPrefixCache(w, r) }

// callID is the request's rid, which names it in aborts.
func (d *sglang) callID(_ *call, _ *http.Request, f *fields) string {
	if rid := f.text("rid"); rid != "" {
		return rid
	}
	return newID()
}

// vllmFields are fields of vLLM that SGLang ignores.
var vllmFields = []string{"truncate_prompt_tokens", "truncation_side", "include_stop_str_in_output", "kv_transfer_params", "vllm_xargs"}

// handOff reads the room where the request's two legs meet. In the plain mode the fields are ignored.
func (d *sglang) handOff(c *call, r *http.Request, f *fields) *apiError {
	if d.unchecked(f); f.err != nil {
		return f.err
	}
	for _, name := range vllmFields {
		delete(f.raw, name)
	}
	var kwargs map[string]json.RawMessage
	_ = json.Unmarshal(f.get("chat_template_kwargs"), &kwargs)                      // read again where the answer is made
	for _, name := range []string{"tokenize", "return_dict", "tools", "messages"} { // see fitSGLang in internal/openai
		if _, twice := kwargs[name]; twice && r.URL.Path == "/v1/chat/completions" {
			return newError(http.StatusInternalServerError, "", "Internal server error: '%s'", name) // serving_base.py
		}
	}
	if options, ok := f.raw["stream_options"]; ok && !f.flag("stream") && len(options) > 0 {
		delete(f.raw, "stream_options") // without a stream it has no effect
	}
	if rank := r.Header.Get("X-Data-Parallel-Rank"); rank != "" && rank != "0" {
		return newError(http.StatusBadRequest, "", "routed_dp_rank=%.20s out of range [0, 1)", rank)
	}
	f.integer("routed_dp_rank", 0, 0, 0)
	f.integer("disagg_prefill_dp_rank", 0, 0, math.MaxInt32)
	if f.err != nil || d.mode() == "null" {
		return f.err
	}
	room, named, err := bootstrapRoom(f.get("bootstrap_room"))
	if err != nil {
		return newError(http.StatusBadRequest, "bootstrap_room", "%v", err)
	}
	if !named {
		return newError(http.StatusBadRequest, "", "Invalid request: Disaggregated request received without bootstrap room id. req.rid=%q", c.id)
	}
	host, port := f.text("bootstrap_host"), f.integer("bootstrap_port", d.s.cfg.TransferPort, 1, math.MaxUint16)
	shared := strconv.FormatInt(room, 10)
	if room == 0 { // the health probes' room, in which no two legs meet
		shared = "probe-" + newID()
	}
	switch {
	case f.err != nil, host == fakeBootstrapHost:
	case d.mode() == "prefill":
		c.request.Pin = true
		c.request.Hold = Hold{Shared: shared, For: d.s.cfg.AbortTimeout, GuestFirst: d.s.cfg.AbortTimeout, HandFirst: true}
	default:
		if host == "" { // srt/disaggregation/decode.py, _bootstrap_addr, which nothing catches
			c.kills = "bootstrap_host is None"
		}
		// Releases before NetworkAddress (srt/utils/network.py) join host and port unchanged; it removes brackets.
		at, err := url.Parse("http://" + host + ":" + strconv.Itoa(port))
		if err != nil {
			return d.handOffFailed(err)
		}
		host = at.Hostname()
		c.request.Remote = &Remote{RequestID: shared, Host: host, Port: port, Shared: true, PageTokens: d.s.cfg.BlockSize,
			Patience: d.s.cfg.AbortTimeout, Lingers: d.s.cfg.Lease}
	}
	return f.err
}

// bootstrapRoom reads a whole number from 0 to 2^63−1. It is no float: two rooms that differ in the last digits are
// two.
func bootstrapRoom(raw json.RawMessage) (room int64, named bool, err error) {
	if raw == nil {
		return 0, false, nil
	}
	room, err = strconv.ParseInt(string(raw), 10, 64)
	if err != nil || room < 0 {
		return 0, true, errors.New("bootstrap_room must be a whole number from 0 to 9223372036854775807")
	}
	return room, true, nil
}

func (d *sglang) settings(c *call, f *fields) int {
	switch _, adapter, ok := strings.Cut(f.text("model"), ":"); { // the name itself is not compared with anything
	case !ok:
	case d.s.loaded(adapter):
		c.request.LoRA = adapter
	case f.err == nil: // as srt/managers/tokenizer_manager.py of 0.5.23 words its ValueError, which is a 400
		f.err = newError(http.StatusBadRequest, "", "Got LoRA adapter that has never been loaded: %.100s", adapter)
	}
	c.request.Salt = f.text("cache_salt")
	if c.endpoint == openai.Chat {
		c.parsed.read(f)
		if effort := string(f.get("reasoning_effort")); effort != "" && f.get("chat_template_kwargs") == nil {
			c.parsed.thinks = effort != `"none"` && effort != "null" // ChatCompletionRequest of 0.5.23's openai/protocol.py
		}
		c.parsed.thinks = c.parsed.thinks && string(f.get("separate_reasoning")) != "false"
	}
	if f.number("top_k", 0, -math.MaxFloat64, math.MaxFloat64) < 0 {
		delete(f.raw, "top_k")
	}
	delete(f.raw, "suffix")
	n := d.s.settings(c, f)
	if f.err != nil && f.err.Param != nil && c.endpoint == openai.Completions && *f.err.Param == "max_tokens" {
		f.err.place = "body.max_tokens"
	}
	if format := f.formatOf(); f.get("response_format") != nil && !slices.Contains(formats, format) {
		f.wrong("response_format.ResponseFormat.type", "Input should be 'text', 'json_object' or 'json_schema'")
	}
	if choice := f.get("tool_choice"); c.endpoint == openai.Chat && choice != nil && choice[0] == '"' &&
		!slices.Contains([]string{`"none"`, `"auto"`, `"required"`}, string(choice)) {
		f.wrong("tool_choice", "Input should be 'auto', 'required' or 'none'")
	}
	for _, name := range []string{"return_token_ids", "return_prompt_token_ids"} {
		if c.endpoint == openai.Chat && c.stream && f.flag(name) && f.err == nil {
			f.fail(name, "%s is not supported with streaming", name)
			f.err.Type = "BadRequest"
		}
	}
	if f.err != nil && f.err.Param != nil && *f.err.Param == "n" {
		f.err.Type = "BadRequest"
	}
	c.promptIDs = c.endpoint == openai.Chat && f.flag("return_prompt_token_ids")
	if d.mode() == "prefill" { // whatever the request asks for; decode has it too
		c.request.MaxTokens, c.request.MinTokens = 1, min(1, c.request.MinTokens)
	}
	return n
}

// unchecked reads the ids of other fields. Of these only logit_bias is compared with the vocabulary before the
// scheduler has it (verify of srt/sampling/sampling_params.py of 0.5.23); stop_token_ids index a tensor one wider than
// that where min_tokens forbids them (srt/sampling/penaltylib/min_new_tokens.py), and are only compared elsewhere.
func (d *sglang) unchecked(f *fields) {
	vocab := int64(d.s.tokenizer.Tokenizer().VocabSize())
	var zeros []int64 // a prompt of zeros is taken for none (_validate_request of srt/entrypoints/openai/serving_completions.py)
	if raw := f.get("prompt"); raw != nil && json.Unmarshal(raw, &zeros) == nil &&
		!slices.ContainsFunc(zeros, func(id int64) bool { return id != 0 }) {
		f.fail("", "Prompt cannot be empty")
	}
	var bias map[string]float64
	f.decode("logit_bias", &bias, "an object of numbers")
	for key := range bias {
		if id, err := strconv.ParseInt(key, 10, 64); err != nil || id < 0 || id >= vocab {
			f.fail("", "logit_bias must has keys in [0, %d], got %s.", vocab-1, key)
		}
	}
	for _, name := range []string{"logprobs", "top_logprobs"} { // get_top_logprobs_raw of srt/layers/logprob_processor.py
		var n int64
		if json.Unmarshal(f.raw[name], &n) == nil && n > vocab && (name == "logprobs" || f.flag("logprobs")) {
			f.kills = "RuntimeError: selected index k out of range"
		}
	}
	var stops []json.Number
	f.decode("stop_token_ids", &stops, "a list of token ids")
	known := make([]int64, 0, len(stops))
	for _, stop := range stops {
		switch id, err := stop.Int64(); {
		case err == nil && id >= 0 && id < vocab:
			known = append(known, id)
		case d.mode() != "decode" && f.integer("min_tokens", 0, 0, math.MaxInt32) > 0 && (err != nil || id != vocab):
			f.kills = "RuntimeError: index " + stop.String() + " is out of bounds for dimension 1"
		}
	}
	if f.get("stop_token_ids") != nil {
		f.raw["stop_token_ids"], _ = json.Marshal(known) // cannot fail
	}
}

// prompts reads the prompt: input_ids in place of a chat's messages, which are read all the same. A chat that ends with
// the assistant's words is continued only if it asks for that; else they become the user's.
func (d *sglang) prompts(c *call, f *fields) [][]uint32 {
	if c.endpoint != openai.Chat {
		if f.get("prompt") == nil {
			f.wrong("prompt", "Field required")
		}
		return d.s.prompts(f)
	}
	if !f.flag("continue_final_message") {
		f.raw["messages"] = endWithUser(f.get("messages"))
	}
	rendered := d.s.chatPrompt(f)
	if raw := f.get("input_ids"); raw != nil && f.err == nil {
		if raw[0] != '[' {
			f.fail("input_ids", "input_ids must be a list of token ids")
			return nil
		}
		return [][]uint32{d.s.ids(f, "input_ids", raw)}
	}
	return [][]uint32{rendered}
}

// endWithUser gives a last message of the assistant's the user's role.
func endWithUser(raw json.RawMessage) json.RawMessage {
	var messages []map[string]json.RawMessage
	if json.Unmarshal(raw, &messages) != nil || len(messages) == 0 {
		return raw
	}
	last := messages[len(messages)-1]
	if !bytes.Equal(last["role"], []byte(`"assistant"`)) {
		return raw
	}
	last["role"] = json.RawMessage(`"user"`)
	changed, _ := json.Marshal(messages) // cannot fail: it was read from JSON
	return changed
}

// refused does nothing: a leg that is refused leaves the other one waiting.
func (d *sglang) refused(*call) {}

func (d *sglang) handOffFailed(err error) *apiError {
	leg := "Decode transfer"
	if d.mode() == "prefill" {
		leg = "Prefill bootstrap"
	}
	return newError(http.StatusInternalServerError, "", "%s failed: %v", leg, err)
}
