package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
)

// Question is the i-th request of a replay: either endpoint, streamed or not, with a prompt of its own or a shared
// prefix.
type Question struct {
	Path, Body string
	Stream     bool
	Want       string
}

func IthQuestion(i int) Question {
	if i%2 == 0 {
		return QuestionOf(i, Long+fmt.Sprint(i))
	}
	return QuestionOf(i, fmt.Sprintf("%d %s", i, Long))
}

// QuestionOf makes a request of text in the form of the i-th question.
func QuestionOf(i int, text string) Question { return Asked(text, i%4 < 2, i%3 != 0, 12) }

// Asked makes a request of text for so many tokens, with the usage if it is a stream.
func Asked(text string, chat, stream bool, tokens int) Question {
	q := Question{Path: CompletionPath, Stream: stream}
	content, prompt := fmt.Sprintf(`"prompt":%q`, text), TextPrompt(text)
	if chat {
		q.Path = ChatPath
		content, prompt = fmt.Sprintf(`"messages":[{"role":"user","content":%q}]`, text), ChatPrompt(text)
	}
	if stream {
		content += `,"stream_options":{"include_usage":true}`
	}
	q.Body = fmt.Sprintf(`{"model":"tandem-sim","max_tokens":%d,"stream":%v,%s}`, tokens, stream, content)
	q.Want = Expected(prompt, tokens)
	return q
}

// Verdict judges one answer: token for token the undisturbed one, or one typed error, before the first byte as an HTTP
// status or after it as the stream's last event. Anything else is an error.
func (f *Fleet) Verdict(q Question, a Answer) (whole bool, err error) {
	f.T.Helper()
	typed := func(e *Failure) bool { return e != nil && e.Type != "" && e.Message != "" && e.Code != nil }
	if a.Status != http.StatusOK {
		e := f.Parse(a.Body).Error
		switch {
		case a.Status < 400 || a.Events != nil:
			return false, fmt.Errorf("status %d with %d events", a.Status, len(a.Events))
		case !typed(e) || e.RequestID != a.Header.Get("X-Request-Id"):
			return false, fmt.Errorf("status %d without a typed error: %s", a.Status, a.Body)
		}
		return false, nil
	}
	if !q.Stream {
		if got := f.Text(a); got != q.Want || f.Parse(a.Body).Choices[0].FinishReason == nil {
			return false, fmt.Errorf("answered %q, undisturbed %q", a.Body, q.Want)
		}
		return true, nil
	}
	if len(a.Events) == 0 {
		return false, errors.New("a stream without any event")
	}
	last, before := a.Events[len(a.Events)-1], a.Events[:len(a.Events)-1]
	got := f.Text(Answer{Events: before})
	for _, e := range before {
		if e == "[DONE]" || f.Parse([]byte(e)).Error != nil {
			return false, fmt.Errorf("an end that is not the last event: %q", a.Events)
		}
	}
	switch {
	case last == "[DONE]" && got == q.Want:
		return true, nil
	case last == "[DONE]":
		return false, fmt.Errorf("ended well with %q, undisturbed %q", got, q.Want)
	case !typed(f.Parse([]byte(last)).Error):
		return false, fmt.Errorf("the stream ended with %q", last)
	case strings.Contains(f.Parse([]byte(last)).Error.Message, "did not stop") && got != "":
		return false, nil // the worker continued with what it liked, and was ended for it
	case !strings.HasPrefix(q.Want, got) || got == "":
		return false, fmt.Errorf("failed after %q, undisturbed %q: %q", got, q.Want, a.Events)
	}
	return false, nil
}

// Request is a request to a generating endpoint, with header lines as given.
func Request(body string, headers ...string) []byte {
	head := "POST /v1/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
	for _, h := range headers {
		head += h + "\r\n"
	}
	return []byte(head + "\r\n" + body)
}

// Sized is request with the body's length, after which the connection ends.
func Sized(body string, headers ...string) []byte {
	return Request(body, append([]string{"Content-Length: " + strconv.Itoa(len(body)), "Connection: close"}, headers...)...)
}

func Ask(prompt string, tokens int) string {
	return fmt.Sprintf(`{"model":"tandem-sim","max_tokens":%d,"ignore_eos":true,"stream":true,`+
		`"nvext":{"extra_fields":["worker_id"]},"prompt":%q}`, tokens, prompt)
}

// Served reads who served a streamed answer.
func (f *Fleet) Served(a Answer) (prefill, decode string) {
	f.T.Helper()
	w := f.Nvext(a).WorkerID
	return w.Prefill, w.Decode
}

// Transfers is how long the transfers of all clients take, one after another: an engine finishes what it has begun.
const Transfers = 2500 * time.Millisecond

// Clients is how many leave at once.
const Clients = 50

