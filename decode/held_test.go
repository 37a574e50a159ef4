package decode

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

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
		src := &endless{event: event}
		sent, failed := served(t, &engine{status: 200, body: io.LimitReader(src, 300<<20)}, &Call{Client: asker{}, Stream: true, Choices: 1})
		assert.True(t, classOf(failed) == fault.Garbled && failed.Class.Blames() && sent == "",
			"%s: ended with %v after %d bytes", name, failed, len(sent))
		assert.LessOrEqual(t, src.taken, 2*maxHeldBytes, "%s bytes were taken", name)
	}
	// What an engine announces before its first token passes up to the bound.
	all := strings.Repeat(role, maxHeldBytes/len(role)) + one + done
	sent, failed := served(t, stream(all), &Call{Client: asker{}, Stream: true, Choices: 1})
	assert.True(t, failed == nil && sent == all, "%v; %d bytes left, want %d", failed, len(sent), len(all))
}

// TestWholeAnswersAreBounded: an answer that is not streamed is held until its
// end, so that a worker that does not stop is left where no answer to this
// request can be as long. One whose length is not known has maxAnswerBytes.
func TestWholeAnswersAreBounded(t *testing.T) {
	src := &endless{event: ": ping\n\n"}
	sent, failed := served(t, &engine{status: 200, body: io.LimitReader(src, 300<<20)},
		&Call{Client: asker{}, Choices: 2, PromptTokens: 8, Longest: 4})
	assert.True(t, classOf(failed) == fault.Garbled && sent == "", "ended with %v after %d bytes", failed, len(sent))
	assert.LessOrEqual(t, src.taken, 4<<20+24*64<<10+1<<10, "bytes were taken")
	one := &tap{call: &Call{Client: asker{}, Large: true}}
	assert.True(t, one.fits(maxAnswerBytes) && !one.fits(maxAnswerBytes+1), "an event over %d bytes", maxAnswerBytes)
	assert.ErrorIs(t, one.over, fault.ErrTooLarge)
	for _, c := range []struct {
		call   Call
		want   int
		longer error
	}{
		{Call{Client: asker{}, PromptTokens: 8}, maxAnswerBytes, fault.ErrTooLarge},
		{Call{Client: asker{}, Longest: 1 << 31, Choices: 128, PromptTokens: 1 << 31}, maxAnswerBytes, fault.ErrTooLarge},
		{Call{Client: asker{}, Longest: 1, Large: true}, maxAnswerBytes, fault.ErrTooLarge},
		{Call{Client: asker{}, Longest: 1, Choices: 1}, answerBytes + tokenBytes, fault.ErrGarbled},
	} {
		got, longer := c.call.mostBytes()
		assert.Equal(t, c.want, got, "%d choices of %d tokens", c.call.Choices, c.call.Longest)
		assert.ErrorIs(t, longer, c.longer)
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
	const most = 10 << 20
	answer := `{"choices":[{"index":0,"text":" a","logprobs":{"tokens":["` + strings.Repeat("x", most) + `"]},"finish_reason":"length"}]}`
	event := "data: " + answer + "\n\n" + done
	for _, c := range []struct {
		name          string
		stream, large bool
		limit         int
		body          string
		want          fault.Class
		status        int
	}{
		{"an event of 10 MiB", true, true, 64 << 20, event, fault.None, 0},
		{"one of 10 MiB of text", true, false, 64 << 20, event, fault.Garbled, 0},
		{"one without room", true, true, 16 << 20, event, fault.TooLarge, 503},
		{"one held before the first token", true, true, 64 << 20, strings.Replace(event, `" a"`, `""`, 1), fault.None, 0},
		{"a whole answer", false, true, 64 << 20, answer, fault.None, 0},
		{"one without room", false, false, 16 << 20, answer, fault.TooLarge, 503},
	} {
		memory := &ledger{limit: c.limit}
		sent, failed := served(t, stream(c.body), &Call{Client: asker{}, Stream: c.stream, Choices: 1, Large: c.large, Memory: memory})
		assert.True(t, classOf(failed) == c.want && (failed == nil || failed.Class.Blames() == (c.want == fault.Garbled)),
			"%s: %v, want %v", c.name, failed, c.want)
		assert.True(t, (c.want != fault.None || len(sent) >= most && memory.most >= 2*most) && (c.want == fault.None || sent == ""),
			"%s: %d bytes left, %d were counted", c.name, len(sent), memory.most)
		var contains *openai.Error
		assert.True(t, c.status <= 0 || errors.As(failed, &contains) && contains.Status == c.status && contains.RetryAfter != 0,
			"%s: %+v", c.name, contains)
		assert.True(t, memory.used == 0 && memory.most <= c.limit,
			"%s: %d bytes are still counted, %d were", c.name, memory.used, memory.most)
	}
}
