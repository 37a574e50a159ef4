// Package kept stores operators' changes, such as cordons, in a store that outlives the gateways and that all of a
// fleet follow.
package kept

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/internal/guard"
)

// Store keeps entries, each KIND/NAME with a value. It takes changes one after another and reports them in that order.
type Store interface {
	// Follow calls all with every entry, and with a name that the store has until it loses them; and then one with each
	// change, nil for an entry that is gone. It ends when something is wrong, or ctx has ended. Its error is [ErrNone] where
	// nothing can be kept.
	Follow(ctx context.Context, all func(store string, entries map[string][]byte), one func(name string, value []byte)) error
	// Put writes an entry, and Delete removes it, if it is there.
	Put(ctx context.Context, name string, value []byte) error
	Delete(ctx context.Context, name string) error
	// Where names the store in logs.
	Where() string
}

// ErrNone: the store's server stores nothing.
var ErrNone = errors.New("it keeps nothing")

// Answer is whether a change is kept.
type Answer string

// The answers.
const (
	Yes   Answer = "yes"   // stored: it outlives this process, and the other gateways receive it
	Later Answer = "later" // the store is away, and takes it when it is back
	No    Answer = "no"    // there is no store: it ends with this process
)

// patience is how long Run waits for the entries before the gateway goes on without, and Set for the store.
const patience = time.Second

// retries is how long to wait between attempts.
var retries = guard.Backoff{Min: 50 * time.Millisecond, Max: 2 * time.Second}

// Board is a store's entries in one gateway. A nil one keeps nothing. Its methods may be called concurrently.
type Board struct {
	store Store
	apply func(name string, value []byte)
	log   *slog.Logger
	wake  chan struct{} // there is something to apply
	write chan struct{} // there is something to write

	mu       sync.Mutex // guards what follows
	core     *core
	dirty    []string      // entries to apply
	progress chan struct{} // closed and replaced when a change is over
	ready    bool          // the entries are applied, or have been waited for long enough
	none     bool          // the store stores nothing
}

// New returns a Board that is empty until Run. apply puts an entry in force, nil for none; it is called by one goroutine, with what is in
// force already too.
func New(store Store, apply func(name string, value []byte), log *slog.Logger) *Board {
	return &Board{
		store: store, apply: apply, log: log, core: newCore(),
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

// Set changes an entry, nil removes it, and waits a second at most for the store to take it. The caller has put the change in force.
func (b *Board) Set(name string, value []byte) Answer {
	if b == nil {
		return No
	}
	b.mu.Lock()
	b.core.set(name, value)
	b.dirty = append(b.dirty, name) // after whatever is being applied
	b.mu.Unlock()
	poke(b.wake)
	poke(b.write)
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		b.mu.Lock()
		over, none, progress := b.core.pending[name] == nil, b.none, b.progress
		b.mu.Unlock()
		switch {
		case over:
			return Yes
		case none:
			return No
		}
		select {
		case <-progress:
		case <-limit.C:
			b.log.Warn("operator's change not stored yet; until then it applies to this gateway alone", "entry", name, "store", b.store.Where())
			return Later
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
	late := time.NewTimer(patience)
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
		if errors.Is(err, ErrNone) {
			b.changed(func() { b.none = true })
		}
		switch failed++; {
		case failed > 1 || ctx.Err() != nil:
		case errors.Is(err, ErrNone):
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

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is awake
	}
}
