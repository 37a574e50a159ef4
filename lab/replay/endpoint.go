package replay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
)

// Bounds on the part of an answer that is read.
const (
	maxEventBytes = 4 << 20
	maxErrorBytes = 64 << 10
	maxDetail     = 200
)

// Endpoint is an OpenAI API under load.
type Endpoint struct {
	// URL is its root, with or without the /v1 of its paths.
	URL string
	// Model and APIKey go into every request; an empty key sends none.
	Model  string
	APIKey string
	// Prompter makes the prompts: token ids, or text for endpoints that take no ids.
	Prompter *Prompter
	Text     bool
	// Nvext requests the workers of each request. It is dropped if the endpoint rejects such requests and accepts
	// others.
	Nvext bool
	// IgnoreEOS requests exactly the workload's number of tokens. Engines have the field; OpenAI's API does not.
	IgnoreEOS bool
	// Transport carries the requests.
	Transport http.RoundTripper

	nvext atomic.Int32
}

// Whether the endpoint accepts nvext.
const (
	nvextUntried int32 = iota
	nvextTaken
	nvextRefused
)

// path returns the URL of a path below /v1.
func (e *Endpoint) path(name string) string {
	return strings.TrimSuffix(strings.TrimRight(e.URL, "/"), "/v1") + "/v1/" + name
}

// FirstModel returns the first of the endpoint's models.
func (e *Endpoint) FirstModel(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.path("models"), nil)
	if err != nil {
		return "", err
	}
	e.authorize(req)
	res, err := e.Transport.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxEventBytes))
	if err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		text, _ := reported(raw)
		return "", fmt.Errorf("%s answers %d: %s", req.URL, res.StatusCode, text)
	}
	var list struct {
		Data []struct{ ID string } `json:"data"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return "", fmt.Errorf("%s: %w", req.URL, err)
	}
	if len(list.Data) == 0 {
		return "", fmt.Errorf("%s lists no model, so that nothing is served there yet", req.URL)
	}
	return list.Data[0].ID, nil
}

// NvextRefused reports whether the endpoint was found not to take nvext.
func (e *Endpoint) NvextRefused() bool { return e.nvext.Load() == nvextRefused }

// nvextMember is the last member of a body that requests its workers.
const nvextMember = `,"nvext":{"extra_fields":["worker_id","timing"]}`

// body makes the request's body. It ends in nvextMember and a brace if the workers are requested.
func (e *Endpoint) body(r *Request) []byte {
	b := make([]byte, 0, 256+6*r.InputTokens())
	b = append(b, `{"model":`...)
	name, err := json.Marshal(e.Model)
	if err != nil {
		panic(err) // a string always can be
	}
	b = append(b, name...)
	b = append(b, `,"stream":true,"stream_options":{"include_usage":true},"max_tokens":`...)
	b = strconv.AppendInt(b, int64(r.OutputTokens), 10)
	if e.IgnoreEOS {
		b = append(b, `,"ignore_eos":true`...)
	}
	b = append(b, `,"prompt":`...)
	if e.Text {
		b = append(b, '"')
		b = e.Prompter.AppendText(b, r.Spans)
		b = append(b, '"')
	} else {
		b = e.Prompter.AppendIDs(b, r.Spans)
	}
	if e.Nvext && !e.NvextRefused() {
		b = append(b, nvextMember...)
	}
	return append(b, '}')
}

// send sends a body made by body and fills the sample in, up to E2E. Due is when the request was scheduled.
func (e *Endpoint) send(ctx context.Context, body []byte, due time.Time, s *Sample) {
	s.Late = Millis(time.Since(due))
	a := answer{sample: s, due: due}
	a.outcome(e.ask(ctx, body, &a))
	if a.tokens > 0 && s.OutputTokens == 0 {
		s.OutputTokens = a.tokens
	}
	if a.done.IsZero() {
		a.done = time.Now()
	}
	s.End(a.done.Sub(due))
}

// ask has the body answered, without nvext when it turns out that the endpoint refuses requests because of it.
func (e *Endpoint) ask(ctx context.Context, body []byte, a *answer) error {
	plain, asks := bytes.CutSuffix(body, []byte(nvextMember+"}"))
	if asks && e.NvextRefused() {
		body, asks = closed(plain), false
	}
	err := e.post(ctx, body, a)
	if !asks {
		return err
	}
	var refused *statusError
	if !errors.As(err, &refused) || refused.status != http.StatusBadRequest && refused.status != http.StatusUnprocessableEntity {
		if err == nil {
			e.nvext.CompareAndSwap(nvextUntried, nvextTaken)
		}
		return err
	}
	if e.nvext.Load() == nvextTaken {
		return err // it minds something else
	}
	err = e.post(ctx, closed(plain), a)
	if !errors.As(err, &refused) || refused.status != a.sample.Status {
		e.nvext.CompareAndSwap(nvextUntried, nvextRefused)
	}
	return err
}

// closed is a body with its last brace, in memory of its own: the transport may still be reading the one before.
func closed(body []byte) []byte { return append(bytes.Clone(body), '}') }

func (e *Endpoint) authorize(req *http.Request) {
	if e.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+e.APIKey)
	}
}

// post sends one body and reads its answer to the end.
func (e *Endpoint) post(ctx context.Context, body []byte, a *answer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.path("completions"), bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	e.authorize(req)
	res, err := e.Transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	a.sample.Status = res.StatusCode
	if res.StatusCode != http.StatusOK {
		raw, _ := io.ReadAll(io.LimitReader(res.Body, maxErrorBytes)) // what can be read of it
		text, code := reported(raw)
		return &statusError{res.StatusCode, text, code}
	}
	return a.read(res.Body)
}

// answer is the stream of one request as it is read.
type answer struct {
	sample *Sample
	due    time.Time
	last   time.Time // of the last chunk with content
	tokens int       // by chunks
	done   time.Time // when [DONE] arrived
}

// read reads a stream of events up to its end.
func (a *answer) read(body io.Reader) error {
	events := openai.NewSplitter(maxEventBytes)
	buf := make([]byte, 16<<10)
	for {
		n, readErr := body.Read(buf)
		now := time.Now()
		events.Write(buf[:n])
		for {
			ev, ok := events.Next()
			if !ok {
				break
			}
			if err := a.event(ev, now); err != nil {
				return err
			}
		}
		switch err := events.Err(); {
		case err != nil:
			return &streamError{class: Malformed, text: err.Error()}
		case readErr != nil && !a.done.IsZero():
			return nil
		case readErr == io.EOF:
			return &streamError{class: Cut, text: "the stream ended without [DONE]"}
		case readErr != nil:
			return &streamError{class: Cut, text: readErr.Error()}
		}
	}
}

// event takes one event of the stream in.
func (a *answer) event(ev openai.Event, now time.Time) error {
	if ev.Data == nil {
		return nil
	}
	if ev.Done() {
		a.done = now
		return nil
	}
	s := a.sample
	c := openai.Inspect(ev.Data)
	switch {
	case !c.Valid:
		return &streamError{class: Malformed, text: "an event is not a JSON object"}
	case c.Error:
		text, code := reported(ev.Data)
		return &streamError{ErrorEvent, text, code}
	}
	if c.Content {
		if a.last.IsZero() {
			s.TTFT = Millis(now.Sub(a.due))
		} else {
			s.Gaps = append(s.Gaps, Millis(now.Sub(a.last)))
		}
		a.last = now
		a.tokens += c.Tokens
	}
	if c.Usage {
		s.PromptTokens, s.OutputTokens = c.PromptTokens, c.CompletionTokens
		s.CachedTokens = max(s.CachedTokens, c.CachedTokens)
	}
	if bytes.Contains(ev.Data, []byte(`"worker_id"`)) {
		a.workers(ev.Data)
	}
	return nil
}

// workers reads the workers that served and the parts of TTFT. Ids are strings or, as Dynamo has them, numbers.
func (a *answer) workers(data []byte) {
	var in struct {
		Nvext struct {
			WorkerID struct {
				Prefill json.RawMessage `json:"prefill_worker_id"`
				Decode  json.RawMessage `json:"decode_worker_id"`
			} `json:"worker_id"`
			Timing struct {
				Queue   Millis `json:"queue_ms"`
				Prefill Millis `json:"prefill_ms"`
			} `json:"timing"`
		} `json:"nvext"`
	}
	if json.Unmarshal(data, &in) != nil {
		return
	}
	a.sample.Queue, a.sample.Prefill = in.Nvext.Timing.Queue, in.Nvext.Timing.Prefill
	for _, w := range []struct {
		raw json.RawMessage
		id  *string
	}{{in.Nvext.WorkerID.Prefill, &a.sample.PrefillWorker}, {in.Nvext.WorkerID.Decode, &a.sample.DecodeWorker}} {
		if text := strings.Trim(string(w.raw), `"`); text != "" && text != "null" {
			*w.id = text
		}
	}
}

