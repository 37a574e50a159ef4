package decode

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
)

// endless is a stream that repeats an event and counts what was taken of it.
type endless struct {
	event string
	taken int
}

func (e *endless) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		n += copy(p[n:], e.event[(e.taken+n)%len(e.event):])
	}
	e.taken += n
	return n, nil
}

// TestHeldOutputIsBounded: a worker that sends without end and never a token is
// left after maxHeldBytes, with a failure that blames it.
func TestHeldOutputIsBounded(t *testing.T) {
	for name, event := range map[string]string{"comments": ": ping\n\n", "roles": role, "usage": usage} {
		t.Run(name, func(t *testing.T) {
			src := &endless{event: event}
			body := io.LimitReader(src, 300<<20)
			r, lease, _ := room(t, &engine{status: 200, body: body})
			out := &client{}
			_, failed := runs(t, r, &Call{Lease: lease, Stream: true, Choices: 1}, out)
			if failed == nil || failed.Class != fault.Garbled || !failed.Class.Blames() || len(out.writes) > 0 {
				t.Errorf("ended with %v after %d writes", failed, len(out.writes))
			}
			if src.taken > 2*maxHeldBytes {
				t.Errorf("%d bytes were taken", src.taken)
			}
		})
	}
	// What an engine announces before its first token passes up to the bound.
	before := strings.Repeat(role, maxHeldBytes/len(role))
	r, lease, _ := room(t, &engine{status: 200, body: strings.NewReader(before + one + done)})
	out := &client{}
	if _, failed := runs(t, r, &Call{Lease: lease, Stream: true, Choices: 1}, out); failed != nil {
		t.Fatal(failed)
	}
	if got := strings.Join(out.writes, ""); got != before+one+done {
		t.Errorf("%d bytes left, want %d", len(got), len(before+one+done))
	}
}

// TestWholeAnswersAreBounded: an answer that is not streamed is held until its
// end, so that a worker that does not stop is left where no answer to this
// request can be as long. One whose length is not known has maxAnswerBytes.
func TestWholeAnswersAreBounded(t *testing.T) {
	src := &endless{event: ": ping\n\n"}
	r, lease, _ := room(t, &engine{status: 200, body: io.LimitReader(src, 300<<20)})
	out := &client{}
	call := Call{Lease: lease, Choices: 2, PromptTokens: 8, Longest: 4}
	_, failed := runs(t, r, &call, out)
	if failed == nil || failed.Class != fault.Garbled || len(out.writes) > 0 {
		t.Errorf("ended with %v after %d writes", failed, len(out.writes))
	}
	if most := 4<<20 + 24*64<<10; src.taken > most+1<<10 {
		t.Errorf("%d bytes were taken, want %d", src.taken, most)
	}
	if one := (&tap{call: &Call{Large: true}}); !one.fits(maxAnswerBytes) || one.fits(maxAnswerBytes+1) || !errors.Is(one.over, fault.ErrTooLarge) {
		t.Errorf("an event over %d bytes: %v", maxAnswerBytes, one.over)
	}
	for _, c := range []struct {
		call   Call
		want   int
		longer error
	}{
		{Call{PromptTokens: 8}, maxAnswerBytes, fault.ErrTooLarge},
		{Call{Longest: 1 << 31, Choices: 128, PromptTokens: 1 << 31}, maxAnswerBytes, fault.ErrTooLarge},
		{Call{Longest: 1, Large: true}, maxAnswerBytes, fault.ErrTooLarge},
		{Call{Longest: 1, Choices: 1}, answerBytes + tokenBytes, fault.ErrGarbled},
	} {
		if got, longer := c.call.mostBytes(); got != c.want || !errors.Is(longer, c.longer) {
			t.Errorf("%d choices of %d tokens: %d bytes, else %v", c.call.Choices, c.call.Longest, got, longer)
		}
	}
}

// ledger counts memory up to a limit.
type ledger struct{ used, most, limit int }

func (l *ledger) Give(n int) { l.used -= n }
func (l *ledger) Take(n int) bool {
	if l.used+n > l.limit {
		return false
	}
	l.used += n
	l.most = max(l.most, l.used)
	return true
}

// TestLargeAnswersAreTheRequests: an event as large as an answer passes where the client asks for more than text. What is larger
// than the gateway relays, or than it has memory for, is the request's; all that was counted is given back.
func TestLargeAnswersAreTheRequests(t *testing.T) {
	logprobs := func(n int) string {
		return `{"choices":[{"index":0,"text":" a","logprobs":{"tokens":["` + strings.Repeat("x", n) + `"]},"finish_reason":"length"}]}`
	}
	event := func(n int) string { return "data: " + logprobs(n) + "\n\n" + done }
	for _, c := range []struct {
		name   string
		stream bool
		large  bool
		limit  int
		body   io.Reader
		want   fault.Class
		status int
	}{
		{"an event of 10 MiB", true, true, 64 << 20, strings.NewReader(event(10 << 20)), fault.None, 0},
		{"one of 10 MiB of text", true, false, 64 << 20, strings.NewReader(event(10 << 20)), fault.Garbled, 0},
		{"one without room", true, true, 16 << 20, strings.NewReader(event(10 << 20)), fault.TooLarge, 503},
		{"one held before the first token", true, true, 64 << 20, strings.NewReader(strings.Replace(event(10<<20), `" a"`, `""`, 1)), fault.None, 0},
		{"a whole answer", false, true, 64 << 20, strings.NewReader(logprobs(10 << 20)), fault.None, 0},
		{"one without room", false, false, 16 << 20, strings.NewReader(logprobs(10 << 20)), fault.TooLarge, 503},
	} {
		t.Run(c.name, func(t *testing.T) {
			memory, out := &ledger{limit: c.limit}, &client{}
			r, lease, _ := room(t, &engine{status: 200, body: c.body})
			_, failed := runs(t, r, &Call{Lease: lease, Stream: c.stream, Choices: 1, Large: c.large, Memory: memory}, out)
			if c.want == fault.None {
				if failed != nil || len(strings.Join(out.writes, "")) < 10<<20 || memory.most < 20<<20 {
					t.Errorf("%v; %d bytes were counted", failed, memory.most)
				}
			} else if failed == nil || failed.Class != c.want || failed.Class.Blames() != (c.want == fault.Garbled) || len(out.writes) > 0 {
				t.Errorf("%v after %d writes", failed, len(out.writes))
			}
			var says *openai.Error
			if c.status > 0 && (!errors.As(failed, &says) || says.Status != c.status || says.RetryAfter == 0) {
				t.Errorf("%+v", says)
			}
			if memory.used != 0 || memory.most > c.limit {
				t.Errorf("%d bytes are still counted, %d were", memory.used, memory.most)
			}
		})
	}
}
