package replay

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// LogTrace is the requests of a gateway's log, without what was in
// them: when they came, how long they were, and, where it ran with --log-requests=blocks,
// which of them began alike.
type LogTrace struct {
	// BlockTokens is how many tokens a hash id stands for.
	BlockTokens int
	// Named is how many requests have the names of their blocks; the prompts of the others share nothing.
	Named int
	// LeftOut counts requests that cannot be sent again: those that were
	// refused or failed before their first token, whose lengths are not known.
	LeftOut int
	// Skipped counts lines that a lenient reading passed over.
	Skipped int

	rows []logRow
}

// logRow is one request, as it is written.
type logRow struct {
	Timestamp    int64   `json:"timestamp"` // milliseconds after the first
	InputLength  int     `json:"input_length"`
	OutputLength int     `json:"output_length"`
	HashIDs      []int64 `json:"hash_ids,omitempty"`

	at time.Time
}

// FromLog reads a gateway's log in either of its formats, gzipped or not. Lines that are not a request's are passed
// over. Requests are ordered by their arrival: the time of the line less what the request took. Errors about the
// content are a *[TraceError]; a lenient reading counts such lines instead.
func FromLog(r io.Reader, file string, lenient bool) (*LogTrace, error) {
	in, err := unzipped(r, file)
	if err != nil {
		return nil, err
	}
	t := &LogTrace{}
	ids := map[string]int64{}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLineBytes)
	line := 0
	for lines.Scan() {
		line++
		values, ok := requestLine(lines.Bytes())
		if !ok {
			continue
		}
		if err := t.add(values, ids); err != nil {
			if lenient {
				t.Skipped++
				continue
			}
			return nil, located(file, line, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, &TraceError{File: file, Line: line + 1, Err: err}
	}
	if len(t.rows) == 0 {
		return nil, fmt.Errorf("%s: no answered request in it; a gateway logs one line a request at --log-level info, with all of it in the formats json and logfmt", file)
	}
	slices.SortStableFunc(t.rows, func(a, b logRow) int { return a.at.Compare(b.at) })
	for i := range t.rows {
		t.rows[i].Timestamp = t.rows[i].at.Sub(t.rows[0].at).Milliseconds()
	}
	if t.BlockTokens == 0 {
		t.BlockTokens = MooncakeBlockTokens
	}
	return t, nil
}

// Len is how many requests there are.
func (t *LogTrace) Len() int { return len(t.rows) }

// Span is the time from the first request to the last.
func (t *LogTrace) Span() time.Duration { return t.rows[len(t.rows)-1].at.Sub(t.rows[0].at) }

// Write writes the trace in Mooncake's format.
func (t *LogTrace) Write(w io.Writer) error {
	out := bufio.NewWriter(w)
	e := json.NewEncoder(out)
	for i := range t.rows {
		if err := e.Encode(&t.rows[i]); err != nil {
			return err
		}
	}
	return out.Flush()
}

// add takes a request's line. ids gives each block's name its number, in the order in which they are met.
func (t *LogTrace) add(values map[string]string, ids map[string]int64) error {
	var r logRow
	at, err := time.Parse(time.RFC3339Nano, values["time"])
	if err != nil {
		return badField("time", "%q is not a time", values["time"])
	}
	total, err := strconv.ParseFloat(values["total_ms"], 64)
	if err != nil || !(total >= 0 && total <= maxTraceMillis) {
		return badField("total_ms", "%q is not a number of milliseconds", values["total_ms"])
	}
	r.at = at.Add(-time.Duration(math.Round(total * 1e6)))
	for _, f := range []struct {
		name string
		to   *int
	}{{"isl", &r.InputLength}, {"osl", &r.OutputLength}} {
		n, err := strconv.Atoi(values[f.name])
		if err != nil || n < 0 || n > maxTokens {
			return badField(f.name, "%q is not a number of tokens", values[f.name])
		}
		*f.to = n
	}
	if r.InputLength == 0 || r.OutputLength == 0 {
		t.LeftOut++
		return nil
	}
	if size, ok := values["block_tokens"]; ok {
		if err := t.name(&r, size, values["blocks"], ids); err != nil {
			return err
		}
	}
	t.rows = append(t.rows, r)
	return nil
}

// nameLetters is how long a block's name is in the log.
const nameLetters = 8

// name gives the request's blocks their numbers.
func (t *LogTrace) name(r *logRow, size, names string, ids map[string]int64) error {
	tokens, err := strconv.Atoi(size)
	switch {
	case err != nil || tokens < 1 || tokens > maxTokens:
		return badField("block_tokens", "%q is not a number of tokens", size)
	case t.BlockTokens != 0 && t.BlockTokens != tokens:
		return badField("block_tokens", "%d, and the lines above have %d: the workers' block size was changed; convert the log in two parts", tokens, t.BlockTokens)
	case len(names)%nameLetters != 0:
		return badField("blocks", "%d letters, which are not %d a block", len(names), nameLetters)
	case len(names)/nameLetters*tokens > r.InputLength:
		return badField("blocks", "%d blocks of %d tokens are more than a prompt of %d tokens has", len(names)/nameLetters, tokens, r.InputLength)
	}
	t.BlockTokens = tokens
	t.Named++
	for ; names != ""; names = names[nameLetters:] {
		id, ok := ids[names[:nameLetters]]
		if !ok {
			id = int64(len(ids))
			ids[strings.Clone(names[:nameLetters])] = id
		}
		r.HashIDs = append(r.HashIDs, id)
	}
	return nil
}

// requestLine parses a line of the log, and reports whether it is a request's.
func requestLine(line []byte) (values map[string]string, ok bool) {
	line = bytes.TrimSpace(line)
	switch {
	case len(line) > 0 && line[0] == '{':
		values = jsonLine(line)
	case bytes.Contains(line, []byte(" msg=request ")):
		values = textLine(string(line))
	}
	_, ended := values["outcome"]
	return values, ended && values["msg"] == "request"
}

// jsonLine is a line's strings and numbers as text; nil where it is no object.
func jsonLine(line []byte) map[string]string {
	var all map[string]json.RawMessage
	if json.Unmarshal(line, &all) != nil {
		return nil
	}
	values := map[string]string{}
	for key, raw := range all {
		var text string
		switch {
		case json.Unmarshal(raw, &text) == nil:
			values[key] = text
		default:
			values[key] = string(raw)
		}
	}
	return values
}

// textLine is the pairs of a line of key=value, whose values are quoted where they need to be. Anything else ends it.
func textLine(line string) map[string]string {
	values := map[string]string{}
	for line != "" {
		key, rest, ok := strings.Cut(line, "=")
		if !ok {
			break
		}
		value := rest
		if strings.HasPrefix(rest, `"`) {
			quoted, err := strconv.QuotedPrefix(rest)
			if err != nil {
				break
			}
			value, _ = strconv.Unquote(quoted)
			rest = rest[len(quoted):]
		} else {
			value, _, _ = strings.Cut(rest, " ")
			rest = rest[len(value):]
		}
		values[strings.TrimSpace(key)] = value
		line = strings.TrimPrefix(rest, " ")
	}
	return values
}

// unzipped is what r holds, gzipped or not, which the content shows.
func unzipped(r io.Reader, file string) (*bufio.Reader, error) {
	in := bufio.NewReader(r)
	if magic, err := in.Peek(2); err != nil || magic[0] != 0x1f || magic[1] != 0x8b {
		return in, nil
	}
	out, err := gzip.NewReader(in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return bufio.NewReader(out), nil
}

// located adds the line to an error about its content.
func located(file string, line int, err error) error {
	at := &TraceError{File: file, Line: line, Err: err}
	var f fieldError
	if errors.As(err, &f) {
		at.Field, at.Err = f.field, f.err
	}
	return at
}
