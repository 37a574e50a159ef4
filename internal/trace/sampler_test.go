package trace

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Every sampler decides as the SDK's of that name does.
func TestSamplersDecideAsTheSDK(t *testing.T) {
	for _, ratio := range []float64{0, .01, .3, 1} {
		for name, other := range map[string]sdk.Sampler{
			"always_on": sdk.AlwaysSample(), "always_off": sdk.NeverSample(), "traceidratio": sdk.TraceIDRatioBased(ratio),
			"parentbased_always_on": sdk.ParentBased(sdk.AlwaysSample()), "parentbased_always_off": sdk.ParentBased(sdk.NeverSample()),
			"parentbased_traceidratio": sdk.ParentBased(sdk.TraceIDRatioBased(ratio)),
		} {
			own, ok := newSampler(name, ratio)
			require.True(t, ok, name)
			sampled := 0
			for i := range 3000 {
				id, parent, ctx := NewTraceID(), Context{}, context.Background()
				if i%3 > 0 {
					parent = Context{Trace: id, Span: NewSpanID(), Flags: byte(i%3) & Sampled}
					ctx = trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
						TraceID: trace.TraceID(id), SpanID: trace.SpanID(parent.Span), TraceFlags: trace.TraceFlags(parent.Flags), Remote: true}))
				}
				want := other.ShouldSample(sdk.SamplingParameters{ParentContext: ctx, TraceID: trace.TraceID(id)}).Decision == sdk.RecordAndSample
				got := own.sample(id, parent)
				require.Equal(t, want, got, "%s %v for %s, parent %s", name, ratio, id, parent)
				if got {
					sampled++
				}
			}
			assert.True(t, name != "traceidratio" || float64(sampled) >= 3000*ratio/2 && float64(sampled) <= 3000*min(1, ratio*2),
				"%d of 3000 sampled at %v", sampled, ratio)
		}
	}
}

// An unknown name is the default.
func TestUnknownSampler(t *testing.T) {
	s, ok := newSampler("xray", .5)
	assert.False(t, ok)
	assert.True(t, s.byParent)
	assert.EqualValues(t, 1<<62, s.bound)
}
