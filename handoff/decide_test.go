package handoff

import (
	"testing"

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
		if !ok {
			t.Errorf("class %s is not in the table", c)
		}
		if got := Decide(pools.Prefill, c, 1, 0, false, false); got != w.prefill {
			t.Errorf("prefill %s: %s, want %s", c, got, w.prefill)
		}
		if got := Decide(pools.Decode, c, 1, 0, false, false); got != w.decode {
			t.Errorf("decode %s: %s, want %s", c, got, w.decode)
		}
	}
}

// An answer that has begun is resumed or fails, and the last attempt of a
// prefill leaves the prompt to decode.
func TestDecideLimits(t *testing.T) {
	for c := fault.None; c <= fault.Truncated; c++ {
		for _, leg := range []pools.Role{pools.Prefill, pools.Decode} {
			if got := Decide(leg, c, 1, 0, true, false); got != Fail {
				t.Errorf("%s %s of an answer that cannot be resumed: %s", leg, c, got)
			}
			want := Fail
			if c.Blames() || c == fault.GatewayError || c == fault.Moved {
				want = Resume
			}
			if got := Decide(leg, c, MaxAttempts, MaxDeaths-1, true, true); got != want {
				t.Errorf("%s %s of an answer that can be resumed: %s, want %s", leg, c, got, want)
			}
			if got := Decide(leg, c, 1, MaxDeaths, true, true); got != Fail {
				t.Errorf("%s %s that killed %d workers: %s", leg, c, MaxDeaths, got)
			}
		}
		if got := Decide(pools.Decode, c, MaxAttempts, 0, false, false); got != Fail {
			t.Errorf("decode %s at the last attempt: %s", c, got)
		}
		want := Fail
		if c.Blames() || c == fault.GatewayError || c == fault.Moved {
			want = LocalPrefill
		}
		if got := Decide(pools.Prefill, c, MaxAttempts, 0, false, false); got != want {
			t.Errorf("prefill %s at the last attempt: %s, want %s", c, got, want)
		}
	}
}

// A worker that died costs a round; a second one ends the request.
func TestDecideDeaths(t *testing.T) {
	for _, c := range []struct {
		leg    pools.Role
		deaths int
		want   Action
	}{
		{pools.Prefill, 1, OtherPrefill}, {pools.Prefill, MaxDeaths, Fail},
		{pools.Decode, 1, Again}, {pools.Decode, MaxDeaths, Fail},
	} {
		if got := Decide(c.leg, fault.Reset, c.deaths, c.deaths, false, true); got != c.want {
			t.Errorf("%s after %d deaths: %s, want %s", c.leg, c.deaths, got, c.want)
		}
	}
}
