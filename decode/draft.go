package decode

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
)

// Draft holds what a client has of a streamed answer of one choice so that it can be resumed on another worker: the
// tokens, and what the stream's events have in common. Run updates it; between two calls it is the caller's. A nil Draft
// keeps nothing: it is that of an answer that is not streamed or that no worker could resume.
type Draft struct {
	// Request is the client's request.
	Request *openai.Request
	// HideIDs removes token ids from the answer: the gateway requested them, not the client.
	HideIDs bool
	// Prompt is the prompt's tokens in the engine, nil while unknown.
	Prompt []uint32
	// Pinned is the JSON of the ids that the engine gets instead of the prompt, and repeats; nil if it gets none.
	Pinned []byte
	// Context is the most tokens of prompt plus answer, 0 if unknown. Anything beyond is not kept.
	Context int
	// Tokenizer is the model's, nil if unknown. Without it, answers with stop strings are not resumed, and an event of
	// several tokens may not show all of their text.
	Tokenizer Tokenizer
	// SGLang reports that the current call's engine is SGLang, not vLLM.
	SGLang bool

	progress
	atStart   progress // at the start of the current call
	resumed   bool     // on another worker
	resumedAt int      // tokens that the client had before the current call
	event     []byte   // the latest event for the client, if it was changed
	seen      []uint32 // memory for a prompt reported by the engine
	shape     openai.Shape

	framing openai.Envelope // memory of the envelope
	scratch []byte          // memory for comparisons
}

// Tokenizer decodes tokens: with Decode all of them, with DecodeText without special tokens, as engines do by
// default.
type Tokenizer interface {
	Decode(dst []byte, ids []uint32) []byte
	DecodeText(dst []byte, ids []uint32) []byte
}

// drafts pools drafts: nearly every stream has one, and nearly none needs it.
var drafts = sync.Pool{New: func() any { return new(Draft) }}

// NewDraft returns the empty draft of a request. The caller releases it.
func NewDraft(req *openai.Request) *Draft {
	d := drafts.Get().(*Draft)
	d.Request = req
	return d
}

// Release recycles the draft; d may be nil. Neither d nor what it returned may be used afterwards.
func (d *Draft) Release() {
	if d == nil || cap(d.ids)+cap(d.seen) > mostPooled {
		return
	}
	d.shape.Reset()
	*d = Draft{
		progress: progress{ids: d.ids[:0], text: d.text[:0], ahead: d.ahead[:0]},
		scratch:  d.scratch[:0], event: d.event[:0], seen: d.seen[:0], framing: d.framing[:0], shape: d.shape,
	}
	drafts.Put(d)
}

// mostPooled is the longest prompt and answer, in tokens, whose memory is kept.
const mostPooled = 4096

// progress is the state of an answer.
type progress struct {
	sent     Transcript
	envelope openai.Envelope
	ids      []uint32 // of the tokens generated so far
	shownIDs int      // at most how many of their ids the client has
	cut      cut      // where another worker can resume
	ahead    []byte   // the text that the client has beyond the cut
	repeated int      // how much of it the current call's engine has repeated

	blind                      bool // an event had content but no ids
	hasText, thought, toolCall bool
	finished                   bool
	reasoned, thinking         int // reasoning tokens; the token count at the latest event if that was a thought, else 0

	text     []byte         // the answer's text, if there are stop strings
	heldBack []byte         // text that the engine held back when the answer was resumed, and that can be sent
	stopper  openai.Stopper // searches what another worker generates
	pushed   int            // how many bytes it has searched
}

// transcript returns the transcript to start the next call with.
func (d *Draft) transcript() Transcript {
	if d == nil || !d.resumed {
		return Transcript{PromptTokens: -1, CachedTokens: -1}
	}
	return d.sent
}

// Undo drops the current call's part of the answer, which was not sent, and returns the transcript before it.
func (d *Draft) Undo() Transcript {
	if d != nil {
		d.progress = d.atStart
	}
	return d.transcript()
}

// inspect parses the data of an event.
func (d *Draft) inspect(info *openai.ChunkInfo, data []byte) {
	if d == nil {
		*info = openai.Inspect(data)
		return
	}
	d.shape.Inspect(info, data, d.Pinned)
}

// had returns how many tokens the client had before the current call.
func (d *Draft) had() int {
	if d == nil {
		return 0
	}
	return d.resumedAt
}

// Unresumable returns a one-word reason why no other worker can resume the draft, or empty.
func (d *Draft) Unresumable() string {
	switch {
	case d == nil:
		return "engine"
	case d.blind, d.Prompt == nil, len(d.ids) == 0 && d.envelope == nil:
		return "engine"
	case d.toolCall:
		return "tool_call"
	case len(d.Request.Stop) > 0 && (d.Tokenizer == nil || d.thought || !d.agrees()):
		return "stop"
	}
	return ""
}

