package engine

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// maxBodyBytes bounds a request's body.
const maxBodyBytes = 64 << 20

// completionTokens is vLLM's default max_tokens of a completion; null, or a chat without one, means the rest of the
// context.
const completionTokens = 16

// form is the difference of the two completion endpoints.
type form struct {
	endpoint openai.Endpoint
	prefix   string // of answer ids
	object   string // of whole answers
	chunk    string // of a stream's chunks
}

var (
	completionForm = form{openai.Completions, "cmpl-", "text_completion", "text_completion"}
	chatForm       = form{openai.Chat, "chatcmpl-", "chat.completion", "chat.completion.chunk"}
)

// call is one HTTP request for answers.
type call struct {
	form
	id      string // of the answer
	created int64  // seconds since 1970
	choices []choice
	box     *mailbox

	promptTokens int // of all prompts together
	stream       bool
	usage        bool // a stream ends with its usage
	counts       bool // each event has the usage so far
	tokenIDs     bool // answers show token ids
	promptIDs    bool // answers show the prompt's, which SGLang's chats may do alone
	promptText   bool // answers show the prompt as it was rendered
	logprobs     bool // answers show log-probabilities, of so many alternatives to each token
	alternatives int
	request      Request // what all of its sequences have in common
	remote       *Remote // to be released if the request is refused
	parsed       parsing
	tensorRT     *tensorRTCall
	kills        string // the assertion in the engine's core that it fails, empty for none
}

// choice is one of a call's answers.
type choice struct {
	request Request
	first   bool // of its prompt: it counts for the prompt's usage
	detok   testkit.Detokenizer

	text      []byte   // shown so far, of a whole answer
	ids       []uint32 // the same, as ids
	generated int
	cached    int
	begun     bool    // its first chunk is out
	said      place   // how far its calls are out
	unsent    string  // of a call's arguments
	offset    int     // bytes of its text that are out
	behind    string  // of what is to come with the next chunk
	mute      bool    // nothing that it generates is shown
	finish    string  // why it ended; empty before
	reason    any     // the stop string or stop token id that ended it
	pinned    *Pinned // what waits for decode
	failure   *apiError
}

// answer serves a request of either form.
func (s *Server) answer(f form) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		defer s.enter()()
		began := time.Now()
		c, failure := s.understand(f, w, r)
		if failure == nil {
			failure = s.begin(c)
		}
		if failure != nil {
			if c != nil {
				s.dialect.refused(c)
			}
			s.writeError(w, failure)
			return
		}
		defer s.leave(c)
		defer func() { s.report(r, c, began, time.Now()) }()
		if c.stream {
			s.writeStream(w, r, c)
		} else {
			s.writeWhole(w, r, c)
		}
	}
}

// readFields reads a request's body, which is not compressed.
func readFields(w http.ResponseWriter, r *http.Request) (*fields, *apiError) {
	if e := r.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return nil, newError(http.StatusUnsupportedMediaType, "", "the body must come without Content-Encoding")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	if err != nil {
		return nil, newError(http.StatusRequestEntityTooLarge, "", "the body is incomplete or larger than %d bytes", maxBodyBytes)
	}
	return parseFields(body)
}

// understand reads and checks a request. The call that it returns with an
// error holds the hand-off to release, if there was one.
func (s *Server) understand(fm form, w http.ResponseWriter, r *http.Request) (*call, *apiError) {
	f, failure := readFields(w, r)
	if failure != nil {
		return nil, failure
	}
	c := &call{form: fm, created: time.Now().Unix(), box: newMailbox()}
	c.id = s.dialect.callID(c, r, f)
	if failure := s.dialect.handOff(c, r, f); failure != nil {
		return c, failure
	}
	n := s.dialect.settings(c, f)
	var prompts [][]uint32
	if f.err == nil {
		prompts = s.dialect.prompts(c, f)
	}
	if f.err != nil {
		return c, f.err
	}
	c.kills = cmp.Or(c.kills, f.kills)
	template := &c.request
	if len(prompts)*n > 1 && (template.Pin || template.Remote != nil) {
		// vLLM's siblings would share, and free, the same blocks.
		return c, newError(http.StatusBadRequest, "n", "a hand-off needs one prompt and n=1")
	}
	for i, p := range prompts {
		prompts[i] = s.truncate(f, p, template.MaxTokens)
	}
	stops := testkit.Stops{
		Strings: f.strings("stop"), MinTokens: template.MinTokens,
		Include: f.flag("include_stop_str_in_output") || s.cfg.Engine == "sglang" && f.flag("no_stop_trim"),
	}
	// vLLM echoes no text where ids are shown (entrypoints/openai/completion/serving.py of 0.32.0).
	echo := f.flag("echo") && c.endpoint == openai.Completions && (s.cfg.Engine == "sglang" || !c.tokenIDs)
	mute := s.promptOnly(c, f)
	template.Script, template.ScriptFrom = s.script(c)
	if c.parsed.thinks { // an answer is more than its thought
		template.MinTokens = max(template.MinTokens, thoughtTokens+1-c.parsed.before)
	}
	template.Sentences = s.cfg.Sentences && c.endpoint == openai.Chat
	for _, p := range prompts {
		if failure := s.checkLength(p, template.MaxTokens); failure != nil {
			return c, failure
		}
		c.promptTokens += len(p)
		for k := range n {
			request := *template
			request.Prompt, request.Choice = p, k
			request.Prepare(&s.cfg) // here, and not under everybody's lock
			one := choice{request: request, first: k == 0, detok: testkit.NewDetokenizer(s.cfg.Engine, s.tokenizer.Tokenizer(), p, stops), mute: mute}
			if echo {
				one.text = s.tokenizer.Tokenizer().Decode(nil, p)
				one.behind = string(one.text)
			}
			c.choices = append(c.choices, one)
		}
	}
	return c, f.err
}

