package member

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/pools"
)

// TestRoutersKnowOfTheOthers: the group's gateways by name, and their unseen bookings in the pool that is booked in.
func TestRoutersKnowOfTheOthers(t *testing.T) {
	t.Parallel()
	server := startNATS(t, 0)
	a, b := join(t, server.URL(), "a"), join(t, server.URL(), "b")
	b.eventually("a knows b", func() bool {
		group := a.member.Among()
		return group != nil && group.Own == "a" && slices.Equal(group.Names, []string{"a", "b"})
	})
	group := a.member.Among()
	a.eventually("bookings of b are on their way", func() bool {
		a.book().Release(time.Now())
		b.book().Release(time.Now())
		return a.member.Unseen() > 0 && a.member.UnseenIn(a.pool) > 0
	})
	if a.member.Among() != group {
		t.Error("an unchanged group is another one")
	}
	if n := a.member.UnseenIn(&pools.Pool{Model: "m", Role: pools.Prefill}); n != 0 {
		t.Errorf("%v bookings are unseen in a pool that none is made in", n)
	}
	b.leave()
	a.eventually("b has left", func() bool { return slices.Equal(a.member.Among().Names, []string{"a"}) })
	var alone *Member
	if alone.Among() != nil || alone.UnseenIn(a.pool) != 0 {
		t.Error("a gateway alone knows of others")
	}
}
