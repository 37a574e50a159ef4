package decode

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/relay"
)

// Draft is what a client has of a streamed answer of one choice, in a form with which another worker can go on: the tokens,
// and what the stream's events have in common. Run keeps it; between two calls it is the caller's.
type Draft struct {
	// Request is the client's.
	Request *openai.Request
	// HideIDs: engines are asked for token ids, and the client did not ask for them.
	HideIDs bool
	// Prompt is the prompt's tokens as its engine has them, nil while they are not known.
	Prompt []uint32
	// Pinned is the JSON of the ids that its engine gets in place of the prompt, which it repeats; nil where it gets none.
	Pinned []byte
	// Context is the most tokens that prompt and answer have together, 0 where that is not known: what an engine shows beyond
	// it is not kept.
	Context int
	// Tokenizer is the model's, nil where none is known. Without it, answers with stop strings do not move, and of an event of
	// several tokens it is not known whether it shows the text of them all.
	Tokenizer Tokenizer
	// SGLang: the engine of the present call is SGLang, else it is vLLM.
	SGLang bool

	progress
	began progress // as the present call found it
	moved bool     // it has gone on from another worker
	given int      // how many tokens the present call was given
	event []byte   // the latest event as the client gets it, where that is not as it came
	seen  []uint32 // memory for a prompt that its engine shows
	shape openai.Shape

	framing openai.Envelope // memory of the envelope
	scratch []byte          // memory of what is compared
}

// Tokenizer makes text of tokens: all of it, or without special tokens, as engines show it unless they are asked not to.
type Tokenizer interface {
	Decode(dst []byte, ids []uint32) []byte
	DecodeText(dst []byte, ids []uint32) []byte
}

// drafts keep the memory of drafts that are no longer in use: nearly every stream has one, and nearly none needs it.
var drafts = sync.Pool{New: func() any { return new(Draft) }}

// NewDraft is the empty draft of a request, which its caller releases.
func NewDraft(req *openai.Request) *Draft {
	d := drafts.Get().(*Draft)
	d.Request = req
	return d
}

// Release gives the draft's memory back; nil has none. Neither it nor what it returned of its own may be used afterwards.
func (d *Draft) Release() {
	if d == nil || cap(d.ids)+cap(d.seen) > mostPooled {
		return
	}
	d.shape.Reset()
	*d = Draft{progress: progress{ids: d.ids[:0], text: d.text[:0], ahead: d.ahead[:0]}, scratch: d.scratch[:0], event: d.event[:0], seen: d.seen[:0], framing: d.framing[:0], shape: d.shape}
	drafts.Put(d)
}

// mostPooled is the tokens of the longest prompt and answer whose memory is kept.
const mostPooled = 4096

// progress is how far an answer is.
type progress struct {
	sent     Transcript
	envelope openai.Envelope
	ids      []uint32 // of the tokens generated so far
	told     int      // how many of them the client was shown the ids of, at the most
	cut      cut      // from where another worker can go on
	ahead    []byte   // the text that the client has beyond the cut
	repeated int      // how much of it the present call's engine has made again

	blind                 bool // an event showed content without its ids
	said, thought, called bool
	finished              bool
	reasoned, thinking    int // tokens thought in; the tokens at the latest event if it was a thought, 0 if it was none

	text    []byte         // what was said, where stop strings are looked for
	unsaid  []byte         // what the engine had held back of it when the answer moved, and can be shown
	stopper openai.Stopper // looks for them in what another worker generates
	pushed  int            // how much text it has seen
}

// transcript is that of a call which is about to be made.
func (d *Draft) transcript() Transcript {
	if d == nil || !d.moved {
		return Transcript{PromptTokens: -1, CachedTokens: -1}
	}
	return d.sent
}

// Undo forgets what came of the present call: none of it has left. It returns the transcript of what had left before.
func (d *Draft) Undo() Transcript {
	if d != nil {
		d.progress = d.began
	}
	return d.transcript()
}

// inspect reads the data of an event.
func (d *Draft) inspect(info *openai.ChunkInfo, data []byte) {
	if d == nil {
		*info = openai.Inspect(data)
		return
	}
	d.shape.Inspect(info, data, d.Pinned)
}

// had is how many tokens the client had before the present call.
func (d *Draft) had() int {
	if d == nil {
		return 0
	}
	return d.given
}

// Unresumable says by one word why no other worker can go on with the draft, empty where one can.
func (d *Draft) Unresumable() string {
	switch {
	case d == nil:
		return "engine"
	case d.blind, d.Prompt == nil, len(d.ids) == 0 && d.envelope == nil:
		return "engine"
	case d.called:
		return "tool_call"
	case len(d.Request.Stop) > 0 && (d.Tokenizer == nil || d.thought || !d.agrees()):
		return "stop"
	}
	return ""
}

