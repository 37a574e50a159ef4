package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var errAway = errors.New("away")

// memory is a store in memory that can be away, forget, and answer with an error although it took a change.
type memory struct {
	mu      sync.Mutex // guards what follows
	name    string
	entries map[string][]byte
	log     []event // all changes
	away    bool
	none    bool
	lossy   int // of so many calls one fails after it was taken; 0 is none
	calls   int
	moved   chan struct{} // closed and replaced at each change of any of these
}

type event struct {
	name  string
	value []byte
}

func newMemory() *memory {
	return &memory{name: "first", entries: map[string][]byte{}, moved: make(chan struct{})}
}

func (m *memory) Where() string { return "memory" }

// change changes the store itself.
func (m *memory) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	close(m.moved)
	m.moved = make(chan struct{})
}

func (m *memory) Follow(ctx context.Context, all func(string, map[string][]byte), one func(string, []byte)) error {
	m.mu.Lock()
	if m.none {
		m.mu.Unlock()
		return fmt.Errorf("this server: %w", ErrNoStore)
	}
	name, at, entries, away := m.name, len(m.log), maps.Clone(m.entries), m.away
	m.mu.Unlock()
	if away {
		time.Sleep(100 * time.Millisecond)
		return errAway
	}
	all(name, entries)
	for {
		m.mu.Lock()
		gone, more, moved := m.away || m.name != name, m.log[min(at, len(m.log)):], m.moved
		m.mu.Unlock()
		if gone {
			return errAway
		}
		for _, e := range more {
			time.Sleep(time.Millisecond)
			one(e.name, e.value)
		}
		if at += len(more); len(more) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-moved:
		}
	}
}

func (m *memory) write(name string, value []byte) (err error) {
	time.Sleep(time.Millisecond)
	m.change(func() {
		if m.away {
			err = errAway
			return
		}
		if value == nil && m.entries[name] == nil {
			return // as etcd: nothing is reported
		}
		if m.entries[name] = value; value == nil {
			delete(m.entries, name)
		}
		m.log = append(m.log, event{name, value})
		if m.calls++; m.lossy > 0 && m.calls%m.lossy == 0 {
			err = errAway
		}
	})
	return err
}

func (m *memory) Put(_ context.Context, name string, value []byte) error { return m.write(name, value) }
func (m *memory) Delete(_ context.Context, name string) error            { return m.write(name, nil) }

// holder is a gateway: what is in force there.
type holder struct {
	*Board
	mu    sync.Mutex // guards what follows
	force map[string]string
	logs  strings.Builder
}

func (h *holder) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.logs.Write(p)
}

func (h *holder) put(name string, value []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.force[name] = string(value); value == nil {
		delete(h.force, name)
	}
}

// operate is what an operator's request does: it puts the change in force, and keeps it.
func (h *holder) operate(name, value string) Storage {
	if value == "" {
		h.put(name, nil)
		return h.Set(name, nil)
	}
	h.put(name, []byte(value))
	return h.Set(name, []byte(value))
}

func (h *holder) contains(text string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Contains(h.logs.String(), text)
}

// hold runs gateways on a store until the test's end.
func hold(t *testing.T, s Store, n int) []*holder {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	all := make([]*holder, n)
	for i := range all {
		h := &holder{force: map[string]string{}}
		h.Board = NewBoard(s, h.put, slog.New(slog.NewTextHandler(h, nil)))
		running.Go(func() { _ = h.Run(ctx) })
		all[i] = h
	}
	t.Cleanup(func() { cancel(); running.Wait() })
	return all
}

func want(t *testing.T, h *holder, entries map[string]string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	assert.Equal(t, entries, h.force)
}

// TestChangesReachAllGateways: a change at one gateway is in force at the others, also at one that starts later, before
// it is ready.
func TestChangesReachAllGateways(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		two := hold(t, m, 2)
		synctest.Wait()
		began := time.Now()
		assert.Equal(t, Stored, two[0].operate("cordons/a", "1"))
		synctest.Wait()
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
		assert.LessOrEqual(t, time.Since(began), 50*time.Millisecond, "it took")
		want(t, two[1], map[string]string{"cordons/a": "1"})
		late := hold(t, m, 1)[0]
		for !late.Ready() {
			time.Sleep(time.Millisecond)
			require.True(t, time.Since(began) <= storeTimeout, "not ready")
		}
		want(t, late, map[string]string{"cordons/a": "1"})
		assert.Equal(t, Stored, two[1].operate("cordons/a", ""))
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
		for _, h := range append(two, late) {
			want(t, h, map[string]string{})
		}
		// What is not there is removed too.
		assert.Equal(t, Stored, two[0].operate("cordons/b", ""))
	})
}

