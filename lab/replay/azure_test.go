package replay

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const azureText = `TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,0
`

func TestAzureTrace(t *testing.T) {
	w, skipped, err := Read(strings.NewReader(azureText), "azure.csv", Reading{BlockTokens: 16})
	require.True(t, err == nil && skipped == 0 && len(w.Requests) == 2, "%v, %d skipped: %v", w, skipped, err)
	a, b := w.Requests[0], w.Requests[1]
	assert.True(t, a.At == 0 && a.InputTokens() == 374 && a.OutputTokens == 44, "the first request is %+v", a)
	if want := 4314579 * time.Microsecond; b.At != want || b.OutputTokens != 1 {
		t.Errorf("the second request is at %v with %d tokens, want %v and 1", b.At, b.OutputTokens, want)
	}
	assert.NotEqual(t, b.Spans[0].ID, a.Spans[0].ID, "two prompts share a span")
}

func TestAzureRefuses(t *testing.T) {
	const head = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,3,4\n"
	for _, c := range []struct {
		text, field string
		line        int
	}{
		{"TIMESTAMP,ContextTokens\n", "", 1},
		{head + "yesterday,3,4\n", "TIMESTAMP", 3},
		{head + "2023-11-16 18:15:40,3,4\n", "TIMESTAMP", 3},
		{head + "2023-11-16 18:15:47,-3,4\n", "input_length", 3},
		{head + "2023-11-16 18:15:47,x,4\n", "ContextTokens", 3},
		{head + "2023-11-16 18:15:47,3\n", "", 3},
	} {
		_, _, err := Read(strings.NewReader(c.text), "azure.csv", Reading{BlockTokens: 16})
		var at *TraceError
		assert.True(t, errors.As(err, &at) && at.Line == c.line && at.Field == c.field,
			"%q: %v, want line %d, field %q", c.text, err, c.line, c.field)
	}
}

// TestLenient: bad rows are counted and passed over, and what follows them is judged by the last good one.
func TestLenient(t *testing.T) {
	const text = `{"timestamp": 5, "input_length": 4, "output_length": 1}
{"timestamp": 6, "input_length": -4, "output_length": 1}
not JSON
{"timestamp": 4, "input_length": 4, "output_length": 1}
{"timestamp": 7, "input_length": 4}
{"timestamp": 8, "input_length": 4, "output_length": 2}
`
	w, skipped, err := Read(strings.NewReader(text), "t.jsonl", Reading{BlockTokens: 16, Lenient: true})
	require.True(t, err == nil && skipped == 4 && len(w.Requests) == 2 && w.Requests[1].At == 8*time.Millisecond,
		"%+v, %d skipped: %v", w, skipped, err)
}