// Resume sets the draft up for the next call and returns what to request. Tokens whose text was not sent in full (a
// partial character, text held back by a parser) are generated again; what the client already has of them is removed.
// Call it only if Unresumable returns empty.
func (d *Draft) Resume() openai.Resume {
	d.ids, d.reasoned = d.ids[:d.cut.tokens], d.cut.reasoned
	d.resumedAt, d.resumed, d.repeated, d.thinking = len(d.ids), true, 0, 0
	d.sent.Tokens, d.sent.Streamed, d.sent.PromptTokens, d.sent.CachedTokens = d.resumedAt, d.resumedAt, -1, -1
	d.sent.Accepted, d.sent.HasToken = false, false
	own := len(d.Request.Stop) > 0
	if own {
		d.stopper = openai.Stopper{Stops: d.Request.Stop, Include: d.includesStop(), InOrder: d.SGLang}
		whole := d.decode(nil, d.ids)
		has := min(len(whole), len(d.text))
		d.pushed = len(whole)
		d.stopper.Pass(string(whole[:has]))
		d.heldBack = []byte(d.stopper.Skip(string(whole[has:]))) // a complete stop string in it would have ended the answer
		d.ahead = append(d.ahead[:0], d.text[has:]...)
	}
	d.atStart = d.progress
	prompt := make([]uint32, 0, len(d.Prompt)+d.resumedAt)
	return openai.Resume{Prompt: append(append(prompt, d.Prompt...), d.ids...), Generated: d.resumedAt, OwnStop: own}
}

// includesStop reports whether the engine sends the stop string that ends the answer.
func (d *Draft) includesStop() bool {
	name := "include_stop_str_in_output"
	if d.SGLang {
		name = "no_stop_trim"
	}
	v, _ := d.Request.Field(name)
	return string(v) == "true"
}

// ends reports whether a stream that ended with err lacks only its end: its last event or its last token was sent.
// counted reports whether its usage was.
func (d *Draft) ends(call *Call, err error, counted bool) bool {
	var gone *http1.WriteError
	if d == nil || errors.As(err, &gone) || d.envelope == nil || call.IncludeUsage && !counted && (d.blind || d.Prompt == nil) {
		return false
	}
	return d.finished || !errors.Is(err, fault.ErrRunaway) && !d.blind && len(d.ids) > 0 &&
		d.cut.tokens == len(d.ids) && d.Request.MaxTokens == len(d.ids)
}

// mayStop reports whether the gateway may end the answer at a stop string.
func (d *Draft) mayStop() bool { return d != nil && d.stopper.Stops != nil }

// ErrParser ends a resumed answer that switches from text to reasoning: the model's parser cannot find its place by
// the tokens. The worker is not at fault.
var ErrParser = fmt.Errorf("%w: text continues as reasoning", fault.ErrEngine)

// take records an event and returns its data for the client, nil for nothing. Changed data is in d.event. stopped
// reports that a stop string ends the answer.
func (d *Draft) take(data []byte, info *openai.ChunkInfo) (out []byte, stopped bool, _ error) {
	if d.envelope == nil {
		d.envelope = openai.AppendEnvelope(d.framing[:0], data, info)
		d.framing = d.envelope
	}
	if info.PromptIDs != nil && d.Prompt == nil {
		d.see(info.PromptIDs)
	}
	if info.HasReasoning && d.hasText && d.resumed {
		return nil, false, ErrParser
	}
	before := len(d.ids)
	if info.IDs != nil {
		if cap(d.ids) == 0 {
			d.ids, d.event = make([]uint32, 0, 64), make([]byte, 0, 512)
		}
		ids, ok := openai.ParseIDs(d.ids, info.IDs)
		d.ids, d.blind = ids, d.blind || !ok
		if most := cmp.Or(d.Request.MaxTokens, d.Context, mostTokens); len(ids) > most {
			return nil, false, fmt.Errorf("%w: %d tokens of %d", fault.ErrRunaway, len(ids), most)
		}
	}
	d.blind = d.blind || info.Content && info.IDs == nil
	d.hasText, d.thought = d.hasText || info.HasText, d.thought || info.HasReasoning
	d.toolCall = d.toolCall || info.HasToolCall
	d.finished = d.finished || info.Finished > 0
	if info.Content {
		d.reason(info.HasReasoning, before)
	}
	if d.resumed {
		return d.rest(data, info, before)
	}
	if info.Content {
		d.mark(data, info)
	}
	if info.HasText && len(d.Request.Stop) > 0 {
		d.text = info.AppendText(d.text, data)
	}
	d.shownIDs = len(d.ids)
	switch {
	case !d.HideIDs || !info.ShowsIDs():
		return data, false, nil
	case !info.Content && info.Finished == 0 && !info.Usage && len(info.IDs) > len("[]"):
		return nil, false, nil // without ids, engines send no such event
	}
	d.event = info.HideIDs(append(d.event[:0], dataField...), data)
	return d.framed(), false, nil
}

// mostTokens bounds a prompt or an answer whose model's context is unknown.
const mostTokens = 2 << 20

// see parses the prompt's tokens from the engine.
func (d *Draft) see(ids []byte) {
	n := bytes.Count(ids, []byte{','}) + 1
	if n > cmp.Or(d.Context, mostTokens) {
		return // not a prompt of this model: the answer cannot be resumed
	}
	if prompt, ok := openai.ParseIDs(slices.Grow(d.seen[:0], n), ids); ok {
		d.Prompt, d.seen = prompt, prompt
	}
}

// dataField begins a line of an event's data.
const dataField = "data: "

// framed completes the event in d.event and returns its data.
func (d *Draft) framed() (data []byte) {
	data = d.event[len(dataField):]
	if bytes.IndexByte(data, '\n') >= 0 || bytes.IndexByte(data, '\r') >= 0 { // a field of several lines
		d.event = openai.AppendEvent(nil, data)
		return data
	}
	d.event = append(d.event, "\n\n"...)
	return d.event[len(dataField) : len(d.event)-2]
}
