package decode

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
)

// tap processes every event of one answer.
type tap struct {
	http1.Sink // of the client
	room       *Room
	call       *Call
	watch      *watch
	waits      prompt
	transcript Transcript
	held       []byte // events held back before the first token
	finished   int    // choices with a finish reason
	had        int    // tokens before this round
	blocks     int    // grown blocks booked on the lease
	done       bool   // the end marker was seen
	events     int    // events of this call
	comments   int    // since the latest event
	after      int    // events behind the one that finished the last choice
	taken      int    // bytes reserved of the call's memory
	over       error  // why the answer is too long, if the request is at fault
	counted    bool   // one of them was the usage
	summed     bool   // the total usage arrived in an event of its own
	plain      []byte // the latest event without its usage
	detail     []byte // the error inside the answer
	status     int    // its HTTP status
}

// maxHeldBytes bounds an answer before its first token: a role, keep-alives, a prompt's own probabilities.
const maxHeldBytes = 4 << 20

// stream relays events until the end marker.
func (t *tap) stream() error {
	err := http1.Relay(t.watch, t, t, t.longer())
	if err == nil && t.done {
		return nil
	}
	if !t.done && t.call.Draft.ends(t.call, err, t.summed) { // only its end is missing
		t.done = true
		err = t.finish()
	}
	var gone *http1.WriteError
	switch {
	case errors.As(err, &gone):
		return fmt.Errorf("%w: %w", fault.ErrClientGone, gone)
	case t.done:
		return nil // the connection does not matter after the end marker
	case err == nil, errors.Is(err, openai.ErrEventCut): // the engine ended it; a broken connection is another error
		return fault.ErrTruncated
	case t.over != nil: // the request is at fault
		return t.over
	case errors.Is(err, openai.ErrEventTooBig): // the worker is alive, and sends more
		return fmt.Errorf("%w: %w", fault.ErrGarbled, err)
	default:
		return err
	}
}

// Write relays p. The first call starts the answer, so that head and first event are sent together.
func (t *tap) Write(p []byte) error {
	if !t.transcript.Started {
		t.transcript.Started = true
		t.Start(openai.EventStream)
	}
	return t.Sink.Write(p)
}

// Last is Write for the last bytes.
func (t *tap) Last(p []byte) error {
	if !t.transcript.Started {
		t.transcript.Started = true
		t.Start(openai.EventStream)
	}
	return t.Sink.Last(p)
}