// settings reads OpenAI's fields but for the prompt, and those that all engines add under the same names. It returns
// the number of answers of each prompt. Sampling parameters are checked and change nothing: the model's answer to a prompt
// is always the same.
func (s *Server) settings(c *call, f *fields) (n int) {
	r := &c.request
	n = f.integer("n", 1, 1, 128)
	if r.MaxTokens = 1; !s.promptOnly(c, f) {
		r.MaxTokens = f.integer("max_tokens", 0, 1, math.MaxInt32)
	}
	if c.endpoint == openai.Chat {
		r.MaxTokens = f.integer("max_completion_tokens", r.MaxTokens, 1, math.MaxInt32)
	} else if _, set := f.raw["max_tokens"]; !set {
		r.MaxTokens = completionTokens
	}
	r.MinTokens = f.integer("min_tokens", 0, 0, math.MaxInt32)
	if r.MaxTokens > 0 && r.MinTokens > r.MaxTokens {
		f.fail("min_tokens", "min_tokens must not be above max_tokens")
	}
	r.IgnoreEOS = f.flag("ignore_eos")
	if raw := f.get("stop_token_ids"); raw != nil && raw[0] == '[' {
		var err error
		if r.StopTokens, err = parseIDs(raw, math.MaxInt32); err != nil {
			f.wrong("stop_token_ids.0", "stop_token_ids: %v", err)
		}
	} else if raw != nil {
		f.wrong("stop_token_ids", "stop_token_ids must be a list of token ids")
	}
	for _, stop := range f.strings("stop") {
		if stop == "" {
			f.fail("stop", "stop must not hold an empty string")
		}
	}
	f.flag("include_stop_str_in_output")

	c.stream = f.flag("stream")
	c.tokenIDs = f.flag("return_token_ids")
	if given := f.get("stream_options"); given != nil {
		// vLLM compares truth in Python: no {} and no "false" (validate_stream_options of 0.32.0).
		if !c.stream && len(bytes.TrimSpace(given)) > len("{}") && !bytes.HasPrefix(f.get("stream"), []byte(`"`)) {
			f.fail("stream_options", "stream_options needs stream to be true")
		}
		options := &fields{}
		f.decode("stream_options", &options.raw, "an object")
		c.usage, c.counts = options.flag("include_usage"), options.flag("continuous_usage_stats")
		if options.err != nil {
			f.fail("stream_options", "stream_options.%s", options.err.Message)
		}
	}

	c.readLogprobs(f)
	c.parsed.readForm(f)
	f.number("temperature", 1, 0, math.MaxFloat64)
	f.number("top_p", 1, math.SmallestNonzeroFloat64, 1)
	f.number("min_p", 0, 0, 1)
	f.integer("top_k", 0, -1, math.MaxInt32)
	f.number("presence_penalty", 0, -2, 2)
	f.number("frequency_penalty", 0, -2, 2)
	f.number("repetition_penalty", 1, math.SmallestNonzeroFloat64, math.MaxFloat64)
	f.number("seed", 0, math.MinInt64, math.MaxInt64)
	f.number("priority", 0, math.MinInt32, math.MaxInt32)
	if c.endpoint == openai.Completions && f.text("suffix") != "" {
		f.fail("suffix", "suffix is not supported")
	}
	return n
}

