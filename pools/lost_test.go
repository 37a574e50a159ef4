package pools

import (
	"errors"
	"testing"
	"time"
)

// A worker that goes without leaving stays listed: one that is configured as long as it is, one that had registered for a day or until
// it is forgotten. One that leaves, or comes back, is not lost.
func TestLostWorkers(t *testing.T) {
	c, now := NewCore(Config{}), time.Unix(0, 0)
	w := func(id string) *Worker {
		return &Worker{ID: id, Incarnation: "i", Model: "m", Role: Both, Engine: "sim", Address: "http://h:1", BlockSize: 16}
	}
	put := func(source, id string) {
		t.Helper()
		if _, err := c.Put(source, w(id), now); err != nil {
			t.Fatal(err)
		}
	}
	is := func(what string, want ...string) {
		t.Helper()
		got := c.View().Lost()
		if len(got) != len(want) {
			t.Fatalf("%s: lost are %+v, want %q", what, got, want)
		}
		for i, l := range got {
			if l.Worker.ID != want[i] || l.Configured != (l.Source == "file") {
				t.Errorf("%s: %+v, want %q", what, l, want)
			}
		}
	}
	for _, id := range []string{"a", "b", "c"} {
		put("etcd", id)
	}
	put("file", "f")
	if c.Lose("file", w("a"), now) {
		t.Error("one source lost another's worker")
	}
	c.Remove("etcd", "c")
	c.Lose("file", w("f"), now)
	c.Lose("file", w("never"), now) // it never answered
	if _, err := c.Resync("etcd", nil, time.Second, now); err != nil {
		t.Fatal(err)
	}
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
	if err := c.Forget("a"); !errors.Is(err, ErrNotLost) {
		t.Error(err)
	}
	if err := c.Forget("never"); !errors.Is(err, ErrNotLost) {
		t.Error(err)
	}
	if err := c.Forget("x"); !errors.Is(err, ErrUnknownWorker) {
		t.Error(err)
	}
	if err := c.Forget("b"); err != nil {
		t.Error(err)
	}
	is("forgotten", "never")
	c.Remove("file", "never")
	is("taken out of the configuration")
	_, _ = c.Resync("etcd", nil, 0, now)
	is("lost", "a")
	c.Advance(now.Add(lostFor))
	is("a day later")
}