// TestStoreAway: a change made while the store is away counts there at once and everywhere when it is back; a gateway
// that starts meanwhile waits a second and no longer.
func TestStoreAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		two := hold(t, m, 2)
		two[0].operate("cordons/a", "1")
		m.change(func() { m.away = true })
		began := time.Now()
		got := two[0].operate("cordons/b", "1")
		assert.True(t, got == StoredLater && time.Since(began) == storeTimeout, "the answer is %s after %v", got, time.Since(began))
		assert.Equal(t, StoredLater, two[1].operate("cordons/a", ""))
		want(t, two[0], map[string]string{"cordons/a": "1", "cordons/b": "1"})
		want(t, two[1], map[string]string{})
		late := hold(t, m, 1)[0]
		time.Sleep(storeTimeout - time.Millisecond)
		synctest.Wait()
		assert.False(t, late.Ready(), "ready without the entries")
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		assert.True(t, late.Ready() && late.contains("continuing without them"), "not ready after a second")
		m.change(func() { m.away = false })
		time.Sleep(retries.Max + time.Second)
		synctest.Wait()
		for _, h := range append(two, late) {
			want(t, h, map[string]string{"cordons/b": "1"})
		}
	})
}

// TestStoreForgets: a store that comes back empty is given what is in force.
func TestStoreForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		two := hold(t, m, 2)
		two[0].operate("cordons/a", "1")
		two[1].operate("thresholds/m", "2")
		synctest.Wait()
		m.change(func() { m.name, m.entries, m.log = "second", map[string][]byte{"thresholds/m": []byte("3")}, nil })
		time.Sleep(retries.Max + time.Second)
		synctest.Wait()
		for _, h := range append(two, hold(t, m, 1)...) {
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			want(t, h, map[string]string{"cordons/a": "1", "thresholds/m": "3"})
		}
		// An entry that goes while the watch is broken, in the same store, has been removed.
		m.change(func() { m.away = true })
		time.Sleep(time.Second)
		m.change(func() { delete(m.entries, "cordons/a"); m.away = false })
		time.Sleep(retries.Max + time.Second)
		synctest.Wait()
		want(t, two[0], map[string]string{"thresholds/m": "3"})
	})
}

// TestNoStore: where nothing can be kept the answer says so at once, and the gateway does not wait.
func TestNoStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.none = true
		h := hold(t, m, 1)[0]
		synctest.Wait()
		began := time.Now()
		if got := h.operate("cordons/a", "1"); got != NotStored || !h.Ready() || time.Since(began) > 0 {
			t.Errorf("the answer is %s after %v, ready %v", got, time.Since(began), h.Ready())
		}
		alone := (*Board)(nil)
		assert.True(t, alone.Set("cordons/a", nil) == NotStored && alone.Ready(), "without a store something is kept")
		// The server may be given JetStream later.
		m.change(func() { m.none = false })
		time.Sleep(2 * retries.Max)
		synctest.Wait()
		assert.Equal(t, "1", string(m.entries["cordons/a"]), "it was not written")
	})
}

// TestBounds: values that are too large, and entries beyond the bound, are passed over.
func TestBounds(t *testing.T) {
	c := newChanges()
	big := make([]byte, maxBytes+1)
	entries := map[string][]byte{"cordons/big": big}
	for i := range maxEntries + 5 {
		entries[fmt.Sprintf("cordons/%05d", i)] = []byte("1")
	}
	assert.True(t, len(c.list("store", entries)) == maxEntries && len(c.known) == maxEntries,
		"%d entries are taken", len(c.known))
	if c.receive("cordons/00000", big) || c.receive("cordons/z", []byte("1")) || !c.receive("cordons/00000", nil) ||
		!c.receive("cordons/z", []byte("1")) {
		t.Error("a bound is not kept, or too narrow")
	}
}

// TestAllEndAlike has gateways change a few entries at random on a store that goes away, loses its answers and forgets.
// After quiet all have in force what the store has.
func TestAllEndAlike(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for round := range 40 {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, uint64(round)))
			m := newMemory()
			m.lossy = rng.IntN(4)
			three := hold(t, m, 3)
			var operators sync.WaitGroup
			for i, h := range three {
				own := rand.New(rand.NewPCG(seed, uint64(100*round+i)))
				operators.Go(func() {
					for n := range 20 {
						time.Sleep(time.Duration(own.IntN(300)) * time.Millisecond)
						value := ""
						if own.IntN(3) > 0 {
							value = fmt.Sprintf("gateway %d, change %d", i, n)
						}
						h.operate(fmt.Sprintf("cordons/%d", own.IntN(3)), value)
					}
				})
			}
			for range 6 {
				time.Sleep(time.Duration(rng.IntN(1500)) * time.Millisecond)
				m.change(func() {
					switch rng.IntN(4) {
					case 0:
						m.away = true
					case 1:
						m.name, m.entries, m.log = fmt.Sprint("store ", rng.Uint64()), map[string][]byte{}, nil
					default:
						m.away = false
					}
				})
			}
			operators.Wait()
			m.change(func() { m.away, m.lossy = false, 0 })
			time.Sleep(10 * time.Second)
			synctest.Wait()
			stored := map[string]string{}
			m.mu.Lock()
			for name, value := range m.entries {
				stored[name] = string(value)
			}
			m.mu.Unlock()
			for _, h := range three {
				want(t, h, stored)
				assert.Empty(t, h.core.pending)
			}
		})
	}
}
