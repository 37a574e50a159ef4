package pools

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

// running gives f a roster whose time passes, and ends it afterwards.
func running(t *testing.T, f func(r *Roster)) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRoster(Config{}, quiet)
		ctx, cancel := context.WithCancel(t.Context())
		var ended sync.WaitGroup
		ended.Go(func() { assert.NoError(t, r.Run(ctx)) })
		synctest.Wait()
		f(r)
		cancel()
		ended.Wait()
	})
}

func put(t *testing.T, r *Roster, ids ...string) {
	t.Helper()
	for _, id := range ids {
		join(t, r, id, func(*Worker) {})
	}
}

// join puts a valid worker that was changed.
func join(t *testing.T, r *Roster, id string, change func(w *Worker)) {
	t.Helper()
	require.NoError(t, r.Put(with(id, change)))
}

func with(id string, change func(w *Worker)) Worker {
	w := valid(id)
	change(&w)
	return w
}

func ids(p *Pool) (ids []string) {
	for _, m := range p.Members {
		ids = append(ids, m.Worker.ID)
	}
	return ids
}

// The time passes for the roster: a worker's time down and its grace end at their deadlines, also where a nearer one comes later.
func TestRunEndsTimesDownAndGraces(t *testing.T) {
	running(t, func(r *Roster) {
		put(t, r, "p1", "p2", "p3")
		changes := make(chan Status, 10) // p1's, as the callbacks see it
		r.OnChange(func() {
			m, _ := r.Lookup("p1")
			changes <- m.Status
		})
		r.Resync([]Worker{valid("p1"), valid("p2")}, time.Minute) // p3 goes in a minute
		synctest.Wait()
		r.ReportDown("p1", "a") // and p1 is back in five seconds
		time.Sleep(defaultDownFor - 1)
		synctest.Wait()
		assert.True(t, len(changes) == 1 && <-changes == Down, "just before the deadline more than the failure was called back")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.True(t, len(changes) == 1 && <-changes == Up, "at the deadline the worker's return was not called back")
		time.Sleep(time.Minute - defaultDownFor)
		synctest.Wait()
		assert.Equal(t, []string{"p1", "p2"}, ids(r.Snapshot("m", Prefill)), "after the grace")
	})
}

// The last worker of a pool that took requests is tried again soon: nothing is served without it.
func TestTheLastWorkerIsDownForAMoment(t *testing.T) {
	running(t, func(r *Roster) {
		put(t, r, "p1", "p2", "p3")
		require.NoError(t, r.Drain("p3", true))
		up := func() (up []string) {
			pool := r.Snapshot("m", Prefill)
			for i := range pool.Members {
				if m := &pool.Members[i]; m.Eligible(time.Now()) {
					up = append(up, m.Worker.ID)
				}
			}
			return up
		}
		r.ReportDown("p1", "a")
		r.ReportDown("p2", "a")
		for range 2 {
			assert.Empty(t, up(), "just failed")
			time.Sleep(lastDownFor)
			synctest.Wait()
			assert.Equal(t, []string{"p2"}, up(), "half a second later")
			r.ReportDown("p2", "a")
		}
	})
}

// A worker whose process has ended stays down, whatever its last answers say, until another process registers.
func TestEndedWorkersStayDown(t *testing.T) {
	running(t, func(r *Roster) {
		put(t, r, "p1")
		standing := func() Status { m, _ := r.Lookup("p1"); return m.Status }
		r.ReportDown("p1", "a")
		r.ReportEnded("p1", "a")
		r.ReportDown("p1", "a")
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		assert.Equal(t, Down, standing(), "a day after its end the worker")
		r.ReportEnded("p1", "b") // late: of another process
		join(t, r, "p1", func(w *Worker) { w.Incarnation = "b" })
		assert.Equal(t, Up, standing(), "another process of it")
	})
}

func TestCallbacksRunOutsideTheLock(t *testing.T) {
	r := NewRoster(Config{}, quiet)
	calls := 0
	r.OnChange(func() {
		if calls++; calls == 1 {
			r.ReportDown("p1", "a") // would hang under the lock
			r.OnChange(func() {})
		}
	})
	put(t, r, "p1")
	assert.Equal(t, 2, calls, "calls, want one for each change")
	put(t, r, "p1")
	r.ReportDown("p1", "other")
	r.Remove("unknown")
	assert.Equal(t, 2, calls, "calls after changes of nothing, want 2")
}

func TestSnapshotsAreImmutable(t *testing.T) {
	r := NewRoster(Config{}, quiet)
	w := valid("p1")
	w.Topology = map[string]string{"rack": "r7"}
	require.NoError(t, r.Put(w))
	before := r.Snapshot("m", Prefill)
	w.Topology["rack"] = "spoilt"
	put(t, r, "p0", "p2")
	r.ReportDown("p1", "a")
	assert.Equal(t, []string{"p1"}, ids(before), "the old snapshot")
	assert.Equal(t, Up, before.Members[0].Status, "in the old snapshot")
	assert.Equal(t, "r7", before.Members[0].Worker.Topology["rack"], "the caller's map shows through: rack")
	after := r.Snapshot("m", Prefill)
	assert.Equal(t, []string{"p0", "p1", "p2"}, ids(after), "the new snapshot")
	assert.Greater(t, after.Version, before.Version)
}

