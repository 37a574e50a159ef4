package decode

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/relay"
)

// tap sees every event of one answer on its way to the client.
type tap struct {
	room       *Room
	call       *Call
	out        Sink
	polled     relay.Sink // the same, where it can be written to without waiting
	watch      *watch
	waits      prompt
	transcript Transcript
	held       []byte // events kept back until there is something to say
	finished   int    // choices that have a finish reason
	had        int    // tokens that the client had before this round
	blocks     int    // grown blocks booked on the lease
	began      bool   // the first token came, or the end of an answer without any
	done       bool   // the end marker was seen
	came       int    // events of this call, whatever became of them
	comments   int    // since the latest of them
	after      int    // events behind the one that finished the last choice
	taken      int    // of the call's memory, for what is long
	over       error  // why the answer is too long, of a request that asks for it
	counted    bool   // the usage was one of them
	summed     bool   // the usage of the whole came, in an event of its own
	plain      []byte // the latest event, where its usage is hidden
	detail     []byte // the error inside the answer
	status     int    // and the HTTP status that it stands for
}

// maxHeldBytes bounds what is kept of an answer before its first token: an announced role, keep-alives, a prompt's
// own probabilities.
const maxHeldBytes = 4 << 20

// stream relays events until the end marker.
func (t *tap) stream() error {
	err := relay.Stream(t.watch, t, t, t.longer())
	if err == nil && t.done {
		return nil
	}
	if !t.done && t.call.Draft.ends(t.call, err, t.summed) { // only its end is missing
		t.done = true
		err = t.finish()
	}
	var gone *relay.WriteError
	switch {
	case errors.As(err, &gone):
		return fmt.Errorf("%w: %w", fault.ErrClientGone, gone)
	case t.done:
		return nil // whatever the engine did with the connection after its end marker
	case err == nil, errors.Is(err, openai.ErrEventCut): // the engine ended it; a connection that breaks is another error
		return fault.ErrTruncated
	case t.over != nil: // the request asks for it
		return t.over
	case errors.Is(err, openai.ErrEventTooBig): // the worker is alive, and writes on
		return fmt.Errorf("%w: %w", fault.ErrGarbled, err)
	default:
		return err
	}
}

// Write passes relayed bytes on. The answer starts with the first of them, so that its head and its first event leave
// together.
func (t *tap) Write(p []byte) error {
	if !t.transcript.Started {
		t.transcript.Started = true
		t.out.Start(openai.EventStream)
	}
	return t.out.Write(p)
}

// Last is Write of the last bytes.
func (t *tap) Last(p []byte) error {
	if !t.transcript.Started {
		t.transcript.Started = true
		t.out.Start(openai.EventStream)
	}
	return t.out.Last(p)
}

// Polls reports whether the client's end can be written to without waiting; see relay.Sink. TryWrite, TryFlush and
// OnWritable are the client's.
func (t *tap) Polls() bool {
	t.polled, _ = t.out.(relay.Sink)
	return t.polled != nil && t.polled.Polls()
}

// TryWrite is called only once the answer has started: what starts it may wait.
func (t *tap) TryWrite(p []byte) error  { return t.polled.TryWrite(p) }
func (t *tap) TryFlush() error          { return t.polled.TryFlush() }
func (t *tap) OnWritable(f func()) bool { return t.polled.OnWritable(f) }

