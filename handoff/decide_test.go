package handoff

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
)

// The whole table: every class on either leg, before the first byte.
func TestDecideBeforeTheFirstByte(t *testing.T) {
	want := map[fault.Class]struct{ prefill, decode Action }{
		fault.None:         {Fail, Fail},
		fault.ClientGone:   {Fail, Fail},
		fault.Shutdown:     {Fail, Fail},
		fault.Rejected:     {Fail, Fail},
		fault.TooLarge:     {Fail, Fail},
		fault.GatewayError: {OtherPrefill, OtherDecode},
		fault.Moved:        {OtherPrefill, Again},
		fault.Refused:      {OtherPrefill, OtherDecode},
		fault.Reset:        {OtherPrefill, Again},
		fault.Timeout:      {OtherPrefill, Again},
		fault.Stalled:      {OtherPrefill, Again},
		fault.Overloaded:   {OtherPrefill, Again},
		fault.NotServed:    {OtherPrefill, Again},
		fault.EngineError:  {OtherPrefill, Again},
		fault.Garbled:      {OtherPrefill, Again},
		fault.Truncated:    {OtherPrefill, Again},
	}
	for c := fault.None; c <= fault.Truncated; c++ {
		w, ok := want[c]
		assert.True(t, ok, "class %s is not in the table", c)
		assert.Equal(t, w.prefill, Decide(pools.Prefill, c, 1, 0, false, false), "prefill %s", c)
		assert.Equal(t, w.decode, Decide(pools.Decode, c, 1, 0, false, false), "decode %s", c)
	}
}

// An answer that has begun is resumed or fails, the last attempt of a prefill leaves the prompt to decode, and a worker that died
// costs a round: a second one ends the request.
func TestDecideLimits(t *testing.T) {
	for c := fault.None; c <= fault.Truncated; c++ {
		resume, local := Fail, Fail
		if c.Blames() || c == fault.GatewayError || c == fault.Moved {
			resume, local = Resume, LocalPrefill
		}
		for _, leg := range both {
			assert.Equal(t, Fail, Decide(leg, c, 1, 0, true, false), "%s %s of an answer that cannot be resumed", leg, c)
			assert.Equal(t, resume, Decide(leg, c, MaxAttempts, MaxDeaths-1, true, true), "%s %s of an answer that can be resumed", leg, c)
			assert.Equal(t, Fail, Decide(leg, c, 1, MaxDeaths, true, true), "%s %s that killed %d workers", leg, c, MaxDeaths)
			assert.Equal(t, Fail, Decide(leg, c, MaxDeaths, MaxDeaths, false, true), "%s %s that killed %d workers", leg, c, MaxDeaths)
		}
		assert.Equal(t, Fail, Decide(pools.Decode, c, MaxAttempts, 0, false, false), "decode %s at the last attempt", c)
		assert.Equal(t, local, Decide(pools.Prefill, c, MaxAttempts, 0, false, false), "prefill %s at the last attempt", c)
	}
	assert.Equal(t, OtherPrefill, Decide(pools.Prefill, fault.Reset, 1, 1, false, true))
	assert.Equal(t, Again, Decide(pools.Decode, fault.Reset, 1, 1, false, true))
}