func TestUnknownPoolsAreEmpty(t *testing.T) {
	r := NewRoster(Config{}, quiet)
	never := r.Snapshot("m", Prefill)
	assert.True(t, never.Name() == "m/prefill" && len(never.Members) == 0 && never.Version == 0 && !r.Known("m", Prefill), "%+v", never)
	put(t, r, "p1")
	assert.Equal(t, []string{"m"}, r.Models())
	r.Remove("p1")
	assert.True(t, r.Known("m", Prefill) && !r.Known("m", Decode) && len(r.Models()) == 0 && len(r.Pools()) == 1,
		"an emptied pool is not known")
}

func TestSnapshotDoesNotAllocate(t *testing.T) {
	r := NewRoster(Config{}, quiet)
	put(t, r, "p1", "p2")
	var p *Pool
	if n := testing.AllocsPerRun(100, func() { p = r.Snapshot("m", Prefill) }); n != 0 || len(p.Members) != 2 {
		t.Errorf("%v allocations for %d members", n, len(p.Members))
	}
}

// TestEverySnapshotIsWhole has readers look while writers write: a snapshot is sorted, holds no worker twice, and its
// version never goes back.
func TestEverySnapshotIsWhole(t *testing.T) {
	r := NewRoster(Config{}, quiet)
	var writers, readers sync.WaitGroup
	var done atomic.Bool
	for g := range 3 {
		writers.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(g)))
			for range 400 {
				id := fmt.Sprint("p", rng.IntN(20))
				switch rng.IntN(4) {
				case 0:
					r.Remove(id)
				case 1:
					r.ReportDown(id, "a")
				case 2:
					r.ReportEnded(id, "a")
				default:
					_ = r.Put(valid(id))
				}
			}
		})
	}
	readers.Go(func() {
		version := uint64(0)
		for !done.Load() {
			p := r.Snapshot("m", Prefill)
			names := ids(p)
			if p.Version < version || !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != len(names) {
				t.Errorf("version %d after %d: %v", p.Version, version, names)
				return
			}
			version = p.Version
		}
	})
	writers.Wait()
	done.Store(true)
	readers.Wait()
}

func TestCordonsAreBounded(t *testing.T) {
	c := NewCore(Config{})
	for i := range maxCordons + 1 {
		w := valid(fmt.Sprint("p", i))
		_, _ = c.Put("", &w, start)
		_, err := c.Drain(w.ID, true)
		require.Equal(t, i == maxCordons, errors.Is(err, ErrTooManyCordons), "cordon %d: %v", i, err)
		c.Remove("", w.ID) // an absent worker's cordon stays
	}
	_, err := c.Drain("p0", false)
	require.NoError(t, err)
	w := valid("last")
	_, _ = c.Put("", &w, start)
	_, err = c.Drain("last", true)
	assert.NoError(t, err, "after one was lifted")
}

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

// A process serves in the role that it was assigned, whatever its source repeats; its next process is in the registered
// one again. A hold keeps requests off, as an operator's cordon does, and neither lifts the other.
func TestAssign(t *testing.T) {
	now := time.Unix(1e9, 0)
	c := NewCore(Config{})
	worker := func(incarnation string) *Worker {
		return &Worker{ID: "w", Incarnation: incarnation, Model: "m", Role: Prefill, Engine: "sim", Address: "http://h:1", BlockSize: 16}
	}
	put := func(w *Worker) {
		t.Helper()
		_, err := c.Put("s", w, now)
		require.NoError(t, err)
	}
	is := func(role Role, status Status) {
		t.Helper()
		v := c.View()
		m, ok := v.Lookup("w")
		require.True(t, ok)
		assert.Equal(t, []any{role, status, 1}, []any{m.Worker.Role, m.Status, len(v.Pool("m", role).Members)})
	}
	put(worker("1"))
	assert.False(t, c.Assign("w", "0", Decode, false), "another process")
	assert.False(t, c.Assign("x", "1", Decode, false), "another worker")
	assert.True(t, c.Assign("w", "1", Prefill, true))
	is(Prefill, Draining)
	assert.True(t, c.Assign("w", "1", Decode, false))
	assert.False(t, c.Assign("w", "1", Decode, false), "twice")
	is(Decode, Up)
	put(worker("1"))
	is(Decode, Up)
	_, err := c.Drain("w", true)
	require.NoError(t, err)
	c.Assign("w", "1", Decode, true)
	c.Assign("w", "1", Decode, false)
	is(Decode, Draining)
	_, err = c.Drain("w", false)
	require.NoError(t, err)
	c.Remove("s", "w")
	put(worker("1"))
	is(Decode, Up)
	put(worker("2"))
	is(Prefill, Up)
	put(worker("1"))
	is(Prefill, Up)
}