// Event decides what becomes of one event. Nothing leaves before the first token: an engine announces the assistant's
// role, or fails, before it has computed anything, and until the client has seen a byte another worker can still take
// over.
//
// What follows the end marker is no part of the answer and goes nowhere. An event that begins or ends something may
// wait: for the lock of a queue, for the other leg, for what is written of the answer.
func (t *tap) Event(dst []byte, ev openai.Event, mayWait bool) ([]byte, error) {
	if t.done {
		return dst, t.goesOn()
	}
	if len(t.held) > maxHeldBytes && !t.fits(len(t.held)) {
		return dst, fmt.Errorf("%w: over %d bytes before its first token", fault.ErrGarbled, maxHeldBytes)
	}
	if len(ev.Data) == 0 { // a comment: an engine's keep-alive, and no sign of life
		if t.comments++; t.began && t.comments > mostComments {
			return dst, fmt.Errorf("%w: %d comments and no event", fault.ErrRunaway, mostComments)
		}
		return t.pass(dst, ev.Raw, false), nil
	}
	if !mayWait && (!t.began || ev.Done() || len(ev.Data) > longEvent) {
		return dst, relay.ErrWaits
	}
	var info openai.ChunkInfo
	if !ev.Done() {
		t.call.Draft.inspect(&info, ev.Data)
	}
	counts, hides := t.counts(&info)
	if !mayWait && (!info.Valid || info.Error || info.Finished > 0 || info.Usage || info.KVParams != nil || info.PromptIDs != nil || t.call.Draft.mayStop()) {
		return dst, relay.ErrWaits
	}
	t.watch.event()
	if ev.Done() {
		t.done = true
		t.watch.end()
		return t.pass(dst, ev.Raw, true), nil
	}
	if !info.Valid { // passing it on would lose its token silently
		return dst, fmt.Errorf("%w: an event is no JSON object", fault.ErrGarbled)
	}
	if info.Error {
		return dst, t.failed(ev.Data)
	}
	draft := t.call.Draft
	moves := t.watch.seen.moves.Load()
	if moves && !mayWait {
		return dst, relay.ErrWaits
	}
	if info.Aborted && (!info.Content && !t.began || t.began && draft.Unresumable() == "") { // given up: another may do better
		return dst, fault.ErrEngine
	}
	t.came, t.comments = t.came+1, 0
	if most := t.call.mostEvents(); t.came > most {
		return dst, fmt.Errorf("%w: over %d events", fault.ErrRunaway, most)
	}
	if t.finished >= max(1, t.call.Choices) { // of the events behind the last of its tokens
		if err := t.goesOn(); err != nil || info.Content || info.Finished > 0 || info.Usage && t.counted {
			return dst, err
		}
		t.counted = t.counted || info.Usage
	}
	if !t.began && counts && info.Finished > 0 && t.nothing(&info) {
		return dst, errNoTokens
	}
	if !t.began && (info.Content || info.Finished > 0) {
		t.began = true
		t.watch.begin()
	}
	if info.Finished > 0 && !info.Content {
		t.arrived() // an end token, which shows nothing
	}
	t.tokens(&info, counts)
	data, stopped := ev.Data, false
	if draft != nil {
		var err error
		if data, stopped, err = draft.take(ev.Data, &info); err != nil {
			if errors.Is(err, ErrParser) {
				t.status = http.StatusUnprocessableEntity // about the request, as Classify has it
			}
			return dst, err
		}
		if data == nil { // nothing in it is for the client
			return dst, nil
		}
	}
	if stopped {
		info.Finished, info.Reason = 1, "stop"
	}
	t.ends(&info)
	last := t.last(&info)
	t.usage(&info)
	raw := ev.Raw
	if hides = hides && &data[0] == &ev.Data[0]; hides {
		data = t.hide(&info, data)
	}
	switch {
	case last && t.call.Tail != nil || info.Usage && t.call.CachedTokens != nil || info.KVParams != nil:
		raw = t.rewrite(data, &info, last)
	case hides:
		raw = t.plain
	case &data[0] != &ev.Data[0]:
		raw = draft.event
	}
	t.transcript.Events++
	if stopped {
		t.done, t.transcript.Tokens = true, len(draft.ids)
		return t.appendEnd(append(dst, raw...)), errStopped
	}
	dst = t.pass(dst, raw, info.Content || info.Finished > 0)
	if moves && t.began && t.finished == 0 && t.call.MayMove != nil && draft.Unresumable() == "" && t.call.MayMove() {
		return dst, fault.ErrMoved
	}
	return dst, nil
}

// errStopped ends a stream whose answer the gateway itself has found to be whole.
var errStopped = errors.New("a stop string ends the answer")

// mostAfter is how many events may come behind the one that finishes an answer: its usage, its end marker, and whatever an
// engine has to add.
const mostAfter = 64

// mostComments is how many comments may come without an event between them: at one a second, those of an hour.
const mostComments = 3600

// longEvent is how long an event may be, in bytes, that is read where nothing may wait: others' streams do meanwhile.
const longEvent = 64 << 10

// goesOn takes in an event behind the end of the answer. Its error cuts a stream that goes on without one.
func (t *tap) goesOn() error {
	if t.after++; t.after > mostAfter {
		return fmt.Errorf("%w: %d events behind its end", fault.ErrRunaway, mostAfter)
	}
	return nil
}

