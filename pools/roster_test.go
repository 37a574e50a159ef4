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

func TestRunEndsTheTimeDown(t *testing.T) {
	running(t, func(r *Roster) {
		put(t, r, "p1", "p2")
		changes := make(chan Status, 10) // as the callbacks see them
		r.OnChange(func() {
			m, _ := r.Lookup("p1")
			changes <- m.Status
		})
		r.ReportDown("p1", "a")
		time.Sleep(defaultDownFor - 1)
		synctest.Wait()
		assert.True(t, len(changes) == 1 && <-changes == Down, "just before the deadline more than the failure was called back")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.True(t, len(changes) == 1 && <-changes == Up, "at the deadline the worker's return was not called back")
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

func TestRunLooksAgainWhenADeadlineComesNearer(t *testing.T) {
	running(t, func(r *Roster) {
		put(t, r, "p1", "p2", "p3")
		r.Resync([]Worker{valid("p1"), valid("p2")}, time.Minute) // p3 goes in a minute
		synctest.Wait()
		r.ReportDown("p1", "a") // and p1 is back in five seconds
		time.Sleep(defaultDownFor)
		synctest.Wait()
		if m, _ := r.Lookup("p1"); m.Status != Up {
			t.Errorf("p1 is %v after its time down", m.Status)
		}
		time.Sleep(time.Minute - defaultDownFor)
		synctest.Wait()
		if got := ids(r.Snapshot("m", Prefill)); !slices.Equal(got, []string{"p1", "p2"}) {
			t.Errorf("after the grace the pool is %v", got)
		}
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
	r.Remove("nobody")
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
	if got := ids(before); !slices.Equal(got, []string{"p1"}) || before.Members[0].Status != Up {
		t.Errorf("the old snapshot became %v, %v", got, before.Members[0].Status)
	}
	assert.Equal(t, "r7", before.Members[0].Worker.Topology["rack"], "the caller's map shows through: rack")
	after := r.Snapshot("m", Prefill)
	if got := ids(after); !slices.Equal(got, []string{"p0", "p1", "p2"}) || after.Version <= before.Version {
		t.Errorf("the new snapshot is %v, version %d after %d", got, after.Version, before.Version)
	}
}

func TestOnePoolsChangeLeavesTheOthersAlone(t *testing.T) {
	r := NewRoster(Config{}, quiet)
	put(t, r, "p1")
	join(t, r, "d1", func(w *Worker) { w.Role = Decode })
	before := r.Snapshot("m", Prefill)
	r.ReportDown("d1", "a")
	assert.Same(t, before, r.Snapshot("m", Prefill), "a decode worker's failure replaced the prefill pool")
}

func TestUnknownKnownAndEmptied(t *testing.T) {
	r := NewRoster(Config{}, quiet)
	never := r.Snapshot("m", Prefill)
	if never == nil || never.Name() != "m/prefill" || len(never.Members) != 0 || never.Version != 0 || r.Known("m", Prefill) {
		t.Errorf("a pool never heard of is %+v, known %t", never, r.Known("m", Prefill))
	}
	put(t, r, "p1")
	if got := r.Models(); !slices.Equal(got, []string{"m"}) {
		t.Errorf("models %v", got)
	}
	r.Remove("p1")
	emptied := r.Snapshot("m", Prefill)
	assert.True(t, len(emptied.Members) == 0 && emptied.Version != 0 && r.Known("m", Prefill) && !r.Known("m", Decode),
		"an emptied pool is %+v", emptied)
	assert.True(t, len(r.Models()) == 0 && len(r.Pools()) == 1, "models %v, %d pools", r.Models(), len(r.Pools()))
}

func TestRefusedAreShown(t *testing.T) {
	r := NewRoster(Config{BlockSize: 32}, quiet)
	err := r.Put(valid("p1"))
	refusal, ok := errors.AsType[*RefusedError](err)
	assert.True(t, ok && refusal.Worker == "p1" && refusal.Registered == 16 && refusal.Required == 32, "got %v", err)
	if got := r.Refused(); len(got) != 1 || got[0].Worker.ID != "p1" || got[0].Err != err {
		t.Errorf("refused: %v", got)
	}
	assert.ErrorIs(t, r.Drain("p1", true), ErrUnknownWorker, "draining a refused worker")
}

func TestSnapshotDoesNotAllocate(t *testing.T) {
	r := NewRoster(Config{}, quiet)
	put(t, r, "p1", "p2")
	var p *Pool
	if n := testing.AllocsPerRun(100, func() { p = r.Snapshot("m", Prefill) }); n != 0 || len(p.Members) != 2 {
		t.Errorf("%v allocations for %d members", n, len(p.Members))
	}
}

// TestEverySnapshotIsWhole has readers look while writers write: a snapshot is sorted, holds nobody twice, and its
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
	if _, err := c.Drain("p0", false); err != nil {
		t.Fatal(err)
	}
	w := valid("last")
	_, _ = c.Put("", &w, start)
	if _, err := c.Drain("last", true); err != nil {
		t.Errorf("after one was lifted: %v", err)
	}
}

func TestSourcesSpeakForThemselves(t *testing.T) {
	r := NewRoster(Config{}, quiet)
	etcd, flags := r.From("etcd"), r.From("flags")
	require.NoError(t, etcd.Put(valid("p1")))
	claimed, ok := errors.AsType[*ClaimedError](flags.Put(valid("p1")))
	assert.True(t, ok && claimed.Worker == "p1" && claimed.Source == "flags" && claimed.By == "etcd",
		"the second claim: %+v", claimed)
	flags.Resync(nil, 0)
	if m, in := r.Lookup("p1"); !in || m.Source != "etcd" {
		t.Errorf("p1 is %+v after another source's list", m)
	}
	flags.Refuse(valid("p2"), errors.New("two models"))
	if got := r.Refused(); len(got) != 1 || got[0].Worker.ID != "p2" || got[0].Source != "flags" {
		t.Errorf("refused: %+v", got)
	}
}
