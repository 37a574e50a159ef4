package http1

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/openai"
)

// waits is the part of a Sink that no loop writes to.
type waits struct{}

func (waits) Start(string)           {}
func (waits) Polls() bool            { return false }
func (waits) TryWrite([]byte) error  { panic("no loop writes to it") }
func (waits) TryFlush() error        { panic("no loop writes to it") }
func (waits) OnWritable(func()) bool { panic("no loop writes to it") }

// sink records writes and can fail from the n-th on.
type sink struct {
	waits
	writes [][]byte
	failAt int // 0 never
}

var errGone = errors.New("gone")

func (s *sink) Write(p []byte) error {
	if s.failAt > 0 && len(s.writes)+1 >= s.failAt {
		return errGone
	}
	s.writes = append(s.writes, bytes.Clone(p))
	return nil
}

func (s *sink) Last(p []byte) error { return s.Write(p) }

func (s *sink) all() string { return string(bytes.Join(s.writes, nil)) }

// tapFunc is a Tap made of a function.
type tapFunc func(dst []byte, ev openai.Event) ([]byte, error)

func (f tapFunc) Event(dst []byte, ev openai.Event, _ bool) ([]byte, error) { return f(dst, ev) }

func pass(dst []byte, ev openai.Event) ([]byte, error) { return append(dst, ev.Raw...), nil }

const three = "data: {\"a\":1}\r\n\r\n: ping\n\ndata: [DONE]\n\n"

// Whatever way the stream is cut, the bytes pass as they came.
func TestBytesPassUnchanged(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 1))
	for range 200 {
		got, err := passed(&cut{data: []byte(three), rng: rng})
		require.NoError(t, err)
		require.Equal(t, three, got)
	}
}

// Some engines end with their end marker and no blank line: it counts, and
// leaves whole. Any other event that the end cuts off does not.
func TestEndMarkerWithoutABlankLine(t *testing.T) {
	const one = "data: {\"a\":1}\n\n"
	for _, c := range []struct {
		src, want string
		err       error
	}{
		{one + "data: [DONE]", one + "data: [DONE]\n\n", nil},
		{one + "data: [DONE]\n", one + "data: [DONE]\n\n", nil},
		{one + "data:[DONE]\r\n", one + "data:[DONE]\r\n\n", nil},
		{"data: [DONE]", "data: [DONE]\n\n", nil},
		{one + "data: {\"a\":2}\n", one, openai.ErrEventCut},
		{one + "data: [DONE", one, openai.ErrEventCut},
		{one + ": ping", one, openai.ErrEventCut},
		{three, three, nil}, // the buffer that the end was completed in serves another stream
	} {
		for _, src := range []io.Reader{strings.NewReader(c.src), iotest.OneByteReader(strings.NewReader(c.src))} {
			got, err := passed(src)
			assert.ErrorIs(t, err, c.err, c.src)
			assert.Equal(t, c.want, got)
		}
	}
}

// cut reads its data in pieces of random size.
type cut struct {
	data []byte
	rng  *rand.Rand
}

func (c *cut) Read(p []byte) (int, error) {
	if len(c.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.data[:1+c.rng.IntN(min(len(c.data), 9))])
	c.data = c.data[n:]
	return n, nil
}

// A burst that one read brought leaves in one write.
func TestABurstStaysABurst(t *testing.T) {
	var out sink
	burst := strings.Repeat("data: x\n\n", 50)
	require.NoError(t, Relay(strings.NewReader(burst), &out, tapFunc(pass), nil))
	assert.Len(t, out.writes, 1)
	assert.Equal(t, burst, out.all())
}

func TestEndsAreDistinguished(t *testing.T) {
	errTap, errSrc := errors.New("tap"), errors.New("source")
	second := func(dst []byte, ev openai.Event) ([]byte, error) {
		if string(ev.Data) == "2" {
			return dst, errTap
		}
		return append(dst, ev.Raw...), nil
	}
	for _, c := range []struct {
		name   string
		src    io.Reader
		tap    tapFunc
		failAt int
		want   error
		sent   string
	}{
		{"clean end", strings.NewReader("data: 1\n\n"), pass, 0, nil, "data: 1\n\n"},
		{"held back", strings.NewReader("data: 1\n\n"), func(dst []byte, _ openai.Event) ([]byte, error) { return dst, nil }, 0, nil, ""},
		{"cut inside an event", strings.NewReader("data: 1\n\ndata: 2"), pass, 0, openai.ErrEventCut, "data: 1\n\n"},
		{"source failed", io.MultiReader(strings.NewReader("data: 1\n\n"), iotest.ErrReader(errSrc)), pass, 0, errSrc, "data: 1\n\n"},
		{"tap failed", strings.NewReader("data: 1\n\ndata: 2\n\ndata: 3\n\n"), second, 0, errTap, "data: 1\n\n"},
		{"client gone", strings.NewReader("data: 1\n\n"), pass, 1, errGone, ""},
		{"an event without end", strings.NewReader("data: " + strings.Repeat("x", maxEventBytes)), pass, 0, openai.ErrEventTooBig, ""},
	} {
		out := sink{failAt: c.failAt}
		err := Relay(c.src, &out, c.tap, nil)
		assert.ErrorIs(t, err, c.want, c.name)
		assert.Equal(t, c.sent, out.all(), c.name)
		var gone *WriteError
		assert.Equal(t, c.failAt > 0, errors.As(err, &gone), "%s: whose end failed?", c.name)
	}
}

// What one more chunk costs between the upstream's read and the sink's write: a lone event of the size a token has.
func BenchmarkRelayChunk(b *testing.B) {
	event := []byte("data: {\"id\":\"chatcmpl-0123456789abcdef-1\",\"object\":\"chat.completion.chunk\",\"created\":1790000000," +
		"\"model\":\"tandem-sim\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n")
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	src := &relayRepeat{event: event, left: b.N}
	tokens := 0
	tap := tapFunc(func(dst []byte, ev openai.Event) ([]byte, error) {
		if openai.Inspect(ev.Data).Content {
			tokens++
		}
		return append(dst, ev.Raw...), nil
	})
	if err := Relay(src, discard{}, tap, nil); err != nil {
		b.Fatal(err)
	}
	if tokens != b.N {
		b.Fatalf("%d tokens in %d chunks", tokens, b.N)
	}
}

type relayRepeat struct {
	event []byte
	left  int
}

func (r *relayRepeat) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	r.left--
	return copy(p, r.event), nil
}

type discard struct{ waits }

func (discard) Write([]byte) error { return nil }
func (discard) Last([]byte) error  { return nil }

// passed is what comes through of a stream that nothing is done to.
func passed(src io.Reader) (string, error) {
	var out sink
	err := Relay(src, &out, tapFunc(pass), nil)
	return out.all(), err
}
