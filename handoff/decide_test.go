package handoff

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
)

// The whole table: every class on either leg, before the first byte.
func TestDecideBeforeTheFirstByte(t *testing.T) {
	table := map[fault.Class][2]Action{}
	for want, classes := range map[[2]Action][]fault.Class{ // of prefill's failure, and of decode's
		{Fail, Fail}:                {fault.None, fault.ClientGone, fault.Shutdown, fault.Rejected, fault.TooLarge},
		{OtherPrefill, OtherDecode}: {fault.GatewayError, fault.Refused},
		{OtherPrefill, Again}: {
			fault.Moved, fault.Reset, fault.Timeout, fault.Stalled, fault.Overloaded, fault.NotServed, fault.EngineError, fault.Garbled,
			fault.Truncated,
		},
	} {
		for _, c := range classes {
			table[c] = want
		}
	}
	for c := fault.None; c <= fault.Truncated; c++ {
		require.Contains(t, table, c)
		got := [2]Action{Decide(pools.Prefill, c, 1, 0, false, false), Decide(pools.Decode, c, 1, 0, false, false)}
		assert.Equal(t, table[c], got, c)
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
