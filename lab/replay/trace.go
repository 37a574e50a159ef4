package replay

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// MooncakeBlockTokens is how many tokens a hash id of Mooncake's traces stands for.
const MooncakeBlockTokens = 512

// Bounds of a trace, so that a file of another kind is an error and not an exhausted memory.
const (
	maxLineBytes   = 16 << 20
	maxTokens      = 1 << 24               // of a prompt, of an answer
	maxTraceMillis = 10 * 365 * 24 * 3.6e6 // milliseconds
)

// TraceError is a mistake in a trace, with its place.
type TraceError struct {
	File  string
	Line  int    // from 1
	Field string // empty where it is the whole line
	Err   error
}

// Error implements error.
func (e *TraceError) Error() string {
	where := fmt.Sprintf("%s:%d", e.File, e.Line)
	if e.Field != "" {
		where += ": " + e.Field
	}
	return where + ": " + e.Err.Error()
}

// Unwrap returns the mistake.
func (e *TraceError) Unwrap() error { return e.Err }

// Reading is how a trace is read.
type Reading struct {
	// BlockTokens is how many tokens a hash id stands for.
	BlockTokens int
	// Limit above 0 is how many requests to read at most.
	Limit int
	// Lenient passes over lines that are wrong, and counts them.
	Lenient bool
}

// ReadTrace is [Read] for a trace in which every line must be right.
func ReadTrace(r io.Reader, file string, blockTokens, limit int) (*Workload, error) {
	w, _, err := Read(r, file, Reading{BlockTokens: blockTokens, Limit: limit})
	return w, err
}

// Read reads a trace in Mooncake's format: JSON lines of timestamp (milliseconds), input_length and output_length
// (tokens) and hash_ids, one for each blockTokens tokens of the prompt; gzip is recognised by content. Tokens beyond
// the last hash id are the request's own, and so is a prompt without hash ids.
//
// Lines of the same session_id follow one another, as AIPerf has them: each is sent when the answer to the one before
// has ended and its delay (milliseconds) has passed; without a delay, the difference of their timestamps. A session
// without a timestamp begins at 0. Every line is a whole prompt: answers are not put into the next one.
//
// AIPerf's older names of the fields are read too (input_tokens, output_tokens, created_time, delay_ms), and fields
// that are not named here passed over. A file that begins with the column names of Azure's traces (TIMESTAMP,
// ContextTokens, GeneratedTokens) is read as such; its prompts share nothing.
//
// skipped is how many wrong lines a lenient reading passed over. Errors about the content are a *[TraceError].
func Read(r io.Reader, file string, o Reading) (w *Workload, skipped int, err error) {
	if o.BlockTokens < 1 {
		return nil, 0, fmt.Errorf("replay: a trace block of %d tokens", o.BlockTokens)
	}
	in, err := unzipped(r, file)
	if err != nil {
		return nil, 0, err
	}
	t := traceReader{blockTokens: o.BlockTokens, sessions: map[string]float64{}}
	read := t.read
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLineBytes)
	line := 0
	for (o.Limit <= 0 || len(t.requests) < o.Limit) && lines.Scan() {
		line++
		text := bytes.TrimSpace(lines.Bytes())
		if len(text) == 0 {
			continue
		}
		if line == 1 && bytes.Contains(text, []byte(azureColumns[0])) && text[0] != '{' {
			azure, err := newAzureReader(&t, text)
			if err != nil {
				return nil, 0, &TraceError{File: file, Line: line, Err: err}
			}
			read = azure.read
			continue
		}
		if err := read(text); err != nil {
			if o.Lenient {
				skipped++
				continue
			}
			return nil, 0, located(file, line, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, 0, &TraceError{File: file, Line: line + 1, Err: err}
	}
	if len(t.requests) == 0 {
		return nil, skipped, fmt.Errorf("%s: no request in it", file)
	}
	return &Workload{Name: file, Requests: t.requests}, skipped, nil
}

// row is a line of a trace.
type row struct {
	Timestamp    *float64 `json:"timestamp"`
	CreatedTime  *float64 `json:"created_time"`
	InputLength  *int     `json:"input_length"`
	InputTokens  *int     `json:"input_tokens"`
	OutputLength *int     `json:"output_length"`
	OutputTokens *int     `json:"output_tokens"`
	HashIDs      []int64  `json:"hash_ids"`
	SessionID    string   `json:"session_id"`
	Delay        *float64 `json:"delay"`
	DelayMS      *float64 `json:"delay_ms"`
}

// fieldError is a mistake in a field of a line.
type fieldError struct {
	field string
	err   error
}

func (e fieldError) Error() string { return e.field + ": " + e.err.Error() }

func badField(field, format string, args ...any) error {
	return fieldError{field, fmt.Errorf(format, args...)}
}

// traceReader keeps the state that the next line depends on.
type traceReader struct {
	blockTokens int
	requests    []Request
	last        float64            // timestamp of the last line without a session
	sessions    map[string]float64 // timestamp of each session's last line
}

func (t *traceReader) read(line []byte) error {
	var in row
	if err := json.Unmarshal(line, &in); err != nil {
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) && kind.Field != "" {
			return badField(kind.Field, "%s is not what belongs here", kind.Value)
		}
		return errors.New("not a JSON object: " + strings.TrimPrefix(err.Error(), "json: "))
	}
	in.Timestamp, in.InputLength = either(in.Timestamp, in.CreatedTime), either(in.InputLength, in.InputTokens)
	in.OutputLength, in.Delay = either(in.OutputLength, in.OutputTokens), either(in.Delay, in.DelayMS)
	return t.add(&in)
}