// promptOnly reports whether a completion only echoes its prompt: vLLM generates a token then, counts it and does not
// show it (to_sampling_params and completion_stream_generator of 0.32.0).
func (s *Server) promptOnly(c *call, f *fields) bool {
	_, isVLLM := s.dialect.(*vllm)
	return isVLLM && c.endpoint == openai.Completions && f.flag("echo") && string(f.get("max_tokens")) == "0"
}

// begin gives the call to the core.
func (s *Server) begin(c *call) *apiError {
	if c.kills != "" {
		s.die(c.kills)
	}
	for i := range c.choices {
		r := &c.choices[i].request
		r.Stored = s.store.find(r.Hashes) * s.cfg.BlockSize
	}
	switch err := s.submit(c); err {
	case nil:
		return nil
	case errQueueFull: // found by the scheduler, once the request is taken
		c.box.put(0, Output{Reason: Aborted, Err: err})
		return nil
	case errDead:
		return newError(http.StatusInternalServerError, "", "%v", err)
	case errDraining:
		return newError(http.StatusServiceUnavailable, "", "the engine is draining")
	default:
		return newError(http.StatusBadRequest, "", "%v", err)
	}
}

// leave ends the call's remaining sequences at once: its client has gone.
func (s *Server) leave(c *call) {
	var ids []string
	for i := range c.choices {
		if ch := &c.choices[i]; ch.finish == "" {
			ids = append(ids, ch.request.ID)
		}
	}
	if ids != nil {
		s.abort(ids...)
	}
}

// done reports whether every answer has ended.
func (c *call) done() bool {
	for i := range c.choices {
		if c.choices[i].finish == "" {
			return false
		}
	}
	return true
}

// failure is the first failure among the answers.
func (c *call) failure() *apiError {
	for i := range c.choices {
		if c.choices[i].failure != nil {
			return c.choices[i].failure
		}
	}
	return nil
}

// reasoned counts the tokens of thoughts.
func (c *call) reasoned() (n int) {
	for i := range c.choices {
		if c.parsed.thinks {
			n += c.parsed.thought(c.choices[i].generated)
		}
	}
	return n
}

// total is the call's usage so far.
func (c *call) total() *openai.Usage {
	u := &openai.Usage{PromptTokens: c.promptTokens, PromptTokensDetails: &openai.PromptTokensDetails{}}
	for i := range c.choices {
		u.CompletionTokens += c.choices[i].generated
		if c.choices[i].first {
			u.PromptTokensDetails.CachedTokens += c.choices[i].cached
		}
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

// read handles one output of a choice and returns what it adds to the answer.
func (s *Server) read(ch *choice, o *Output) testkit.Shown {
	if ch.finish != "" {
		return testkit.Shown{} // cut by a stop string; the core had not heard yet
	}
	if errors.Is(o.Err, errAborted) { // what was generated so far is the answer
		ch.finish = o.Reason.String()
		return ch.detok.Step(nil, testkit.Last)
	}
	ch.generated, ch.cached = o.Generated, o.Cached
	switch o.Reason {
	case Aborted:
		ch.finish = o.Reason.String()
		ch.failure = newError(http.StatusServiceUnavailable, "", "the engine stopped")
		ch.failure.dies = true
		switch {
		case errors.Is(o.Err, errQueueFull):
			ch.failure = newError(http.StatusServiceUnavailable, "", "The request queue is full.")
		case s.isDead():
			ch.failure = newError(http.StatusInternalServerError, "", "%v", errDead)
		}
		return testkit.Shown{}
	case LoadFailed:
		ch.finish = o.Reason.String()
		ch.failure = s.dialect.handOffFailed(o.Err)
		return testkit.Shown{}
	}
	end := testkit.Last
	switch o.Reason {
	case Unfinished:
		end = testkit.More
	case Stopped:
		end = testkit.Stopped
	}
	shown := ch.detok.Step([]uint32{o.Token}, end)
	switch {
	case shown.Stop != "":
		ch.finish, ch.reason = Stopped.String(), shown.Stop
		s.abort(ch.request.ID)
	case o.Reason == Stopped && o.Token != s.core.vocab.EOS:
		ch.reason = o.Token
	}
	if ch.finish == "" {
		ch.finish = o.Reason.String()
	}
	if ch.pinned = o.Pinned; ch.mute {
		shown.Text, shown.IDs = "", nil
	}
	return shown
}

// requestID is the request's X-Request-Id, or a random one.
func requestID(r *http.Request) string {
	if id := r.Header.Get("X-Request-Id"); id != "" {
		return id
	}
	return newID()
}

// newID is 32 random digits.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
