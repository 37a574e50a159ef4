package decode

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
)

// maxAnswerBytes bounds an answer that is not streamed, and one event of a stream with more than text. If the token
// limit of a text is known, answerBytes plus tokenBytes for each token bound it. More than freeBytes counts in the
// call's memory.
const (
	maxAnswerBytes = 256 << 20
	answerBytes    = 4 << 20
	tokenBytes     = 64 << 10
	freeBytes      = 64 << 10
)

// mostEvents bounds the events of a call. Engines send one event a token, some two where a parser splits a token, and
// a few about the whole answer.
func (c *Call) mostEvents() int { return 2*cmp.Or(c.Longest, mostTokens)*max(1, c.Choices) + 64 }

// mostBytes bounds an answer that is not streamed. longer is the error beyond: the worker's failure, or more than the
// gateway relays.
func (c *Call) mostBytes() (most int, longer error) {
	most = answerBytes + tokenBytes*(c.Longest+c.PromptTokens)*max(1, c.Choices)
	if c.Large || c.Longest == 0 || most >= maxAnswerBytes {
		return maxAnswerBytes, fault.ErrTooLarge
	}
	return most, fault.ErrGarbled
}

// longer returns the stream splitter's check for long events, nil if none are allowed.
func (t *tap) longer() func(n int) bool {
	if !t.call.Large {
		return nil
	}
	return t.fits
}

// fits reports whether an event of n bytes may be held, in up to three copies. If not, and if the
// request is at fault, it sets over.
func (t *tap) fits(n int) bool {
	switch {
	case !t.call.Large:
		return false
	case n > maxAnswerBytes:
		t.over = fmt.Errorf("%w: an event over %d bytes", fault.ErrTooLarge, maxAnswerBytes)
	default:
		t.over = t.take(3 * n)
	}
	return t.over == nil
}

// take reserves memory up to a total of n bytes. Its error is that of a gateway without memory.
func (t *tap) take(n int) error {
	if n <= t.taken || t.call.Memory == nil {
		return nil
	}
	more := max(n-t.taken, t.taken/4) // fewer calls
	if !t.call.Memory.Take(more) {
		return fmt.Errorf("%w: %w", fault.ErrTooLarge, openai.MemoryTaken())
	}
	t.taken += more
	return nil
}

// give returns the reserved memory.
func (t *tap) give() {
	if t.taken > 0 {
		t.call.Memory.Give(t.taken)
		t.taken = 0
	}
}

// read reads an answer that is not streamed. It counts twice: for growing, or for its changed form.
func (t *tap) read() ([]byte, error) {
	most, longer := t.call.mostBytes()
	body := make([]byte, 0, 512)
	for {
		if len(body) > most {
			return nil, fmt.Errorf("%w: over %d bytes", longer, most)
		}
		if len(body) == cap(body) {
			size := 2 * cap(body)
			if size > 1<<20 {
				size = min(cap(body)*5/4, most+1)
			}
			if size > freeBytes {
				if err := t.take(2 * size); err != nil {
					return nil, err
				}
			}
			body = append(make([]byte, 0, size), body...)
		}
		n, err := t.watch.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if errors.Is(err, io.EOF) {
			return body, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// relay relays the answer of an endpoint that generates nothing.
func (t *tap) relay(contentType string) error {
	body, err := t.read()
	if err != nil {
		return err
	}
	call := t.call
	if call.Endpoint == openai.Rerank {
		body = openai.RerankAnswer(body, call.Leg.RequestID, call.Lease.Worker.Model)
	}
	if contentType != octets {
		info := openai.Inspect(body)
		switch {
		case !info.Valid:
			return fmt.Errorf("%w: not a JSON object", fault.ErrGarbled)
		case info.Error:
			return t.failed(body)
		}
		t.usage(&info)
		contentType = "application/json"
	}
	if now := time.Now(); call.Endpoint.Computes() {
		t.room.observe(call.Lease, t.watch.seen, t.waits, now.Sub(t.watch.start))
		t.watch.seen.token(now)
	}
	t.first(time.Now())
	t.transcript.Started = true
	t.Start(contentType)
	if err := t.Sink.Write(body); err != nil {
		return fmt.Errorf("%w: %w", fault.ErrClientGone, err)
	}
	return nil
}

// octets is the type of an answer in bytes (encoding_format "bytes_only").
const octets = "application/octet-stream"

// lacksEndpoint reports whether an engine's refusal is about the path, not about the model or adapter: FastAPI's 404 and
// 405, and vLLM's 501 for another kind of model (entrypoints/serve/exception_handling of 0.32).
func lacksEndpoint(status int, message string) bool {
	return status == http.StatusNotImplemented || status == http.StatusMethodNotAllowed ||
		status == http.StatusNotFound && (message == "" || strings.EqualFold(message, "Not Found"))
}

// whole relays an answer that is not streamed.
func (t *tap) whole() error {
	body, err := t.read()
	if err != nil {
		return err
	}
	info := openai.Inspect(body)
	switch {
	case !info.Valid:
		return fmt.Errorf("%w: not a JSON object", fault.ErrGarbled)
	case info.Error:
		return t.failed(body)
	case info.Aborted && !info.Content:
		return fault.ErrEngine
	case info.Usage && t.nothing(&info):
		return errNoTokens
	}
	now := time.Now()
	t.first(now)
	t.transcript.Last = now
	t.transcript.Tokens = 1
	t.ends(&info)
	t.usage(&info)
	var nvext []byte
	if t.call.HasNvext {
		nvext = t.call.Nvext(&t.transcript)
	}
	if t.call.HideIDs && info.ShowsIDs() {
		body = info.HideIDs(make([]byte, 0, len(body)), body)
	}
	body = openai.RewriteTail(make([]byte, 0, len(body)+len(nvext)+64), body, t.call.CachedTokens(), nvext)
	t.transcript.Started = true
	t.Start("application/json")
	if err := t.Sink.Write(body); err != nil {
		return fmt.Errorf("%w: %w", fault.ErrClientGone, err)
	}
	return nil
}