// add takes a line that was read.
func (t *traceReader) add(in *row) error {
	r := Request{Index: len(t.requests), Session: in.SessionID}
	if err := errors.Join(tokenCount("input_length", in.InputLength), tokenCount("output_length", in.OutputLength)); err != nil {
		return err
	}
	r.OutputTokens = *in.OutputLength
	if err := t.times(&r, in); err != nil {
		return err
	}
	if err := t.spans(&r, in); err != nil {
		return err
	}
	t.requests = append(t.requests, r)
	return nil
}

func either[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}

func tokenCount(field string, n *int) error {
	switch {
	case n == nil:
		return badField(field, "missing")
	case *n < 1:
		return badField(field, "%d is below 1", *n)
	case *n > maxTokens:
		return badField(field, "%d is above %d", *n, maxTokens)
	}
	return nil
}

// times sets when the request is sent.
func (t *traceReader) times(r *Request, in *row) error {
	for _, f := range []struct {
		name  string
		value *float64
	}{{"timestamp", in.Timestamp}, {"delay", in.Delay}} {
		if f.value == nil {
			continue
		}
		if *f.value < 0 || *f.value > maxTraceMillis {
			return badField(f.name, "%v ms is not between 0 and ten years", *f.value)
		}
	}
	if r.Session == "" {
		switch {
		case in.Timestamp == nil:
			return badField("timestamp", "missing, and no session_id either")
		case *in.Timestamp < t.last:
			return badField("timestamp", "%v ms is before the line above, at %v ms", *in.Timestamp, t.last)
		case in.Delay != nil:
			return badField("delay", "without a session_id there is nothing to count it from")
		}
		t.last = *in.Timestamp
		r.At = millis(*in.Timestamp)
		return nil
	}
	before, follows := t.sessions[r.Session]
	at := before
	if in.Timestamp != nil {
		at = *in.Timestamp
	}
	if follows && at < before {
		return badField("timestamp", "%v ms is before the session's line above, at %v ms", at, before)
	}
	t.sessions[r.Session] = at
	delay := at - before
	if !follows {
		delay = 0
	}
	if in.Delay != nil {
		delay = *in.Delay
	}
	if follows {
		r.Delay = millis(delay)
		r.At = millis(at)
	} else {
		r.At = millis(at + delay)
	}
	return nil
}

func millis(ms float64) time.Duration { return time.Duration(math.Round(ms * 1e6)) }

// spans sets the request's prompt.
func (t *traceReader) spans(r *Request, in *row) error {
	left := *in.InputLength
	if most := (left + t.blockTokens - 1) / t.blockTokens; len(in.HashIDs) > most {
		return badField("hash_ids", "%d blocks of %d tokens are more than a prompt of %d tokens has; is the trace's block size another?",
			len(in.HashIDs), t.blockTokens, left)
	}
	r.Spans = make([]Span, 0, len(in.HashIDs)+1)
	for _, id := range in.HashIDs {
		if id < 0 {
			return badField("hash_ids", "%d is below 0", id)
		}
		n := min(left, t.blockTokens)
		r.Spans = append(r.Spans, Span{ID: uint64(id), Tokens: n})
		left -= n
	}
	if left > 0 {
		r.Spans = append(r.Spans, Span{ID: ownSpans | uint64(r.Index), Tokens: left})
	}
	return nil
}