// statusError is an answer with a status that is not 200.
type statusError struct {
	status     int
	text, code string
}

func (e *statusError) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.text) }

// streamError is a stream that went wrong, with the class of its failure, and
// the code of an error that the endpoint sent.
type streamError struct{ class, text, code string }

func (e *streamError) Error() string { return e.text }

// errTimedOut is the cause of a request that took too long.
var errTimedOut = errors.New("longer than the limit")

// outcome names how the request ended.
func (a *answer) outcome(err error) {
	s := a.sample
	var status *statusError
	var stream *streamError
	switch {
	case err == nil:
		s.Outcome = Answered
		return
	case errors.As(err, &status):
		s.Outcome, s.Detail, s.Code = "http_"+strconv.Itoa(status.status), status.text, status.code
	case errors.As(err, &stream):
		s.Outcome, s.Detail, s.Code = stream.class, shortened(stream.text), stream.code
	default:
		s.Outcome, s.Detail = Unreachable, shortened(err.Error())
	}
}

// reported returns the message and the code of an endpoint's error: its own in OpenAI's form, else the beginning of the
// body.
func reported(raw []byte) (text, code string) {
	var in struct {
		Error struct {
			Message string `json:"message"`
			Code    any    `json:"code"` // a name, or a number as vLLM has it
		} `json:"error"`
	}
	if json.Unmarshal(raw, &in) != nil || in.Error.Message == "" {
		return shortened(string(raw)), ""
	}
	code, _ = in.Error.Code.(string)
	return shortened(in.Error.Message), shortened(code)
}

// shortened is a text on one line of a bounded length.
func shortened(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxDetail {
		text = strings.ToValidUTF8(text[:maxDetail], "") + "…"
	}
	return text
}
