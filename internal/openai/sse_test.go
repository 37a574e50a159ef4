package openai

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// split runs a stream through a splitter, cut at the given places, and returns the data of its events (nil ones as
// "-"), their Raws joined, and the result of End.
func split(maxBytes int, chunks ...string) (data []string, raw string, err error) {
	s := NewSplitter(maxBytes)
	for _, c := range chunks {
		s.Write([]byte(c))
		for {
			ev, ok := s.Next()
			if !ok {
				break
			}
			raw, data = raw+string(ev.Raw), append(data, string(ev.Data))
			if ev.Data == nil {
				data[len(data)-1] = "-"
			}
		}
	}
	return data, raw, s.End()
}

func TestSplitterCopiesOnlyWhatIsCut(t *testing.T) {
	s := NewSplitter(100)
	chunk := []byte("data: a\n\ndata: b")
	s.Write(chunk)
	ev, ok := s.Next()
	assert.True(t, ok && &ev.Raw[0] == &chunk[0] && &ev.Data[0] == &chunk[6],
		"an event that lies in one chunk was copied: %q", ev.Raw)
	_, ok = s.Next()
	assert.False(t, ok, "half an event was returned")
	copy(chunk, "################")
	s.Write([]byte("\n\n"))
	ev, ok = s.Next()
	assert.True(t, ok && string(ev.Raw) == "data: b\n\n" && string(ev.Data) == "b", "got %q", ev.Raw)
}

func TestSplitterBounds(t *testing.T) {
	const limit = 20
	fits := "data: " + strings.Repeat("x", limit-8) + "\n\n"
	for name, stream := range map[string]string{
		"an event":        "data: a\n\n" + fits[:7] + "x" + fits[7:] + "data: b\n\n",
		"half an event":   "data: a\n\n" + strings.Repeat("x", limit+1),
		"an endless line": "data: a\n\n" + strings.Repeat("x", 1000),
	} {
		for cut := range len(stream) {
			data, _, err := split(limit, stream[:cut], stream[cut:])
			assert.True(t, errors.Is(err, ErrEventTooBig) && reflect.DeepEqual(data, []string{"a"}),
				"%s, cut at %d: %q, %v", name, cut, data, err)
		}
	}
	for cut := range len(fits) {
		data, _, err := split(limit, fits[:cut], fits[cut:])
		assert.True(t, err == nil && len(data) == 1, "an event that fits, cut at %d: %q, %v", cut, data, err)
	}
	s := NewSplitter(10)
	s.Write([]byte("data: far too big"))
	s.Next()
	require.Error(t, s.Err())
	s.Reset()
	s.Write([]byte("data: a\n\n"))
	ev, ok := s.Next()
	assert.True(t, ok && string(ev.Data) == "a" && s.End() == nil, "after a reset: %q, %v", ev.Data, s.End())
}

func TestAppendEvent(t *testing.T) {
	for data, want := range map[string]string{
		"":            "data: \n\n",
		"a":           "data: a\n\n",
		"a\nb\r\nc\r": "data: a\ndata: b\ndata: c\ndata: \n\n",
		Done:          "data: [DONE]\n\n",
	} {
		assert.Equal(t, want, string(AppendEvent(nil, []byte(data))))
	}
	assert.True(t, (&Event{Data: []byte(Done)}).Done())
}

// splitSlowly is the splitter's twin: it reads the whole stream line by line, as the standard words it.
func splitSlowly(stream string) (data []string, cut bool) {
	stream = strings.ReplaceAll(stream, "\r\n", "\n")
	stream = strings.ReplaceAll(stream, "\r", "\n")
	lines := strings.Split(stream, "\n")
	rest := lines[len(lines)-1]
	event, open := "-", false
	for _, line := range lines[:len(lines)-1] {
		if line == "" {
			data = append(data, event)
			event, open = "-", false
			continue
		}
		open = true
		name, value, _ := strings.Cut(line, ":")
		if name != "data" {
			continue
		}
		value = strings.TrimPrefix(value, " ")
		if event == "-" {
			event = "+" + value
		} else {
			event += "\n" + value
		}
	}
	for i, d := range data {
		data[i] = strings.TrimPrefix(d, "+")
	}
	return data, open || rest != ""
}