// finish writes the end of an answer whose engine did not come to it.
func (t *tap) finish() error {
	var out []byte
	if t.finished == 0 {
		t.ends(&openai.ChunkInfo{Finished: 1, Reason: "length"})
		out = openai.AppendEvent(nil, t.call.Draft.envelope.AppendEnd(nil, t.call.Draft.Request.Endpoint, "length"))
	}
	if err := t.Last(t.appendEnd(out)); err != nil {
		return &relay.WriteError{Err: err}
	}
	return nil
}

// appendEnd appends the events behind the one that finishes an answer: its usage, where it was asked for and has not come,
// and the end marker.
func (t *tap) appendEnd(dst []byte) []byte {
	if d := t.call.Draft; t.call.IncludeUsage && !t.summed {
		t.transcript.PromptTokens, t.transcript.Tokens = len(d.Prompt), len(d.ids)
		data := d.envelope.AppendUsage(nil, len(d.Prompt), len(d.ids))
		dst = append(dst, t.rewrite(data, &openai.ChunkInfo{Usage: true}, true)...)
	}
	return openai.AppendEvent(dst, []byte(openai.Done))
}

// cachedTokens is CachedTokens, −1 for the engine's figure.
func (c *Call) cachedTokens() int {
	if c.CachedTokens == nil {
		return -1
	}
	return c.CachedTokens()
}

// failed takes in an error that came where an answer should be.
func (t *tap) failed(said []byte) error {
	e := openai.ReadEngineError(said)
	t.status, t.detail = e.Status, bytes.Clone(said[:min(len(said), maxDetailBytes)])
	if e.Died {
		return fault.ErrEngineDied
	}
	return fault.ErrEngine
}

// pass appends raw to what leaves now, or keeps it back while nothing of weight has come.
func (t *tap) pass(dst, raw []byte, weighty bool) []byte {
	if !weighty && !t.transcript.Started && !t.began {
		t.held = append(t.held, raw...)
		return dst
	}
	if len(t.held) > 0 {
		dst = append(dst, t.held...)
		t.held = nil
	}
	return append(dst, raw...)
}

// last says whether this event is the one to carry nvext: the usage event where the client asked for it, else the one
// that finishes the last choice.
func (t *tap) last(info *openai.ChunkInfo) bool {
	if t.call.IncludeUsage {
		return info.Usage && t.finished >= t.call.Choices && !info.Content
	}
	return info.Finished > 0 && t.finished >= t.call.Choices
}

// rewrite gives the event its changed form.
func (t *tap) rewrite(data []byte, info *openai.ChunkInfo, last bool) []byte {
	var nvext []byte
	if last && t.call.Tail != nil {
		nvext = t.call.Tail(&t.transcript)
	}
	cached := -1
	if info.Usage {
		cached = t.call.cachedTokens()
	}
	return openai.AppendEvent(nil, openai.RewriteTail(nil, data, cached, nvext))
}

// token books n new tokens.
func (t *tap) token(n int) {
	now := t.watch.at()
	tr := &t.transcript
	before := tr.Tokens
	t.arrived()
	if before > 0 && t.call.Gap != nil {
		gap := now.Sub(tr.Last) / time.Duration(n)
		for range n {
			t.call.Gap(gap)
		}
		tr.Streamed += n
	}
	tr.Last = now
	tr.Tokens += n
	t.watch.seen.token(now)
	if grown := (tr.Tokens - t.had) / max(1, t.call.Lease.Worker.BlockSize); grown > t.blocks {
		t.call.Lease.Grow(grown-t.blocks, now)
		t.blocks = grown
	}
}

// arrived takes in that a token is here, or the end of an answer without any.
func (t *tap) arrived() {
	if t.transcript.Began {
		return
	}
	now := t.watch.at()
	t.room.began(t.call.Lease.Worker, t.watch.seen, t.waits, t.watch.now)
	t.first(now)
	if t.transcript.Last.IsZero() {
		t.transcript.Last = now
	}
}

// first books the end of the prompt's computation.
func (t *tap) first(now time.Time) {
	t.transcript.Began = true
	if t.transcript.First.IsZero() {
		t.transcript.First, t.transcript.Streamed = now, 1
	}
	t.call.Lease.PrefillDone(now)
	if t.call.Taken = t.watch.took; t.call.First != nil {
		t.call.First()
	}
}
