package decode

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/http1"
)

// watch ends a call whose worker stops responding. It wraps the worker's stream and counts only the time in Read, not
// that of a slow client.
//
// An event costs two clock reads and two atomic stores. The call's one timer is reset at the first token and when it
// fires early.
//
// Read, event and flush belong to the goroutine that relays the stream.
type watch struct {
	src    io.Reader
	polled http1.Source // src, if it can be read without waiting
	cfg    Config
	seen   *seen
	start  time.Time
	limits

	// since is when the current silence began, in nanoseconds after start and shifted by the client's delays; 0 while
	// no read is running.
	since atomic.Int64
	now   time.Duration // when the latest read returned, after start
	quiet time.Duration // the silence before it
	fresh bool          // quiet was not recorded yet

	pending [16]uint8 // buckets of gaps to record
	held    int

	life      *http1.Lifetime // of the call; the timer, while it runs, and each look are holders of it
	mu        sync.Mutex
	timer     *time.Timer   // kept for the next call
	taken     bool          // an event arrived
	took      time.Duration // time until then
	streaming bool          // the first token, or the end of an answer without any, arrived
	ending    bool          // the end marker arrived: only the connection's end is awaited
	ended     bool
}

// closing is how long an engine may take to end a stream after its end marker. A connection that does not end is not
// reused.
const closing = 20 * time.Millisecond

// limits are how long a stream may be silent.
type limits struct {
	first  time.Duration // to the first token, before any event
	role   time.Duration // to the first token, since the latest event; 0 to keep first
	tokens time.Duration // between later events; 0 to derive it from the worker's gaps

	patience time.Duration // see Call
	leave    Client
}

// arm starts the clock. It ends life with fault.ErrTimeout when the first token exceeds its limits, and with
// fault.ErrStalled when a stream is silent for too long. Call stop afterwards.
func (w *watch) arm(cfg Config, known *seen, l limits, life *http1.Lifetime) {
	*w = watch{cfg: cfg, seen: known, start: time.Now(), limits: l, life: life, timer: w.timer}
	life.Retain()
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

// Polls reports whether the worker's stream can be read without waiting; see http1.Source.
func (w *watch) Polls() bool {
	w.polled, _ = w.src.(http1.Source)
	return w.polled != nil && w.polled.Polls()
}

// TryRead is Read without waiting. Silence counts from the call that found nothing.
func (w *watch) TryRead(p []byte) (int, error) {
	n, err := w.polled.TryRead(p)
	now, since := time.Since(w.start), w.since.Load()
	if n == 0 && errors.Is(err, http1.ErrWouldBlock) {
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

// OnReadable registers f with the worker's stream.
func (w *watch) OnReadable(f func()) bool { return w.polled.OnReadable(f) }

// event records a step of the engine, which ends the silence. Only the first event of a read counts.
func (w *watch) event() {
	if !w.fresh {
		return
	}
	if !w.taken { // only this goroutine writes it, and streaming
		w.mu.Lock()
		w.taken, w.took = true, w.now
		w.mu.Unlock()
	}
	if w.streaming {
		w.pending[w.held] = uint8(gapBucket(w.quiet))
		if w.held++; w.held == len(w.pending) {
			w.flush()
		}
	}
	w.quiet, w.fresh = 0, false
}

// at returns when the latest read returned.
func (w *watch) at() time.Time { return w.start.Add(w.now) }

// firstToken records the first token: from now on the idle limit applies.
func (w *watch) firstToken() { w.set(&w.streaming, w.idle()) }

// idle returns how long the stream may be silent between two events.
func (w *watch) idle() time.Duration { return max(w.tokens, w.cfg.idle(w.seen)) }

// end records that the answer is complete.
func (w *watch) end() { w.set(&w.ending, closing) }

func (w *watch) set(phase *bool, limit time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*phase = true
	if !w.ended && !w.timer.Reset(limit) {
		w.life.Retain() // the timer's; a look that is already running has its own
	}
}

// flush records the pending gaps.
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

// stop ends the watch and records what it observed.
func (w *watch) stop() {
	w.flush()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	if w.timer.Stop() {
		w.life.Release()
	}
	w.src, w.polled, w.seen = nil, nil, nil
}

// look runs on the timer: it ends the call, or schedules the next look.
func (w *watch) look() {
	life := w.life
	defer life.Release()
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
	case w.streaming:
		limit, waited, cause = w.idle(), w.silence(now), fault.ErrStalled
	case w.taken && w.role > 0:
		limit, waited = w.role, w.silence(now)
	}
	if waited < limit {
		next := limit - waited
		if w.patience > 0 && !w.taken {
			if err := w.leave.Leave(); err != nil {
				w.ended = true
				w.life.End(err)
				return
			}
			next = min(next, w.patience)
		}
		if !w.timer.Reset(next) {
			life.Retain()
		}
		return
	}
	w.ended = true
	w.life.End(fmt.Errorf("%w: %v", cause, limit.Round(time.Millisecond)))
}

// silence returns how long the engine has sent nothing, 0 while no read is running.
func (w *watch) silence(now time.Duration) time.Duration {
	if since := w.since.Load(); since > 0 {
		return now - time.Duration(since)
	}
	return 0
}
