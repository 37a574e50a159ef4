package replica

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/internal/guard"
)

// Store holds operators' changes, such as cordons, as entries KIND/NAME. It outlives the gateways, and all of a fleet
// follow it. It reports changes in the order in which it stored them.
type Store interface {
	// Follow calls all with every entry and the store's name, which changes if the store lost its entries; then one
	// with each change, nil for a deleted entry. It returns on an error or at the end of ctx. Its error is [ErrNoStore]
	// if nothing can be stored.
	Follow(ctx context.Context, all func(store string, entries map[string][]byte), one func(name string, value []byte)) error
	// Put writes an entry, and Delete removes it, if it is there.
	Put(ctx context.Context, name string, value []byte) error
	Delete(ctx context.Context, name string) error
	// Where names the store in logs.
	Where() string
}

// ErrNoStore reports that the store's server stores nothing.
var ErrNoStore = errors.New("it stores nothing")

// Storage reports whether an operator's change is stored.
type Storage string

// The values of Storage.
const (
	Stored      Storage = "yes"   // it outlives this process, and the other gateways receive it
	StoredLater Storage = "later" // the store is unreachable; it is written on recovery
	NotStored   Storage = "no"    // there is no store: the change ends with this process
)

// storeTimeout is how long Run waits for the entries before the gateway starts without them, and Set for the store.
const storeTimeout = time.Second

// retries is how long to wait between attempts.
var retries = guard.Backoff{Min: 50 * time.Millisecond, Max: 2 * time.Second}

// Board applies operators' changes from a store in one gateway, and writes its own. A nil Board stores nothing. It is
// safe for concurrent use.
type Board struct {
	store Store
	apply func(name string, value []byte)
	log   *slog.Logger
	wake  chan struct{} // there is something to apply
	write chan struct{} // there is something to write

	mu       sync.Mutex // guards all below
	core     *changes
	dirty    []string      // entries to apply
	progress chan struct{} // closed and replaced when a change is over
	ready    bool          // the entries are applied, or have been waited for long enough
	none     bool          // the store stores nothing
}

// NewBoard returns a Board that is empty until Run. apply puts an entry in force, nil for none. One goroutine calls it,
// also with entries that are in force already.
func NewBoard(store Store, apply func(name string, value []byte), log *slog.Logger) *Board {
	return &Board{
		store: store, apply: apply, log: log, core: newChanges(),
		wake: make(chan struct{}, 1), write: make(chan struct{}, 1), progress: make(chan struct{}),
	}
}

// Ready reports whether the entries are in force, or have been waited for long enough.
func (b *Board) Ready() bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ready
}

// Set changes an entry, nil removes it, and waits a second at most for the store to take it. The caller has put the
// change in force.
func (b *Board) Set(name string, value []byte) Storage {
	if b == nil {
		return NotStored
	}
	b.mu.Lock()
	b.core.pending[name] = &change{value: value}
	b.dirty = append(b.dirty, name) // after whatever is being applied
	b.mu.Unlock()
	poke(b.wake)
	poke(b.write)
	limit := time.NewTimer(storeTimeout)
	defer limit.Stop()
	for {
		b.mu.Lock()
		over, none, progress := b.core.pending[name] == nil, b.none, b.progress
		b.mu.Unlock()
		switch {
		case over:
			return Stored
		case none:
			return NotStored
		}
		select {
		case <-progress:
		case <-limit.C:
			b.log.Warn("operator's change not stored yet; until then it applies to this gateway alone", "entry", name, "store", b.store.Where())
			return StoredLater
		}
	}
}

// Run follows the store until ctx ends, when it returns nil.
func (b *Board) Run(ctx context.Context) error {
	if b == nil {
		return nil
	}
	var all sync.WaitGroup
	for _, part := range []func(context.Context){b.follow, b.send} {
		all.Go(func() {
			_ = guard.Run(ctx, b.log, "kept", func(ctx context.Context) error { part(ctx); return nil })
		})
	}
	b.put(ctx)
	all.Wait()
	return nil
}

// put puts entries in force.
func (b *Board) put(ctx context.Context) {
	late := time.NewTimer(storeTimeout)
	defer late.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-late.C:
			if !b.Ready() {
				b.log.Warn("operators' changes unknown: the store does not respond; continuing without them", "store", b.store.Where())
				b.mu.Lock()
				b.ready = true
				b.mu.Unlock()
			}
		case <-b.wake:
		}
		b.mu.Lock()
		dirty, known := b.dirty, b.core.store != "" || b.none
		b.dirty = nil
		b.mu.Unlock()
		for _, name := range dirty {
			b.mu.Lock()
			value := b.core.value(name)
			b.mu.Unlock()
			guard.Do(b.log, "kept", func() { b.apply(name, value) })
		}
		if known {
			b.mu.Lock()
			b.ready = true
			b.mu.Unlock()
		}
	}
}

// follow applies what the store reports.
func (b *Board) follow(ctx context.Context) {
	failed := 0
	all := func(store string, entries map[string][]byte) {
		if failed > 0 {
			b.log.Info("operators' changes are stored again", "store", b.store.Where())
		}
		failed = 0
		b.changed(func() {
			b.none = false
			b.dirty = append(b.dirty, b.core.list(store, entries)...)
		})
	}
	one := func(name string, value []byte) {
		b.changed(func() {
			if b.core.receive(name, value) {
				b.dirty = append(b.dirty, name)
			} else {
				b.log.Warn("operator's change ignored: too large, or too many of them", "entry", name)
			}
		})
	}
	b.persist(ctx, func() error {
		err := b.store.Follow(ctx, all, one)
		if errors.Is(err, ErrNoStore) {
			b.changed(func() { b.none = true })
		}
		switch failed++; {
		case failed > 1 || ctx.Err() != nil:
		case errors.Is(err, ErrNoStore):
			b.log.Info("operators' changes are not stored: they end with this process", "store", b.store.Where(), "error", err)
		default:
			b.log.Warn("operators' changes cannot be stored at present", "store", b.store.Where(), "error", err)
		}
		return err
	})
}

// changed wakes the writers and the applier.
func (b *Board) changed(take func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	take()
	close(b.progress)
	b.progress = make(chan struct{})
	poke(b.wake)
	poke(b.write)
}

// send writes changes.
func (b *Board) send(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.write:
		}
		b.persist(ctx, func() error { return b.flush(ctx) })
	}
}

// flush writes the changes that there are, once the store's entries are known.
func (b *Board) flush(ctx context.Context) error {
	for {
		b.mu.Lock()
		name, ch := b.core.next()
		known := b.core.store != ""
		b.mu.Unlock()
		if ch == nil || !known {
			return nil
		}
		var err error
		if ch.value == nil {
			err = b.store.Delete(ctx, name)
		} else {
			err = b.store.Put(ctx, name, ch.value)
		}
		if err != nil {
			b.log.Debug("operator's change not written", "entry", name, "error", err)
			return err
		}
		b.mu.Lock()
		b.core.wrote(name, ch)
		close(b.progress)
		b.progress = make(chan struct{})
		b.mu.Unlock()
	}
}

// persist calls try until it returns nil or ctx ends.
func (b *Board) persist(ctx context.Context, try func() error) {
	rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for failures := 0; try() != nil; failures++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(retries.Delay(failures, rng)):
		}
	}
}
