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
	// Text makes text of tokens as the engine does, for stop strings; nil where no tokenizer is known.
	Text func(ids []uint32) []byte

	progress
	began progress // as the present call found it
	given int      // how many tokens that call was given
	event []byte   // the latest event as the client gets it, where that is not as it came
	seen  []uint32 // memory for a prompt that its engine shows
	shape openai.Shape

	framing openai.Envelope // memory of the envelope
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
	*d = Draft{progress: progress{ids: d.ids[:0], text: d.text[:0]}, event: d.event[:0], seen: d.seen[:0], framing: d.framing[:0], shape: d.shape}
	drafts.Put(d)
}

// mostPooled is the tokens of the longest prompt and answer whose memory is kept.
const mostPooled = 4096

// progress is how far an answer is.
type progress struct {
	sent     Transcript
	envelope openai.Envelope
	ids      []uint32 // of the tokens generated so far
	shown    int      // how many of them there were at the latest event that showed something

	blind                 bool // an event showed content without its ids
	said, thought, called bool
	finished              bool

	text    []byte         // what was said, where stop strings are looked for
	unsaid  []byte         // what was held back of it when the answer moved
	stopper openai.Stopper // looks for them in what another worker generates
}

// transcript is that of a call which is about to be made.
func (d *Draft) transcript() Transcript {
	if d == nil || d.given == 0 {
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
	case len(d.Request.Stop) > 0 && (d.Text == nil || d.thought || !bytes.HasPrefix(d.whole(), d.text)):
		return "stop"
	}
	return ""
}

// whole is the text of the tokens whose text the client has, and of those behind them that were held back for a stop
// string. Some tokens' text depends on the one before: the prompt's last are put in front.
func (d *Draft) whole() []byte {
	const before = 8
	tail := d.Prompt[max(0, len(d.Prompt)-before):]
	ids := append(append(make([]uint32, 0, len(tail)+d.shown), tail...), d.ids[:d.shown]...)
	return bytes.TrimPrefix(d.Text(ids), d.Text(tail))
}

// Continue has the next call begin where the client's answer ends, and returns what it is to ask for. Tokens that have
// shown nothing (a part of a character, the beginning of what a parser holds back) are generated again. The caller has
// asked Unresumable.
func (d *Draft) Continue() openai.Resume {
	d.ids = d.ids[:d.shown]
	d.given = len(d.ids)
	d.sent.Tokens, d.sent.Streamed, d.sent.PromptTokens, d.sent.CachedTokens = d.given, d.given, -1, -1
	d.sent.Accepted, d.sent.Began = false, false
	own := len(d.Request.Stop) > 0
	if own {
		include, _ := d.Request.Field("include_stop_str_in_output")
		d.stopper = openai.Stopper{Stops: d.Request.Stop, Include: string(include) == "true"}
		d.unsaid = d.whole()[len(d.text):]
	}
	d.began = d.progress
	prompt := make([]uint32, 0, len(d.Prompt)+d.given)
	return openai.Resume{Prompt: append(append(prompt, d.Prompt...), d.ids...), Generated: d.given, OwnStop: own}
}

// ends reports whether the answer to call lacks its end alone, whose stream has ended with err: its last event has come, or
// its last token. counted: its usage has come.
func (d *Draft) ends(call *Call, err error, counted bool) bool {
	var gone *relay.WriteError
	if d == nil || errors.As(err, &gone) || d.envelope == nil || call.IncludeUsage && !counted && (d.blind || d.Prompt == nil) {
		return false
	}
	return d.finished || !errors.Is(err, fault.ErrRunaway) && !d.blind && len(d.ids) > 0 && d.shown == len(d.ids) && d.Request.MaxTokens == len(d.ids)
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
	if info.Thought && d.said && d.given > 0 {
		return nil, false, ErrParser
	}
	silent := !info.Content && info.Finished == 0 && !info.Usage
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
	if !silent {
		d.shown = len(d.ids)
	}
	d.said, d.thought, d.called = d.said || info.Said, d.thought || info.Thought, d.called || info.Called
	d.finished = d.finished || info.Finished > 0
	if d.given > 0 {
		return d.rest(data, info, silent)
	}
	if info.Said && len(d.Request.Stop) > 0 {
		d.text = info.AppendText(d.text, data)
	}
	switch {
	case !d.HideIDs || !info.ShowsIDs():
		return data, false, nil
	case silent && len(info.IDs) > len("[]"):
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

// rest is take of an answer that has moved.
func (d *Draft) rest(data []byte, info *openai.ChunkInfo, silent bool) (out []byte, stopped bool, _ error) {
	if silent {
		return nil, false, nil // its role, and tokens without a text
	}
	rest := openai.Rest{Generated: d.given, HideIDs: d.HideIDs}
	if len(d.stopper.Stops) > 0 && (info.Said || info.Finished > 0) {
		more := string(info.AppendText(d.unsaid, data))
		d.unsaid = nil
		var text string
		if len(d.ids) <= d.Request.MinTokens {
			text = d.stopper.Pass(more)
		} else if text, rest.Stop = d.stopper.Push(more); rest.Stop == "" && info.Finished > 0 {
			text += d.stopper.Rest()
		}
		if text == "" && info.Finished == 0 && rest.Stop == "" {
			return nil, false, nil
		}
		rest.Text = append([]byte{}, text...)
		d.text = append(d.text, text...)
		d.finished = d.finished || rest.Stop != ""
	}
	d.event = d.envelope.AppendRest(append(d.event[:0], dataField...), data, rest)
	return d.framed(), rest.Stop != "", nil
}
