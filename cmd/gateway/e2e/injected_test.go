package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/pools"
)

// question is the i-th request of a replay: either endpoint, streamed or not,
// with a prompt of its own or a shared beginning.
type question struct {
	path, body string
	stream     bool
	want       string
}

func ithQuestion(i int) question {
	if i%2 == 0 {
		return questionOf(i, long+fmt.Sprint(i))
	}
	return questionOf(i, fmt.Sprintf("%d %s", i, long))
}

// questionOf asks text in the form of the i-th question.
func questionOf(i int, text string) question {
	const tokens = 12
	q := question{path: completionPath, stream: i%3 != 0}
	content, prompt := fmt.Sprintf(`"prompt":%q`, text), textPrompt(text)
	if i%4 < 2 {
		q.path = chatPath
		content, prompt = fmt.Sprintf(`"messages":[{"role":"user","content":%q}]`, text), chatPrompt(text)
	}
	q.body = fmt.Sprintf(`{"model":"tandem-sim","max_tokens":%d,"stream":%v,%s}`, tokens, q.stream, content)
	q.want = expected(prompt, tokens)
	return q
}

// verdict judges one answer: token for token the undisturbed one, or one typed
// error, before the first byte as an HTTP status or after it as the stream's
// last event. Anything else is an error.
func (f *fleet) verdict(q question, a answer) (whole bool, err error) {
	f.t.Helper()
	typed := func(e *failure) bool { return e != nil && e.Type != "" && e.Message != "" && e.Code != nil }
	if a.status != http.StatusOK {
		e := f.parse(a.body).Error
		switch {
		case a.status < 400 || a.events != nil:
			return false, fmt.Errorf("status %d with %d events", a.status, len(a.events))
		case !typed(e) || e.RequestID != a.header.Get("X-Request-Id"):
			return false, fmt.Errorf("status %d without a typed error: %s", a.status, a.body)
		}
		return false, nil
	}
	if !q.stream {
		if got := f.text(a); got != q.want || f.parse(a.body).Choices[0].FinishReason == nil {
			return false, fmt.Errorf("answered %q, undisturbed %q", a.body, q.want)
		}
		return true, nil
	}
	if len(a.events) == 0 {
		return false, errors.New("a stream without any event")
	}
	last, before := a.events[len(a.events)-1], a.events[:len(a.events)-1]
	got := f.text(answer{events: before})
	for _, e := range before {
		if e == "[DONE]" || f.parse([]byte(e)).Error != nil {
			return false, fmt.Errorf("an end that is not the last event: %q", a.events)
		}
	}
	switch {
	case last == "[DONE]" && got == q.want:
		return true, nil
	case last == "[DONE]":
		return false, fmt.Errorf("ended well with %q, undisturbed %q", got, q.want)
	case !typed(f.parse([]byte(last)).Error):
		return false, fmt.Errorf("the stream ended with %q", last)
	case strings.Contains(f.parse([]byte(last)).Error.Message, "did not stop") && got != "":
		return false, nil // the worker went on with what it liked, and was ended for it
	case !strings.HasPrefix(q.want, got) || got == "":
		return false, fmt.Errorf("failed after %q, undisturbed %q: %q", got, q.want, a.events)
	}
	return false, nil
}

// injectedFleet is a fleet whose calls go wrong by a scenario.
type injectedFleet struct {
	*fleet
	hits    atomic.Int64
	streams atomic.Int64 // workers' answers that are open
}

// newInjectedFleet starts a fleet of three and three, so that two failures of a
// request need not be its end. What cannot be freed by a call, such as the KV
// of a prefill whose answer was lost, ends with a lease; a second is long
// enough for every hand-off and short enough to wait for.
func newInjectedFleet(t *testing.T, rules ...fault.Rule) *injectedFleet {
	t.Helper()
	in := &injectedFleet{}
	scenario := &fault.Scenario{Seed: 7, Rules: rules, OnHit: func(upstream.Leg, string) { in.hits.Add(1) }}
	in.fleet = newFleet(t, options{
		prefill: 3, decode: 3,
		worker: func(c *devfleet.WorkerConfig) { c.Engine.Lease = time.Second },
		gateway: func(c *stack.GatewayConfig) {
			c.Prefill.Timeout = time.Second
			c.Decode = decode.Config{FirstTokenTimeout: time.Second, StreamIdleTimeout: time.Hour}
			c.Pools.DownFor = time.Millisecond // a refusal is by chance here, and the next call need not be
			c.WrapTransport = func(inner upstream.Transport) upstream.Transport {
				return fault.Inject(&counting{inner, &in.streams}, scenario)
			}
		},
	})
	return in
}

// counting is a transport that counts the answers which are open.
type counting struct {
	upstream.Transport
	open *atomic.Int64
}

func (c *counting) Call(ctx context.Context, leg upstream.Leg) (upstream.Stream, error) {
	s, err := c.Transport.Call(ctx, leg)
	if err != nil {
		return nil, err
	}
	c.open.Add(1)
	return &counted{Stream: s, open: c.open}, nil
}

type counted struct {
	upstream.Stream
	open *atomic.Int64
	once sync.Once
}

func (c *counted) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Stream.Close()
}

// settled checks what holds after any replay: nothing is booked, no engine
// holds anything, and every answer of a worker was closed.
func (f *injectedFleet) settled() {
	f.t.Helper()
	f.idle()
	f.eventually("every answer is closed", func() bool { return f.streams.Load() == 0 })
}

// Clients that leave decode workers which have fallen silent for good take
// everything with them.
func TestClientsLeaveStalledStreams(t *testing.T) {
	virtual(t, func(t *testing.T) {
		const clients = 20
		f := newInjectedFleet(t, fault.Rule{Fault: "stall", Probability: 1, Leg: string(pools.Decode), AfterEvents: 2})
		ctx, leave := context.WithCancel(context.Background())
		defer leave()
		var group sync.WaitGroup
		for i := range clients {
			group.Go(func() {
				_, err := f.try(ctx, completionPath, ask(fmt.Sprint(i, long), 50), func(string) { f.first(i) })
				if !errors.Is(err, context.Canceled) {
					t.Errorf("client %d: %v", i, err)
				}
			})
		}
		f.eventually("every stream has begun", func() bool { return f.started() == clients })
		leave()
		group.Wait()
		f.settled()
	})
}

// What an engine announces before its first token is no first byte: while the
// client has got nothing another worker takes over, however the first one ends.
func TestFailureAfterTheRoleIsRetried(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newInjectedFleet(t,
			fault.Rule{Fault: "truncate", Probability: 1, Worker: "decode-1", Leg: string(pools.Decode), AfterEvents: 1},
			fault.Rule{Fault: "garble", Probability: 1, Worker: "decode-2", Leg: string(pools.Decode), AfterEvents: 1},
		)
		for i := range 20 {
			q := ithQuestion(4*i + 1) // chat
			q.body = strings.Replace(q.body, `"stream":false`, `"stream":true`, 1)
			q.stream = true
			if whole, err := f.verdict(q, f.post(q.path, q.body)); !whole || err != nil {
				t.Errorf("request %d: whole %v, %v", i, whole, err)
			}
		}
		if f.hits.Load() == 0 {
			t.Error("no call was hit")
		}
		f.settled()
	})
}