// LeaveAtOnce makes the clients leave in a phase: all but one in a hundred are released everywhere within 20 ms, or
// once begun transfers are over.
func LeaveAtOnce(t *testing.T, f *Fleet, phase, prompt string, there func(f *Fleet) bool) {
	t.Helper()
	limit := 20 * time.Millisecond
	if phase == "transfer" {
		limit += Transfers
	}
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	var group sync.WaitGroup
	for i := range Clients {
		group.Go(func() {
			_, err := f.Try(ctx, CompletionPath, Ask(fmt.Sprintf("%d %s", i, prompt), 2000), func(string) { f.First(i) })
			assert.True(t, err == nil || errors.Is(err, context.Canceled), "client %d: %v", i, err)
		})
	}
	f.Eventually("every request is in "+phase, func() bool { return there(f) })
	left := time.Now()
	leave()
	for f.held() > Clients/100 {
		if time.Since(left) > limit {
			t.Fatalf("held %v after the clients left: %s", limit, f.Books())
		}
		<-time.After(500 * time.Microsecond)
	}
	f.Idle()
	group.Wait()
}

// Streams requests n concurrent answers, which must be exact, and calls do once each has reached its fifth event.
func (f *Fleet) Streams(n, tokens int, do func()) {
	f.T.Helper()
	var begun, group sync.WaitGroup
	begun.Add(n)
	for i := range n {
		group.Go(func() {
			prompt, events := fmt.Sprint(i, Long), 0
			a, err := f.Try(context.Background(), CompletionPath, Ask(prompt, tokens), func(string) {
				if events++; events == 5 {
					begun.Done()
				}
			})
			if err != nil || f.Text(a) != Answered(prompt, tokens) || a.Events[len(a.Events)-1] != "[DONE]" {
				f.T.Errorf("%v: the answer is %q, want %q", err, f.Text(a), Answered(prompt, tokens))
			}
		})
	}
	begun.Wait()
	do()
	group.Wait()
}

// Engines counts the requests that the engines of a role hold.
func (f *Fleet) Engines(role string) (n int) {
	for id, w := range f.Workers {
		if strings.HasPrefix(id, role) {
			n += len(w.Engine.Books().Requests)
		}
	}
	return n
}

// Transferring counts the requests that wait for KV.
func (f *Fleet) Transferring() (n int) {
	for _, w := range f.Workers {
		n += w.Engine.Books().Transferring
	}
	return n
}

// held counts the requests that any engine or booking still has.
func (f *Fleet) held() (n int) {
	for _, w := range f.Workers {
		b := w.Engine.Books()
		n += len(b.Requests) + len(b.Pinned)
	}
	for _, p := range f.Gateway.Fleet.Report() {
		for _, w := range p.Workers {
			n += w.Requests
		}
	}
	return n + f.Gateway.Flow.Waiting()["tandem-sim"].Waiting
}

// First notes that client i has got something.
func (f *Fleet) First(i int) { f.Got.Store(i, true) }

// Started counts the clients that have got something.
func (f *Fleet) Started() (n int) {
	f.Got.Range(func(any, any) bool { n++; return true })
	return n
}

// OccupyFor is occupy with an answer of so many tokens at the most.
func (f *Fleet) OccupyFor(tokens int) (leave func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _, _ = f.Try(ctx, CompletionPath, Ask(Long, tokens), func(string) { f.First(-1) }) })
	f.Eventually("the decode worker is taken", func() bool { return f.Started() > 0 })
	return func() {
		cancel()
		group.Wait()
	}
}

// Pinned is a request's body with the given nvext members.
func Pinned(nvext string) string {
	if nvext != "" {
		nvext += ","
	}
	return `{"model":"tandem-sim","max_tokens":4,"prompt":"` + Long + `","nvext":{` + nvext + `"extra_fields":["worker_id"]}}`
}

func InMode(mode string) func(c *stack.GatewayConfig) {
	return func(c *stack.GatewayConfig) {
		c.Router.Mode = mode
	}
}

// Cut requests an answer and kills the decode worker that generates it after so many events.
func (f *Fleet) Cut(path, body string, after int, headers ...string) (a Answer, killed string) {
	f.T.Helper()
	n := 0
	a, err := f.Try(context.Background(), path, body, func(string) {
		if n++; n == after {
			killed = f.Generating()
			f.Workers[killed].Kill()
		}
	}, headers...)
	require.NoError(f.T, err)
	return a, killed
}

// Generating is the decode worker that has a running request.
func (f *Fleet) Generating() string {
	f.T.Helper()
	for id, w := range f.Workers {
		if strings.HasPrefix(id, "decode") && w.Engine.Books().Running > 0 {
			return id
		}
	}
	f.T.Fatal("no decode worker generates")
	return ""
}

// Of is a fleet of an engine.
func Of(name string) Options {
	return Options{Worker: func(c *devfleet.WorkerConfig) { c.Engine.Engine = name }}
}
