package feed

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/pools"
)

// Requests ask while a rank is predicted, and not for long where nothing comes of it.
func TestReannouncingIsBounded(t *testing.T) {
	source := wire.Source{Pool: "m/prefill", Worker: "w"}
	status := follow.SourceStatus{Source: source, State: follow.Predicted, Losses: 1}
	r := &reannounce{status: func(s wire.Source) (follow.SourceStatus, bool) { return status, s == source }}
	w, other := &pools.Worker{ID: "w"}, &pools.Worker{ID: "v"}
	asks := func(n int) (asked int) {
		for range n {
			if r.wanted(w, 0) {
				asked++
			}
		}
		return asked
	}
	check := func(what string, got, want int) {
		t.Helper()
		assert.Equal(t, want, got, "%s requests ask", what)
	}
	check("nothing was lost", asks(10), 0)
	lost := map[overlap.Rank]wire.Source{{Worker: "w"}: source}
	r.lose(lost)
	assert.True(t, !r.wanted(other, 0) && !r.wanted(w, 1), "a rank is asked that lost nothing")
	check("nothing comes of it", asks(1000), maxUnanswered)
	r.lose(lost)
	check("another rank's loss changes nothing", asks(1000), 0)
	status.Losses = 2
	check("another loss does", asks(1000), maxUnanswered)
	status.Reannounced = 1
	check("something comes of it", asks(10_000), maxReannouncing-1000)
	status.Losses, status.State = 3, follow.Live
	check("it is whole", asks(10), 0)
	r.lose(nil)
	r.lose(lost)
	status.Losses, status.State = 4, follow.Predicted
	check("what was announced before the loss is no sign", asks(1000), maxUnanswered)
	r.lose(nil)
	check("nothing is lost any more", asks(10), 0)
}

func TestWhoReannounces(t *testing.T) {
	for _, c := range []struct {
		engine string
		role   pools.Role
		want   bool
	}{
		{"vllm", pools.Prefill, true}, {"vllm", pools.Both, true}, {"sim", pools.Both, true},
		{"vllm", pools.Decode, false}, {"sglang", pools.Both, false}, {"trtllm", pools.Prefill, false},
	} {
		assert.Equal(t, c.want, reannounces(&pools.Worker{Engine: c.engine, Role: c.role}), "%s of role %s", c.engine, c.role)
	}
}
