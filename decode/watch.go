package decode

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/lifetime"
	"github.com/tandem-pd/tandem/internal/loop"
	"github.com/tandem-pd/tandem/internal/relay"
)

// watch ends a call whose worker stops responding. It stands between the worker's stream and its reader and counts
// only the time spent in Read: while the reader is held up by a slow client, the engine owes nothing.
//
// An event costs two looks at the clock and two atomic stores. The call's one timer is set again when the first token
// comes and when it fires too early, not with every event.
//
// Read, event and flush belong to the goroutine that relays the stream.
type watch struct {
	src    io.Reader
	polled relay.Source // the same, where it can be read without waiting
	cfg    Config
	seen   *seen
	start  time.Time
	limits

	// since is when the silence that lasts began, in nanoseconds after start and moved by what the client took
	// meanwhile; 0 while no read is running.
	since atomic.Int64
	now   time.Duration // of the latest read's return, after start
	quiet time.Duration // the silence before it
	fresh bool          // quiet was not taken in yet

	pending [16]uint8 // buckets of gaps not yet taken in
	held    int

	life   *lifetime.Context // of the call
	mu     sync.Mutex
	timer  *time.Timer   // kept for the next call
	taken  bool          // an event came: the engine has taken the call up
	took   time.Duration // until then
	begun  bool          // the first token came
	ending bool          // the end marker came: only the connection's end is awaited
	ended  bool
	fired  bool // the timer was set again after it had fired: that look may still be to come
	still  bool // no look is to come: the watch may begin again
}

// closing is how long an engine may take to end a stream after its end marker. The client has its whole answer by
// then and waits only for the stream's end; a connection that does not come to it carries no other call.
const closing = 20 * time.Millisecond

// limits is how long a stream may be silent.
type limits struct {
	first  time.Duration // to the first token, where no event came
	role   time.Duration // to the first token, since the latest event; 0 where first holds all the same
	tokens time.Duration // between events after it; 0 for what is learnt of the worker

	patience time.Duration // see Call
	leave    func() error
}

// begins starts the clock. It ends life with fault.ErrTimeout when the first token does not come within its limits, and
// with fault.ErrStalled when a stream is silent for longer than between tokens. stop must be called.
func (w *watch) begins(cfg Config, known *seen, l limits, life *lifetime.Context) {
	*w = watch{cfg: cfg, seen: known, start: time.Now(), limits: l, life: life, timer: w.timer}
	w.mu.Lock()
	defer w.mu.Unlock()
	next := l.first
	if l.patience > 0 {
		next = min(next, l.patience)
	}
	if w.timer == nil {
		w.timer = time.AfterFunc(next, w.look)
	} else {
		w.timer.Reset(next)
	}
}

// Read reads from the worker.
func (w *watch) Read(p []byte) (int, error) {
	asked := time.Since(w.start)
	w.since.Store(int64(max(1, asked-w.quiet)))
	n, err := w.src.Read(p)
	w.now = time.Since(w.start)
	w.since.Store(0)
	w.quiet += w.now - asked
	w.fresh = true
	return n, err
}

// Polls reports whether the worker's stream can be read without waiting; see relay.Source.
func (w *watch) Polls() bool {
	w.polled, _ = w.src.(relay.Source)
	return w.polled != nil && w.polled.Polls()
}

// TryRead is Read without waiting. The silence counts from the call that found nothing.
func (w *watch) TryRead(p []byte) (int, error) {
	n, err := w.polled.TryRead(p)
	now, since := time.Since(w.start), w.since.Load()
	if n == 0 && errors.Is(err, loop.ErrWouldBlock) {
		if since == 0 {
			w.since.Store(int64(max(1, now-w.quiet)))
		}
		return n, err
	}
	if since > 0 {
		w.quiet = now - time.Duration(since)
		w.since.Store(0)
	}
	w.now, w.fresh = now, true
	return n, err
}

// OnReadable is the worker's stream's.
func (w *watch) OnReadable(f func()) bool { return w.polled.OnReadable(f) }

// event says that the engine has made a step: the silence is over. The first event of a read takes it in; those that
// came along do not.
func (w *watch) event() {
	if !w.fresh {
		return
	}
	if !w.taken { // only this goroutine writes it, and begun
		w.mu.Lock()
		w.taken, w.took = true, w.now
		w.mu.Unlock()
	}
	if w.begun {
		w.pending[w.held] = uint8(gapBucket(w.quiet))
		if w.held++; w.held == len(w.pending) {
			w.flush()
		}
	}
	w.quiet, w.fresh = 0, false
}

// at is when the latest read returned: when what it brought arrived.
func (w *watch) at() time.Time { return w.start.Add(w.now) }

// begin says that the first token is here: from now on the idle limit holds.
func (w *watch) begin() { w.set(&w.begun, w.idle()) }

// idle is how long the stream may be silent between two events.
func (w *watch) idle() time.Duration { return max(w.tokens, w.cfg.idle(w.seen)) }

// end says that the answer is whole.
func (w *watch) end() { w.set(&w.ending, closing) }

func (w *watch) set(phase *bool, limit time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*phase = true
	if !w.ended && !w.timer.Reset(limit) {
		w.fired = true
	}
}

// flush takes the gaps in.
func (w *watch) flush() {
	if w.held == 0 {
		return
	}
	w.seen.mu.Lock()
	defer w.seen.mu.Unlock()
	for _, bucket := range w.pending[:w.held] {
		w.seen.gaps.observe(bucket, 1)
	}
	w.held = 0
}

// stop ends the watch. What was seen is taken in.
func (w *watch) stop() {
	w.flush()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended, w.still = true, w.timer.Stop() && !w.fired
	w.src, w.polled, w.seen = nil, nil, nil
}

// look is the timer's: it ends the call, or finds out when to look again.
func (w *watch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	now := time.Since(w.start)
	limit, waited, cause := w.first, now, fault.ErrTimeout
	switch {
	case w.ending:
		limit, waited, cause = closing, w.silence(now), fault.ErrStalled
	case w.begun:
		limit, waited, cause = w.idle(), w.silence(now), fault.ErrStalled
	case w.taken && w.role > 0:
		limit, waited = w.role, w.silence(now)
	}
	if waited < limit {
		next := limit - waited
		if w.patience > 0 && !w.taken {
			if err := w.leave(); err != nil {
				w.ended = true
				w.life.End(err)
				return
			}
			next = min(next, w.patience)
		}
		w.timer.Reset(next)
		return
	}
	w.ended = true
	w.life.End(fmt.Errorf("%w: %v", cause, limit.Round(time.Millisecond)))
}

// silence is how long the engine has brought nothing, 0 while no read is running.
func (w *watch) silence(now time.Duration) time.Duration {
	if since := w.since.Load(); since > 0 {
		return now - time.Duration(since)
	}
	return 0
}
