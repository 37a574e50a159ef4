package replay

import (
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

func readTrace(t *testing.T, text string) *Workload {
	t.Helper()
	w, err := ReadTrace(strings.NewReader(text), "trace.jsonl", 4, 0)
	require.NoError(t, err)
	return w
}

func TestReadTrace(t *testing.T) {
	own := func(index uint64) uint64 { return ownSpans | index }
	tests := []struct {
		name, text string
		want       []Request
	}{
		{"blocks, the last one cut", `{"timestamp":5,"input_length":10,"output_length":3,"hash_ids":[7,8,9]}`,
			[]Request{{At: 5 * ms, OutputTokens: 3, Spans: []Span{{7, 4}, {8, 4}, {9, 2}}}}},
		{"tokens beyond the blocks are the request's own", `{"timestamp":0,"input_length":10,"output_length":3,"hash_ids":[7]}`,
			[]Request{{OutputTokens: 3, Spans: []Span{{7, 4}, {own(0), 6}}}}},
		{"no blocks, older names, other fields, fractions", `{"created_time":1.5,"input_tokens":2,"output_tokens":1,"turn":3}`,
			[]Request{{At: 1500 * time.Microsecond, OutputTokens: 1, Spans: []Span{{own(0), 2}}}}},
		{"a session", `{"session_id":"a","timestamp":10,"input_length":1,"output_length":1}
			{"timestamp":0,"input_length":1,"output_length":1}

			{"session_id":"a","delay":70,"input_length":1,"output_length":2}
			{"session_id":"a","timestamp":25,"input_length":1,"output_length":3}`,
			[]Request{
				{Session: "a", At: 10 * ms, OutputTokens: 1, Spans: []Span{{own(0), 1}}},
				{Index: 1, OutputTokens: 1, Spans: []Span{{own(1), 1}}},
				{Index: 2, Session: "a", At: 10 * ms, Delay: 70 * ms, OutputTokens: 2, Spans: []Span{{own(2), 1}}},
				{Index: 3, Session: "a", At: 25 * ms, Delay: 15 * ms, OutputTokens: 3, Spans: []Span{{own(3), 1}}},
			}},
		{"sessions one after another in the file", `{"session_id":"a","timestamp":9,"input_length":1,"output_length":1}
			{"session_id":"b","delay_ms":4,"input_length":1,"output_length":1}`,
			[]Request{
				{Session: "a", At: 9 * ms, OutputTokens: 1, Spans: []Span{{own(0), 1}}},
				{Index: 1, Session: "b", At: 4 * ms, OutputTokens: 1, Spans: []Span{{own(1), 1}}},
			}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			assert.Equal(t, tt.want, readTrace(t, tt.text).Requests)
		})
	}
}

func TestReadTraceRefuses(t *testing.T) {
	const first = `{"timestamp":10,"input_length":4,"output_length":1}` + "\n"
	tests := []struct{ name, text, want string }{
		{"nothing", "\n", "trace.jsonl: no request"},
		{"no JSON", first + "timestamp,1", "trace.jsonl:2: not a JSON object"},
		{"no timestamp", `{"input_length":4,"output_length":1}`, "trace.jsonl:1: timestamp: missing"},
		{"no input", `{"timestamp":1,"output_length":1}`, "trace.jsonl:1: input_length: missing"},
		{"negative input", `{"timestamp":1,"input_length":-4,"output_length":1}`, "trace.jsonl:1: input_length: -4 is below 1"},
		{"absurd", `{"timestamp":1,"input_length":4,"output_length":99999999999}`, "trace.jsonl:1: output_length: 99999999999 is above"},
		{"a number as text", `{"timestamp":"1","input_length":4,"output_length":1}`, "trace.jsonl:1: timestamp: string is not"},
		{"negative time", `{"timestamp":-1,"input_length":4,"output_length":1}`, "trace.jsonl:1: timestamp: -1 ms"},
		{"time runs backwards", first + `{"timestamp":9,"input_length":4,"output_length":1}`,
			"trace.jsonl:2: timestamp: 9 ms is before the line above, at 10 ms"},
		{"delay without a session", first + `{"timestamp":10,"delay":1,"input_length":4,"output_length":1}`,
			"trace.jsonl:2: delay: without a session_id"},
		{"negative delay", `{"session_id":"a","delay":-1,"input_length":4,"output_length":1}`, "trace.jsonl:1: delay: -1 ms"},
		{"a session runs backwards", `{"session_id":"a","timestamp":5,"input_length":4,"output_length":1}` + "\n" +
			`{"session_id":"a","timestamp":4,"input_length":4,"output_length":1}`, "trace.jsonl:2: timestamp: 4 ms is before the session's"},
		{"more blocks than prompt", `{"timestamp":1,"input_length":8,"output_length":1,"hash_ids":[1,2,3]}`,
			"trace.jsonl:1: hash_ids: 3 blocks of 4 tokens"},
		{"a negative id", `{"timestamp":1,"input_length":8,"output_length":1,"hash_ids":[1,-2]}`, "trace.jsonl:1: hash_ids: -2 is below 0"},
		{"half a gzip", "\x1f\x8b\x08", "trace.jsonl: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ReadTrace(strings.NewReader(tt.text), "trace.jsonl", 4, 0)
			require.True(t, err != nil && strings.HasPrefix(err.Error(), tt.want), "got %v, want %q", err, tt.want)
			var located *TraceError
			if strings.HasPrefix(tt.want, "trace.jsonl:1: input_length") &&
				(!errors.As(err, &located) || located.Field != "input_length" || located.Line != 1) {
				t.Errorf("not located: %#v", err)
			}
		})
	}
}

