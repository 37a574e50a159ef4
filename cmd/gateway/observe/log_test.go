package observe

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/router"
)

// The line of a request has a field for all that came of it, in the same order in both forms for machines; people get a short one.
func TestRequestLine(t *testing.T) {
	r := &handoff.Record{
		Call: handoff.Call{ID: "c 1", Client: "k", IgnoredHints: []string{"a", "b"}, Request: &openai.Request{Model: "m", Stream: true}},
		ID:   "e1", Outcome: "stalled", ISL: 3, Overlap: 1, Attempts: 2, Resumes: 1, NotResumable: "tools", Remote: "hit",
		Prefill: handoff.Choice{Worker: "p"},
		Decode:  handoff.Choice{Worker: "d", Why: router.Why{Policy: "cost", Cost: 1.5, Overlap: 1, Candidates: 2}},
	}
	r.Sent.Started, r.Sent.Tokens, r.Reason, r.Spent.Asking = true, 4, "none", 1500*time.Microsecond
	for format, want := range map[string]string{
		"logfmt": `time=2001-09-09T01:46:40.000Z level=WARN msg=request request_id="c 1" engine_request_id=e1 client=k model=m endpoint=chat stream=true outcome=stalled isl=3 osl=4 cached_tokens=0 overlap_blocks=1 attempts=2 prefill_worker=p decode_worker=d queue_ms=0.5 prefill_ms=0 total_ms=2 one_leg=none resumes=1 not_resumable=tools decode_why.policy=cost decode_why.cost=1.5 decode_why.overlap=1 decode_why.candidates=2 remote_index=hit remote_index_ms=1.5 ignored_hints=a,b error=stalled`,
		"text":   `01:46:40.000 WARN stalled chat m · 3→4 tokens · total 2 ms · d · attempts 2 · resumes 1 · id "c 1"`,
		"json":   `{"time":"2001-09-09T01:46:40Z","level":"WARN","msg":"request","request_id":"c 1","engine_request_id":"e1","client":"k","model":"m","endpoint":"chat","stream":true,"outcome":"stalled","isl":3,"osl":4,"cached_tokens":0,"overlap_blocks":1,"attempts":2,"prefill_worker":"p","decode_worker":"d","queue_ms":0.5,"prefill_ms":0,"total_ms":2,"one_leg":"none","resumes":1,"not_resumable":"tools","decode_why":{"policy":"cost","cost":1.5,"overlap":1,"candidates":2},"remote_index":"hit","remote_index_ms":1.5,"ignored_hints":"a,b","error":"stalled"}`,
	} {
		assert.Equal(t, want+"\n", lineOf(t, format, r, errors.New("stalled"), handoff.Timings{Queue: .5, Total: 2}), format)
	}
}

// lineOf is what the log has of a request that ended so.
func lineOf(t *testing.T, format string, r *handoff.Record, err error, took handoff.Timings) string {
	t.Helper()
	var b bytes.Buffer
	log, wrong := NewLogger(&b, Logging{Level: "info", Format: format})
	require.NoError(t, wrong)
	newRequestLog(Config{}, log).ended(r, err, time.Unix(1e9, 0).UTC(), took)
	return b.String()
}

// The line for people is one short line.
func TestRequestLineForPeople(t *testing.T) {
	r := &handoff.Record{
		Call: handoff.Call{ID: "c1", Request: &openai.Request{Model: "tandem-sim\x1b[2J", Stream: true}}, Outcome: "ok", ISL: 12345, Attempts: 1,
		Prefill: handoff.Choice{Worker: "prefill-1"}, Decode: handoff.Choice{Worker: "decode-2"},
	}
	r.Sent.Tokens = 100
	want := `01:46:40.000 ok chat "tandem-sim\x1b[2J" · 12,345→100 tokens · queue 3 ms, TTFT 312 ms, total 1.21 s · prefill-1 → decode-2` + "\n"
	assert.Equal(t, want, lineOf(t, "text", r, nil, handoff.Timings{Queue: 3, TTFT: 312.4, Total: 1214}))
	for ms, want := range map[float64]string{0: "0 ms", 0.34: "0.3 ms", 9.94: "9.9 ms", 999.4: "999 ms", 999.6: "1 s", 12_345: "12.3 s",
		125_000: "2m5s"} {
		assert.Equal(t, want, millis(ms), "%v ms", ms)
	}
}
