package pools

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A worker that goes without leaving stays listed: one that is configured as long as it is, one that had registered for a day or until
// it is forgotten. One that leaves, or comes back, is not lost.
func TestLostWorkers(t *testing.T) {
	c, now := NewCore(Config{}), time.Unix(0, 0)
	w := func(id string) *Worker { w := valid(id); return &w }
	put := func(source, id string) {
		t.Helper()
		_, err := c.Put(source, w(id), now)
		require.NoError(t, err)
	}
	is := func(what string, want ...string) {
		t.Helper()
		got := c.View().Lost()
		require.Len(t, got, len(want), "%s: lost", what)
		for i, l := range got {
			assert.True(t, l.Worker.ID == want[i] && l.Configured == (l.Source == "file"), "%s: %+v, want %q", what, l, want)
		}
	}
	for _, id := range []string{"a", "b", "c"} {
		put("etcd", id)
	}
	put("file", "f")
	assert.False(t, c.Lose("file", w("a"), now), "one source lost another's worker")
	c.Remove("etcd", "c")
	c.Lose("file", w("f"), now)
	c.Lose("file", w("never"), now) // it never answered
	_, err := c.Resync("etcd", nil, time.Second, now)
	require.NoError(t, err)
	is("within the grace", "f", "never")
	now = now.Add(time.Second)
	c.Advance(now)
	is("after the grace", "a", "b", "f", "never")
	if l := c.View().Lost(); !l[0].Since.Equal(now) || !c.NextDeadline().Equal(now.Add(lostFor)) {
		t.Errorf("since %v, until %v", l[0].Since, c.NextDeadline())
	}
	put("etcd", "a")
	put("file", "f")
	is("back", "b", "never")
	for id, want := range map[string]error{"a": ErrNotLost, "never": ErrNotLost, "x": ErrUnknownWorker, "b": nil} {
		assert.ErrorIs(t, c.Forget(id), want, id)
	}
	is("forgotten", "never")
	c.Remove("file", "never")
	is("taken out of the configuration")
	_, _ = c.Resync("etcd", nil, 0, now)
	is("lost", "a")
	c.Advance(now.Add(lostFor))
	is("a day later")
}