func TestReadTraceDetectsGzipAndKeepsTheLimit(t *testing.T) {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, err := z.Write([]byte(strings.Repeat(`{"timestamp":1,"input_length":4,"output_length":1}`+"\n", 5) + "broken"))
	require.NoError(t, errors.Join(err, z.Close()))
	w, err := ReadTrace(bytes.NewReader(zipped.Bytes()), "t", 4, 3)
	assert.True(t, err == nil && len(w.Requests) == 3, "%v, error %v", w, err)
	_, err = ReadTrace(bytes.NewReader(zipped.Bytes()), "t", 4, 0)
	assert.ErrorContains(t, err, "t:6:")
	_, err = ReadTrace(strings.NewReader(""), "t", 0, 0)
	assert.Error(t, err, "blocks of no tokens were taken")
}

// The real traces are read whole, with the statistics that are published for them.
func TestReadMooncake(t *testing.T) {
	const folder = "../../../shared/data/mooncake_fast25/"
	for name, want := range map[string]struct{ requests, meanInput, meanOutput int }{
		"conversation_trace.jsonl.gz": {12031, 12035, 342},
		"synthetic_trace.jsonl.gz":    {3993, 15325, 149},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(folder + name)
			if errors.Is(err, os.ErrNotExist) {
				t.Skipf("reads %s, skipped when absent", folder+name)
			}
			require.NoError(t, err)
			if public, ok := PublicTraceAt(name); !ok || public.Verify(data) != nil {
				t.Errorf("it is not the published file: %v", public.Verify(data))
			}
			w, err := ReadTrace(bytes.NewReader(data), name, MooncakeBlockTokens, 0)
			require.NoError(t, err)
			if own := BuiltIn(0).Requests; name[0] == 'c' && !reflect.DeepEqual(own, w.Requests[:len(own)]) {
				t.Error("the built-in trace is not the beginning of this one")
			}
			input, output := 0, 0
			for i := range w.Requests {
				input += w.Requests[i].InputTokens()
				output += w.Requests[i].OutputTokens
			}
			n := len(w.Requests)
			assert.True(t, n == want.requests && input/n == want.meanInput && output/n == want.meanOutput,
				"%d requests, mean input %d, output %d; want %+v", n, input/n, output/n, want)
		})
	}
}

func FuzzReadTrace(f *testing.F) {
	f.Add([]byte(`{"timestamp":5,"input_length":10,"output_length":3,"hash_ids":[7,8,9]}`))
	f.Add([]byte(`{"session_id":"a","delay":5,"input_length":10,"output_length":3}`))
	f.Add([]byte("\x1f\x8b\x08\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		w, err := ReadTrace(bytes.NewReader(data), "t", 4, 100)
		if err != nil {
			return
		}
		for i, r := range w.Requests {
			assert.True(t, r.Index == i && r.At >= 0 && r.Delay >= 0 && r.InputTokens() >= 1 && r.OutputTokens >= 1,
				"request %d: %+v", i, r)
		}
	})
}
