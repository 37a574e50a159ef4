package observe

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
)

// counted is metrics and a request of a model that is known.
func counted(t testing.TB) (*requestMetrics, *handoff.Record) {
	t.Helper()
	m := newRequestMetrics(prometheus.NewRegistry())
	r := &handoff.Record{Call: handoff.Call{Request: &openai.Request{Model: "m"}}, Known: true, ISL: 100}
	m.Arrived(r)
	m.Understood(r)
	return m, r
}

// valueOf is a counter's or a gauge's value.
func valueOf(m prometheus.Metric) float64 {
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		panic(err)
	}
	return out.GetCounter().GetValue() + out.GetGauge().GetValue()
}

// However tokens come, each is counted once, and the gauges end at zero.
func TestCallMetricsCountEachTokenOnce(t *testing.T) {
	start := time.Unix(1e9, 0)
	tests := []struct {
		name    string
		gaps    int // reported by the tap, after the first token
		sent    decode.Transcript
		started bool
		tokens  float64
	}{
		{"streamed one by one", 7, decode.Transcript{Tokens: 8}, true, 8},
		{"several in the first event", 3, decode.Transcript{Tokens: 8}, true, 8},
		{"not streamed", 0, decode.Transcript{Tokens: 8}, true, 8},
		{"cut off before the first", 0, decode.Transcript{}, false, 0},
	}
	for _, tt := range tests {
		m, r := counted(t)
		leg := handoff.Leg{Worker: &pools.Worker{ID: "d", Role: pools.Decode}, Began: start}
		token := m.LegStarted(r, leg)
		assert.EqualValues(t, 1, valueOf(m.model(r).legs[pools.Decode].dispatch), "%s at a worker", tt.name)
		r.Sent = tt.sent
		if tt.started {
			leg.First = start
			r.Sent.First, r.Sent.Last, r.Sent.Streamed = start, start.Add(time.Second), 1+tt.gaps
			m.FirstToken(r, leg)
			assert.EqualValues(t, 0, valueOf(m.model(r).queued), "%s without a first token, after it", tt.name)
		}
		for range tt.gaps {
			token(time.Millisecond)
		}
		m.LegEnded(r, leg)
		m.ended(r, handoff.Timings{})
		assert.Equal(t, tt.tokens, valueOf(m.model(r).outputTokens), "%s tokens", tt.name)
		for name, got := range map[string]float64{
			"at a worker": valueOf(m.model(r).legs[pools.Decode].dispatch),
			"queued":      valueOf(m.model(r).queued),
			"in flight":   valueOf(m.model(r).inflight),
		} {
			assert.EqualValues(t, 0, got, "%s %s at the end", tt.name, name)
		}
		assert.EqualValues(t, 1, valueOf(m.model(r).legs[pools.Decode].ended), "%s calls ended", tt.name)
	}
}

// What a client writes is no label: a model that no worker serves counts as none.
func TestMetricsOfAnUnknownModel(t *testing.T) {
	m := newRequestMetrics(prometheus.NewRegistry())
	call := handoff.Call{Request: &openai.Request{Model: "drop table", Endpoint: openai.Completions, Stream: true}}
	m.ended(&handoff.Record{Call: call, Outcome: "model_not_found"}, handoff.Timings{})
	assert.EqualValues(t, 1, valueOf(m.requests.WithLabelValues("", "completions", "stream", "error", "model_not_found")),
		"requests of no model")
	assert.Zero(t, m.models.Len(), "models")
}

// What was seen of a worker goes with the worker.
func TestMetricsForgetWorkers(t *testing.T) {
	m, _ := counted(t)
	m.worker("gone").firstToken(1, 2)
	m.worker("here").firstToken(1, 2)
	m.forget([]*pools.Pool{{Members: []pools.Member{{Worker: &pools.Worker{ID: "here"}}}}})
	assert.True(t, m.worker("here").isl.Load() == 2 && m.seen.Len() == 1, "%d workers seen", m.seen.Len())
}
