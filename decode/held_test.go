package decode

import (
	"io"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/fault"
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
	for _, c := range []struct {
		call Call
		want int
	}{{Call{PromptTokens: 8}, maxAnswerBytes}, {Call{Longest: 1 << 31, Choices: 128, PromptTokens: 1 << 31}, maxAnswerBytes}} {
		if got := c.call.mostBytes(); got != c.want {
			t.Errorf("%d choices of %d tokens: %d bytes, want %d", c.call.Choices, c.call.Longest, got, c.want)
		}
	}
}
