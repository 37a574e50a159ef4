package handoff

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/trace"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

const (
	sampledParent   = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	unsampledParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
)

// sampling is a flow that samples everything, or nothing.
func sampling(sampled bool) *Flow {
	return &Flow{rooms: Rooms{Sample: func(trace.TraceID, trace.Context) bool { return sampled }}}
}

// What engines get, by what the client sent and what was decided.
func TestTraceParents(t *testing.T) {
	for name, tt := range map[string]struct {
		f      *Flow
		client string
		same   bool // engines get the client's as it came
		traced bool
		flags  string
	}{
		"off":                                {new(Flow), sampledParent, true, false, "01"},
		"off, no client's":                   {new(Flow), "", true, false, ""},
		"sampled":                            {sampling(true), sampledParent, false, true, "01"},
		"sampled, no client's":               {sampling(true), "", false, true, "01"},
		"sampled, not by the client":         {sampling(true), unsampledParent, false, true, "01"},
		"not sampled":                        {sampling(false), unsampledParent, true, false, "00"},
		"not sampled, no client's":           {sampling(false), "", false, false, "00"},
		"not sampled, though the client was": {sampling(false), sampledParent, false, false, "00"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &request{Record: Record{Call: Call{TraceParent: tt.client}, ID: "r"}}
			tt.f.trace(r)
			assert.True(t, (r.traceParent == tt.client) == tt.same && strings.HasSuffix(r.traceParent, tt.flags) && (r.Trace != nil) == tt.traced,
				"engines get %q, traced %v", r.traceParent, r.Trace != nil)
			got, _ := trace.Parse(r.traceParent)
			client, ok := trace.Parse(tt.client)
			assert.True(t, !ok || got.Trace == client.Trace, "trace %s, the client's is %s", got.Trace, client.Trace)
			assert.True(t, !tt.traced || r.Trace.Own == got && r.Trace.Parent == client.Span && r.TraceID() == got.Trace.String(), "%+v", r.Trace)
		})
	}
}

// Where nothing is traced, a request costs no allocation of traces.
func TestTracesOffCostNothing(t *testing.T) {
	f := new(Flow)
	r := &request{Record: Record{Call: Call{TraceParent: sampledParent}, ID: "r"}}
	leg, lease := Leg{Worker: &pools.Worker{ID: "d", Role: pools.Decode}}, new(router.Lease)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		f.trace(r)
		r.traceWait(nil, time.Time{})
		_ = f.traceLeg(r, &leg, lease)
		r.Trace.end(leg.Span, time.Time{}, time.Time{}, failureOf(nil))
	}))
}

// A request that is admitted again and again has a bounded number of steps.
func TestStepsAreBounded(t *testing.T) {
	r, n := &Trace{}, 0
	for range 2 * maxSteps {
		s := Step{ID: trace.NewSpanID()}
		r.begin(s)
		r.end(s.ID, time.Time{}, time.Unix(1, 0), fault.Timeout.String())
	}
	r.Each(func(s *Step) {
		n++
		assert.Equal(t, "timeout", s.Failure)
		assert.False(t, s.Ended.IsZero())
	})
	assert.Equal(t, maxSteps, n)
}