// FuzzSplitter cuts streams into bytes, short chunks and none, and compares with the twin.
func FuzzSplitter(f *testing.F) {
	for i, stream := range []string{
		"", "data: a\n\n", "data: a\n\ndata: [DONE]\n\n", "data: a\r\n\r\ndata: b\r\n\r\n", "data: a\r\rdata: b\r\r",
		"data: a\n\r\ndata: b\r\ndata: c\r\n\ndata: d\r\r\ndata: e\n\r", "data:a\n\n", "data:  a \n\n",
		"data: a\ndata:\ndata\ndata: d\n\n", "data:\n\n", ": ping\n\ndata: a\n\n", " \n \ndata: a\n\n \n",
		"event: x\nid: 7\ndata: a\nretry: 5\n: c\n\n", "datax: a\n data: b\nDATA: c\n\n", "\n\ndata: a\n\n\n", "data: a\n",
		"data: a\n\ndata",
		"data: a\r\n\r\ndata: b\n\n: c\n\ndata:d\rdata: e\r\r", "data: {\"choices\":[]}\n\ndata: [DONE]\n\n", "\r\n\n\r",
		"data\ndata:\n\nid:1\n\n",
	} {
		f.Add(stream, uint64(i))
	}
	f.Fuzz(func(t *testing.T, stream string, seed uint64) {
		if strings.Contains(stream, "-") || strings.Contains(stream, "+") {
			return // the twin's own marks
		}
		rng := rand.New(rand.NewPCG(seed, 0))
		want, cut := splitSlowly(stream)
		for _, longest := range []int{1, 12, 1 << 20} {
			var chunks []string
			for rest := stream; rest != ""; {
				n := min(len(rest), 1+rng.IntN(longest))
				chunks = append(chunks, rest[:n])
				rest = rest[n:]
			}
			got, raw, err := split(len(stream)+1, chunks...)
			require.True(t, reflect.DeepEqual(got, want) && errors.Is(err, ErrEventCut) == cut,
				"seed %d, %q: got %q, %v, want %q, cut %t", seed, chunks, got, err, want, cut)
			require.True(t, strings.HasPrefix(stream, raw) && (cut || len(chunks) != 1 || raw == stream),
				"seed %d: raw %q of %q", seed, raw, stream)
		}
		again, _, err := split(len(stream)*7+20, string(AppendEvent(nil, []byte(stream))))
		lines := strings.ReplaceAll(strings.ReplaceAll(stream, "\r\n", "\n"), "\r", "\n")
		require.True(t, err == nil && len(again) == 1 && again[0] == lines, "%q came back as %q, %v", stream, again, err)
	})
}

func TestEventsReadsAWholeStream(t *testing.T) {
	read := func(stream string, most int) (got []string, failed error) {
		for data, err := range Events(iotest.OneByteReader(strings.NewReader(stream)), most) {
			if err != nil {
				return got, err
			}
			got = append(got, string(data))
		}
		return got, nil
	}
	got, err := read("data: a\n\n: ping\n\ndata: b\r\ndata: c\r\n\r\ndata: [DONE]\n\n", 100)
	assert.NoError(t, err)
	assert.Equal(t, []string{"a", "b\nc", Done}, got)
	got, err = read("data: a\n\ndata: b", 100)
	assert.ErrorIs(t, err, ErrEventCut)
	assert.Equal(t, []string{"a"}, got)
	_, err = read("data: "+strings.Repeat("x", 100)+"\n\n", 50)
	assert.ErrorIs(t, err, ErrEventTooBig)
	for range Events(strings.NewReader("data: a\n\ndata: b\n\n"), 100) {
		break
	}
}
