package replay

import (
	"bytes"
	"compress/gzip"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A gateway's log with two requests that begin alike and overtake one another,
// one that was refused, and lines of other kinds.
const gatewayLog = `time=2026-05-01T10:00:00.000Z level=INFO msg="gateway is up" address="127.0.0.1:8000 msg=request "
time=2026-05-01T10:00:09.000Z level=INFO msg=request request_id="a b=c" outcome=ok isl=1100 osl=7 total_ms=500 blocks=AAAAAAAABBBBBBBB block_tokens=512 trace_id=x
time=2026-05-01T10:00:10.000Z level=WARN msg=request request_id=\x outcome=client_closed isl=600 osl=3 total_ms=4000.5 blocks=AAAAAAAA block_tokens=512
panic: msg=request 1
time=2026-05-01T10:00:11.000Z level=INFO msg=request outcome=queue_full isl=900 osl=0 total_ms=0.1 blocks=CCCCCCCC block_tokens=512
time=2026-05-01T10:00:12.000Z level=INFO msg=request outcome=ok isl=5 osl=1 total_ms=1 blocks="" block_tokens=512
`

func TestFromLog(t *testing.T) {
	asJSON := `{"time":"2026-05-01T10:00:09Z","level":"INFO","msg":"request","outcome":"ok","isl":1100,"osl":7,"total_ms":500,"blocks":"AAAAAAAABBBBBBBB","block_tokens":512}
{"time":"2026-05-01T12:00:10+02:00","level":"INFO","msg":"request","outcome":"ok","isl":600,"osl":3,"total_ms":4000.5,"blocks":"AAAAAAAA","block_tokens":512,"prefill_why":{"policy":"kv"}}
{"time":"2026-05-01T10:00:12Z","level":"INFO","msg":"request","outcome":"ok","isl":5,"osl":1,"total_ms":1,"blocks":"","block_tokens":512}
{"time":"2026-05-01T10:00:12Z","level":"INFO","msg":"requests","outcome":"ok"}
`
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write([]byte(gatewayLog))
	_ = z.Close()
	// In the order of arrival; times count from the first.
	const want = `{"timestamp":0,"input_length":600,"output_length":3,"hash_ids":[0]}
{"timestamp":2500,"input_length":1100,"output_length":7,"hash_ids":[0,1]}
{"timestamp":5999,"input_length":5,"output_length":1}
`
	for _, c := range []struct {
		name, log string
		leftOut   int
	}{{"text", gatewayLog, 1}, {"JSON", asJSON, 0}, {"gzip", zipped.String(), 1}} {
		t.Run(c.name, func(t *testing.T) {
			got, err := FromLog(strings.NewReader(c.log), "g.log", false)
			require.NoError(t, err)
			var out strings.Builder
			require.NoError(t, got.Write(&out))
			if out.String() != want || got.LeftOut != c.leftOut || got.Named != 3 || got.BlockTokens != 512 ||
				got.Span() != 5999500*time.Microsecond {
				t.Errorf("%d left out, %d named, blocks of %d, over %v:\n%s", got.LeftOut, got.Named, got.BlockTokens, got.Span(), out.String())
			}
			w, err := ReadTrace(strings.NewReader(out.String()), "t", got.BlockTokens, 0)
			if err != nil || len(w.Requests) != 3 || w.Requests[0].Spans[0].ID != w.Requests[1].Spans[0].ID || w.Requests[1].InputTokens() != 1100 {
				t.Errorf("it is read back as %+v, %v", w, err)
			}
		})
	}
}

func TestFromLogErrors(t *testing.T) {
	const line = "time=2026-05-01T10:00:09Z level=INFO msg=request outcome=ok isl=1100 osl=7 total_ms=500 blocks=AAAAAAAABBBBBBBB block_tokens=512\n"
	for _, c := range []struct{ old, new, field string }{
		{"isl=1100", "isl=-1", "isl"},
		{"isl=1100", "isl=1e3", "isl"},
		{"osl=7", "", "osl"},
		{"total_ms=500", "total_ms=NaN", "total_ms"},
		{"total_ms=500", "total_ms=-3", "total_ms"},
		{"time=2026-05-01T10:00:09Z", "time=yesterday", "time"},
		{"block_tokens=512", "block_tokens=0", "block_tokens"},
		{"block_tokens=512", "block_tokens=1024", "block_tokens"},
		{"BBBBBBBB", "B", "blocks"},
		{"isl=1100", "isl=1000", "blocks"},
	} {
		bad := line + strings.Replace(line, c.old, c.new, 1) + line
		_, err := FromLog(strings.NewReader(bad), "g.log", false)
		var at *TraceError
		if !errors.As(err, &at) || at.Line != 2 || at.Field != c.field || !strings.HasPrefix(err.Error(), "g.log:2: "+c.field) {
			t.Errorf("%s: %v", c.new, err)
		}
		got, err := FromLog(strings.NewReader(bad), "g.log", true)
		assert.True(t, err == nil && got.Skipped == 1 && got.Len() == 2, "%s, leniently: %+v, %v", c.new, got, err)
	}
	if _, err := FromLog(strings.NewReader("nothing\n"), "g.log", false); err == nil || !strings.Contains(err.Error(), "no answered request") {
		t.Errorf("a log of nothing: %v", err)
	}
}

// FuzzFromLog: whatever the log, the answer is an error or a trace that can be read.
func FuzzFromLog(f *testing.F) {
	f.Add(gatewayLog)
	f.Add(`{"msg":"request","outcome":1,"time":"2026-05-01T10:00:09Z","isl":1,"osl":1,"total_ms":0}`)
	f.Add("time= msg=request outcome=\"\\\n")
	f.Fuzz(func(t *testing.T, log string) {
		got, err := FromLog(strings.NewReader(log), "g.log", true)
		if err != nil {
			return
		}
		var out strings.Builder
		require.NoError(t, got.Write(&out))
		if _, err := ReadTrace(strings.NewReader(out.String()), "t", got.BlockTokens, 0); err != nil && got.Span() < 9*365*24*time.Hour {
			t.Errorf("%v:\n%s", err, out.String())
		}
	})
}