// Event processes one event. Nothing is sent before the first token: until then another worker can still take over.
// What follows the end marker is dropped. An event that begins or ends something may wait, for a queue's lock, the
// other leg, or the client.
func (t *tap) Event(dst []byte, ev openai.Event, mayWait bool) ([]byte, error) {
	if t.done {
		return dst, t.afterEnd()
	}
	if len(t.held) > maxHeldBytes && !t.fits(len(t.held)) {
		return dst, fmt.Errorf("%w: over %d bytes before its first token", fault.ErrGarbled, maxHeldBytes)
	}
	if len(ev.Data) == 0 { // a comment, an engine's keep-alive, is no sign of life
		if t.comments++; t.watch.streaming && t.comments > mostComments {
			return dst, fmt.Errorf("%w: %d comments and no event", fault.ErrRunaway, mostComments)
		}
		return t.pass(dst, ev.Raw, false), nil
	}
	if !mayWait && (!t.watch.streaming || ev.Done() || len(ev.Data) > longEvent) {
		return dst, http1.ErrWaits
	}
	var info openai.ChunkInfo
	if !ev.Done() {
		t.call.Draft.inspect(&info, ev.Data)
	}
	counts, hides := t.counts(&info)
	if !mayWait && (!info.Valid || info.Error || info.Finished > 0 || info.Usage || info.KVParams != nil ||
		info.PromptIDs != nil || t.call.Draft.mayStop()) {
		return dst, http1.ErrWaits
	}
	t.watch.event()
	if ev.Done() {
		t.done = true
		t.watch.end()
		return t.pass(dst, ev.Raw, true), nil
	}
	if !info.Valid { // relaying it would lose its token silently
		return dst, fmt.Errorf("%w: an event is no JSON object", fault.ErrGarbled)
	}
	if info.Error {
		return dst, t.failed(ev.Data)
	}
	draft := t.call.Draft
	leaves := t.watch.seen.drained.Load()
	if leaves && !mayWait {
		return dst, http1.ErrWaits
	}
	if info.Aborted && (!info.Content && !t.watch.streaming || t.watch.streaming && draft.Unresumable() == "") { // aborted: another worker may do better
		return dst, fault.ErrEngine
	}
	t.events, t.comments = t.events+1, 0
	if most := t.call.mostEvents(); t.events > most {
		return dst, fmt.Errorf("%w: over %d events", fault.ErrRunaway, most)
	}
	if t.finished >= max(1, t.call.Choices) { // after the last choice has finished
		if err := t.afterEnd(); err != nil || info.Content || info.Finished > 0 || info.Usage && t.counted {
			return dst, err
		}
		t.counted = t.counted || info.Usage
	}
	if !t.watch.streaming && counts && info.Finished > 0 && t.nothing(&info) {
		return dst, errNoTokens
	}
	if !t.watch.streaming && (info.Content || info.Finished > 0) {
		t.watch.firstToken()
	}
	if info.Finished > 0 && !info.Content {
		t.arrived() // an end token without text
	}
	t.tokens(&info, counts)
	data, stopped := ev.Data, false
	if draft != nil {
		var err error
		if data, stopped, err = draft.take(ev.Data, &info); err != nil {
			if errors.Is(err, ErrParser) {
				t.status = http.StatusUnprocessableEntity // counts as the request's own in Classify
			}
			return dst, err
		}
		if data == nil { // nothing for the client
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
	case last && t.call.HasNvext || info.Usage || info.KVParams != nil:
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
	if leaves && t.watch.streaming && t.finished == 0 && draft.Unresumable() == "" && t.call.MayResume() {
		return dst, fault.ErrMoved
	}
	return dst, nil
}

// errStopped ends a stream at a stop string that the gateway found.
var errStopped = errors.New("a stop string ends the answer")

// mostAfter bounds the events behind the one that finishes an answer: usage, end marker and extras.
const mostAfter = 64

// mostComments bounds the comments without an event between them: at one a second, an hour.
const mostComments = 3600

// longEvent bounds an event, in bytes, that is parsed on the event loop, where it delays other streams.
const longEvent = 64 << 10

// afterEnd counts an event behind the answer's end. Its error cuts a stream without an end marker.
func (t *tap) afterEnd() error {
	if t.after++; t.after > mostAfter {
		return fmt.Errorf("%w: %d events behind its end", fault.ErrRunaway, mostAfter)
	}
	return nil
}

// finish writes the end of an answer that its engine did not send.
func (t *tap) finish() error {
	var out []byte
	if t.finished == 0 {
		t.ends(&openai.ChunkInfo{Finished: 1, Reason: "length"})
		out = openai.AppendEvent(nil, t.call.Draft.envelope.AppendEnd(nil, t.call.Draft.Request.Endpoint, "length"))
	}
	if err := t.Last(t.appendEnd(out)); err != nil {
		return &http1.WriteError{Err: err}
	}
	return nil
}

// appendEnd appends the final events: the usage, if requested and missing, and the end marker.
func (t *tap) appendEnd(dst []byte) []byte {
	if d := t.call.Draft; t.call.IncludeUsage && !t.summed {
		t.transcript.PromptTokens, t.transcript.Tokens = len(d.Prompt), len(d.ids)
		data := d.envelope.AppendUsage(nil, len(d.Prompt), len(d.ids))
		dst = append(dst, t.rewrite(data, &openai.ChunkInfo{Usage: true}, true)...)
	}
	return openai.AppendEvent(dst, []byte(openai.Done))
}

// failed records an error event.
func (t *tap) failed(data []byte) error {
	e := openai.ReadEngineError(data)
	t.status, t.detail = e.Status, bytes.Clone(data[:min(len(data), maxDetailBytes)])
	if e.Died {
		return fault.ErrEngineDied
	}
	return fault.ErrEngine
}

// pass appends raw to what is sent now, or holds it back before the first token.
func (t *tap) pass(dst, raw []byte, weighty bool) []byte {
	if !weighty && !t.transcript.Started && !t.watch.streaming {
		t.held = append(t.held, raw...)
		return dst
	}
	if len(t.held) > 0 {
		dst = append(dst, t.held...)
		t.held = nil
	}
	return append(dst, raw...)
}

// last reports whether this event carries nvext: the usage event if requested, else the one that finishes the last
// choice.
func (t *tap) last(info *openai.ChunkInfo) bool {
	if t.call.IncludeUsage {
		return info.Usage && t.finished >= t.call.Choices && !info.Content
	}
	return info.Finished > 0 && t.finished >= t.call.Choices
}

// rewrite returns the changed event.
func (t *tap) rewrite(data []byte, info *openai.ChunkInfo, last bool) []byte {
	var nvext []byte
	if last && t.call.HasNvext {
		nvext = t.call.Nvext(&t.transcript)
	}
	cached := -1
	if info.Usage {
		cached = t.call.CachedTokens()
	}
	return openai.AppendEvent(nil, openai.RewriteTail(nil, data, cached, nvext))
}

// token books n new tokens.
func (t *tap) token(n int) {
	now := t.watch.at()
	tr := &t.transcript
	before := tr.Tokens
	t.arrived()
	if before > 0 {
		gap := now.Sub(tr.Last) / time.Duration(n)
		for range n {
			t.call.NextToken(gap)
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

// arrived records a token, or the end of an answer without any.
func (t *tap) arrived() {
	if t.transcript.HasToken {
		return
	}
	now := t.watch.at()
	t.room.observe(t.call.Lease, t.watch.seen, t.waits, t.watch.now)
	t.first(now)
	if t.transcript.Last.IsZero() {
		t.transcript.Last = now
	}
}

// first books the end of the prompt's computation.
func (t *tap) first(now time.Time) {
	t.transcript.HasToken = true
	if t.transcript.First.IsZero() {
		t.transcript.First, t.transcript.Streamed = now, 1
	}
	t.call.Lease.PrefillDone(now)
	t.call.Taken = t.watch.took
	t.call.FirstToken()
}
