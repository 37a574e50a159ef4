package dialect

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/openai"
)

// readable requires a chat that the gateway takes, or refuses for a value that passes as it is.
func readable(t *testing.T, r *Request, err error) {
	t.Helper()
	if err != nil {
		var e *openai.Error
		require.True(t, errors.As(err, &e) && (e.Status == 400 || e.Status == 413) && e.Message != "", "%v", err)
		return
	}
	require.True(t, json.Valid(r.Chat), "%s", r.Chat)
	_, err = openai.Limits{}.Scan(openai.Chat, r.Chat)
	var e *openai.Error
	require.True(t, err == nil || errors.As(err, &e) && e.Code == "" && slices.Contains(
		[]string{"max_tokens", "temperature", "top_p", "top_k", "cache_salt", "nvext", "user", "stop", "reasoning_effort", "messages"},
		rootOf(e.Param)), "%v: %s", err, r.Chat)
}

// rootOf is the field of the body that a path begins with.
func rootOf(path string) string {
	for i, c := range path {
		if c == '.' || c == '[' {
			return path[:i]
		}
	}
	return path
}

func FuzzMessages(f *testing.F) {
	for _, body := range load[json.RawMessage](f, "messages/cases.json").Requests {
		f.Add([]byte(body))
	}
	f.Add(turn())
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, one := range []bool{false, true} {
			r, err := Messages(body, Options{ID: "r1", OneSystem: constant(one), MaxBytes: 1 << 20})
			readable(t, r, err)
		}
		r, err := MessagesPrompt(body, Options{ID: "r1"})
		readable(t, r, err)
	})
}

func FuzzMessagesAnswer(f *testing.F) {
	for i, c := range answers {
		f.Add([]byte(c.stream+usageChunk+doneChunk), uint16(i*37))
	}
	f.Add([]byte(`data: {"choices":[{"delta":{"tool_calls":[{"index":1},{},7,`+
		`{"index":-1,"function":{"arguments":"}{"}}]}}]}`+"\n\n"), uint16(9))
	f.Fuzz(func(t *testing.T, stream []byte, cut uint16) {
		at := min(int(cut), len(stream))
		a := begin(t, `,"stop_sequences":["END"]`)
		out := a.Events(a.Ping(a.Events(nil, stream[:at])), stream[at:])
		var r messagesReader
		require.NoError(t, r.read(out))
		if ended := r.ended; !ended {
			require.NoError(t, r.read(a.Fail(nil, openai.Internal())))
			require.True(t, r.ended)
		}
		require.Empty(t, a.Fail(a.Ping(a.Events(nil, stream)), openai.Internal()))
		whole, err := begin(t, "").Whole(nil, stream)
		if err == nil {
			require.True(t, json.Valid(whole), "%s", whole)
			readMessage(t, whole)
		}
	})
}