// Continue has the next call begin where the client's answer ends, and returns what it is to ask for. Tokens that have
// shown nothing, or not all of their text (a part of a character, the beginning of what a parser holds back), are generated
// again; what the client has of their text, and of their ids, is left out. The caller has asked Unresumable.
func (d *Draft) Continue() openai.Resume {
	d.ids, d.reasoned = d.ids[:d.cut.tokens], d.cut.reasoned
	d.given, d.moved, d.repeated, d.thinking = len(d.ids), true, 0, 0
	d.sent.Tokens, d.sent.Streamed, d.sent.PromptTokens, d.sent.CachedTokens = d.given, d.given, -1, -1
	d.sent.Accepted, d.sent.Began = false, false
	own := len(d.Request.Stop) > 0
	if own {
		d.stopper = openai.Stopper{Stops: d.Request.Stop, Include: d.includesStop(), InOrder: d.SGLang}
		whole := d.decode(nil, d.ids)
		has := min(len(whole), len(d.text))
		d.pushed = len(whole)
		d.stopper.Pass(string(whole[:has]))
		d.unsaid = []byte(d.stopper.Skip(string(whole[has:]))) // a stop string that is complete in it would have ended the answer
		d.ahead = append(d.ahead[:0], d.text[has:]...)
	}
	d.began = d.progress
	prompt := make([]uint32, 0, len(d.Prompt)+d.given)
	return openai.Resume{Prompt: append(append(prompt, d.Prompt...), d.ids...), Generated: d.given, OwnStop: own}
}

// includesStop reports whether the engine shows the stop string that ends the answer.
func (d *Draft) includesStop() bool {
	name := "include_stop_str_in_output"
	if d.SGLang {
		name = "no_stop_trim"
	}
	v, _ := d.Request.Field(name)
	return string(v) == "true"
}

// ends reports whether the answer to call lacks its end alone, whose stream has ended with err: its last event has come, or
// its last token. counted: its usage has come.
func (d *Draft) ends(call *Call, err error, counted bool) bool {
	var gone *relay.WriteError
	if d == nil || errors.As(err, &gone) || d.envelope == nil || call.IncludeUsage && !counted && (d.blind || d.Prompt == nil) {
		return false
	}
	return d.finished || !errors.Is(err, fault.ErrRunaway) && !d.blind && len(d.ids) > 0 && d.cut.tokens == len(d.ids) && d.Request.MaxTokens == len(d.ids)
}

// mayStop reports whether the gateway itself may end the answer.
func (d *Draft) mayStop() bool { return d != nil && d.stopper.Stops != nil }

// ErrParser ends a resumed answer whose engine takes it for another kind of text than the first one did. Its model's parser
// does not find its place by the tokens: that is no fault of the worker.
var ErrParser = fmt.Errorf("%w: what was said goes on as a thought", fault.ErrEngine)

// take notes an event, and returns its data as the client is to get it, nil for nothing. The data of an event that is not
// to be as it came lies in d.event. stopped says that a stop string ends the answer with it.
func (d *Draft) take(data []byte, info *openai.ChunkInfo) (out []byte, stopped bool, _ error) {
	if d.envelope == nil {
		d.envelope = openai.AppendEnvelope(d.framing[:0], data, info)
		d.framing = d.envelope
	}
	if info.PromptIDs != nil && d.Prompt == nil {
		d.see(info.PromptIDs)
	}
	if info.HasReasoning && d.said && d.moved {
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
	d.said, d.thought, d.called = d.said || info.HasText, d.thought || info.HasReasoning, d.called || info.HasToolCall
	d.finished = d.finished || info.Finished > 0
	if info.Content {
		d.reason(info.HasReasoning, before)
	}
	if d.moved {
		return d.rest(data, info, before)
	}
	if info.Content {
		d.mark(data, info)
	}
	if info.HasText && len(d.Request.Stop) > 0 {
		d.text = info.AppendText(d.text, data)
	}
	d.told = len(d.ids)
	switch {
	case !d.HideIDs || !info.ShowsIDs():
		return data, false, nil
	case !info.Content && info.Finished == 0 && !info.Usage && len(info.IDs) > len("[]"):
		return nil, false, nil // without ids engines write no such event
	}
	d.event = info.HideIDs(append(d.event[:0], dataField...), data)
	return d.framed(), false, nil
}

// mostTokens are kept of a prompt or an answer whose model's context is not known.
const mostTokens = 2 << 20

// see takes the prompt's tokens as its engine shows them.
func (d *Draft) see(ids []byte) {
	n := bytes.Count(ids, []byte{','}) + 1
	if n > cmp.Or(d.Context, mostTokens) {
		return // it is no prompt of this model: the answer stays where it is
	}
	if prompt, ok := openai.ParseIDs(slices.Grow(d.seen[:0], n), ids); ok {
		d.Prompt, d.seen = prompt, prompt
	}
}

// dataField begins a line of an event's data.
const dataField = "data: "

// framed ends the event in d.event, whose data it returns.
func (d *Draft) framed() (data []byte) {
	data = d.event[len(dataField):]
	if bytes.IndexByte(data, '\n') >= 0 || bytes.IndexByte(data, '\r') >= 0 { // a field of several lines
		d.event = openai.AppendEvent(nil, data)
		return data
	}
	d.event = append(d.event, "\n\n"...)
	return d.event[len(dataField) : len(d.event)-2]
}
