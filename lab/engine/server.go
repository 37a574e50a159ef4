package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/internal/tokens"
)

// promptCacheBytes bounds the server's cache of tokenized prompts.
const promptCacheBytes = 16 << 20

// Server is the shell around a Core: an engine's HTTP in its dialect, and the side channel of hand-offs. Run steps the
// core; requests reach it under a mutex. It starts no goroutine that outlives Run.
type Server struct {
	cfg       Config
	log       *slog.Logger
	tokenizer *tokens.Cache
	dialect   dialect
	metrics   *counters
	faces     http.Handler
	transfer  *http.ServeMux
	client    *http.Client
	ownClient bool

	wake  chan struct{}  // something changed: take a turn
	calls sync.WaitGroup // calls of the side channel in flight

	mu      sync.Mutex
	core    *Core
	store   store
	tickets map[string]*ticket // waiting callers, by sequence
	open    int                // completion requests whose handlers have not returned
	serial  uint64             // of sequences

	adapters    []string              // LoRA adapters that are loaded
	guests      map[uint64]chan<- Met // decode engines that wait for a meeting here
	guestNumber uint64

	releases []Remote      // to send to their producers in the next turn
	beat     time.Time     // when the next heartbeat is due; zero: nothing is awaited
	running  bool          // Run runs
	closed   bool          // nothing more is accepted
	dead     bool          // the core has died; see mortal for what its process serves
	diedAt   time.Time     // when
	drainAt  time.Time     // from when on an idle server is drained; zero: not draining
	drained  chan struct{} // closed when drained
}

// Ends of calls outside the core.
var (
	errAborted   = errors.New("engine: aborted by its id")
	errQueueFull = errors.New("engine: the queue is full")
)

// errDraining is the answer to requests that arrive too late.
var errDraining = errors.New("engine: draining")

// NewServer makes a server that serves once Run runs. A nil logger discards.
func NewServer(cfg Config, log *slog.Logger) (*Server, error) {
	vocabulary, tokenizer := Vocabulary{Words: tokens.Words(), EOS: tokens.EOS()}, (*tokens.Cache)(nil)
	if l := cfg.Language; l != nil {
		tokenizer = l.Tokenizer()
		var err error
		if vocabulary, err = vocabularyOf(tokenizer.Tokenizer()); err != nil {
			return nil, err
		}
	} else {
		tokenizer = tokens.NewCache(tokens.Sim(), promptCacheBytes)
	}
	if cfg.Sentences {
		vocabulary.learn(tokenizer.Tokenizer())
	}
	core, err := NewCore(cfg, vocabulary)
	if err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		cfg: cfg, log: log.With("engine", cfg.EngineID()),
		tokenizer: tokenizer, client: cfg.Client,
		wake:    make(chan struct{}, 1),
		core:    core,
		tickets: make(map[string]*ticket), guests: make(map[uint64]chan<- Met),
		drained: make(chan struct{}),
	}
	if s.store, err = newStore(cfg.Store, cfg.BlockSize); err != nil {
		return nil, fmt.Errorf("engine: the KV store: %w", err)
	}
	if s.client == nil {
		s.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16, IdleConnTimeout: 2 * time.Second}}
		s.ownClient = true
	}
	s.dialect = dialects[cfg.Engine].of(s)
	s.metrics = s.dialect.measure(time.Now())
	s.faces = s.newFaces()
	s.transfer = s.newSideChannel()
	return s, nil
}

// Config is the server's configuration with every default filled in.
func (s *Server) Config() Config { return s.cfg }

// Handler serves the engine's faces: completions, models, health, metrics and the books.
func (s *Server) Handler() http.Handler { return s.mortal(s.faces) }

// TransferHandler serves the side channel on which decode engines request blocks. It needs a listener of its own, at
// Config.TransferHost and TransferPort, which a worker registers as its transfer endpoint.
func (s *Server) TransferHandler() http.Handler { return s.mortal(s.transfer) }

// Run steps the core until the context ends; it may be called once. At its end every live request fails, producers get
// calls to free what was not pulled, and every goroutine that it started has ended.
func (s *Server) Run(ctx context.Context) error {
	s.mu.Lock()
	again := s.running || s.closed
	s.running = true
	s.mu.Unlock()
	if again {
		return errors.New("engine: Run was called before")
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		next := s.turn(ctx)
		var due <-chan time.Time
		if !next.IsZero() {
			timer.Reset(time.Until(next))
			due = timer.C
		}
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-due:
		}
	}
	s.close()
	s.turn(ctx)
	s.calls.Wait()
	if s.ownClient {
		s.client.CloseIdleConnections()
	}
	return nil
}

// Drain turns /health to 503, keeps serving for Config.DrainGrace, and after it until nothing runs, waits or is
// pinned for a decode engine. Once every answer is written it refuses requests: what is left is http.Server's
// Shutdown, which sends what is still in its buffers. When the context ends first it refuses at once and returns the
// context's error; running requests continue.
func (s *Server) Drain(ctx context.Context) error {
	s.mu.Lock()
	if s.drainAt.IsZero() {
		s.drainAt = time.Now().Add(s.cfg.DrainGrace)
	}
	s.mu.Unlock()
	s.awake()
	select {
	case <-s.drained:
		return nil
	case <-ctx.Done():
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		return context.Cause(ctx)
	}
}

// Books returns the engine's present account of blocks and slots.
func (s *Server) Books() Books {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.core.Books(time.Now())
	b.Guests = len(s.guests)
	return b
}

// turn steps the core once, delivers the results and returns when the next turn is due. Only Run's goroutine calls it,
// so events leave in order.
func (s *Server) turn(ctx context.Context) time.Time {
	s.mu.Lock()
	now := time.Now()
	r := s.core.Step(now)
	for i := range r.Outputs {
		s.deliver(&r.Outputs[i], now)
	}
	for _, met := range r.Met {
		if answered := s.guests[met.Guest]; answered != nil {
			delete(s.guests, met.Guest)
			answered <- met
		}
	}
	releases := s.releases
	s.releases = nil
	awaited := s.beatNow(now)
	next := earlier(r.Next, s.beat)
	if !s.drainAt.IsZero() && !s.closed {
		if s.drainAt.After(now) {
			next = earlier(next, s.drainAt)
		} else if s.open == 0 && len(s.core.seqs) == 0 && len(s.core.pins) == 0 {
			s.closed = true
			close(s.drained)
		}
	}
	s.mu.Unlock()

	if len(r.Events) > 0 && s.cfg.OnEvents != nil {
		s.cfg.OnEvents(r.Events)
	}
	for _, f := range r.Fetches {
		s.calls.Go(func() { s.fetch(ctx, f) })
	}
	// Releases outlive Run's context: a producer without the call keeps the blocks for the whole lease.
	for _, rs := range [][]Remote{r.Releases, releases} {
		for _, remote := range rs {
			s.calls.Go(func() { s.tellRelease(context.WithoutCancel(ctx), remote) })
		}
	}
	for _, group := range byProducer(awaited) {
		s.calls.Go(func() { s.tellHeartbeat(ctx, group) })
	}
	return next
}

// beatNow returns the remote requests whose leases are to be renewed now, and sets when to look again.
func (s *Server) beatNow(now time.Time) (due []Remote) {
	switch {
	case s.core.awaited == 0:
		s.beat = time.Time{}
		return nil
	case s.beat.IsZero():
	case s.beat.After(now):
		return nil
	default:
		due = s.core.Awaited()
	}
	s.beat = now.Add(s.cfg.HeartbeatInterval)
	return due
}

// deliver puts an output where its handler waits for it.
func (s *Server) deliver(o *Output, now time.Time) {
	t := s.tickets[o.ID]
	if t == nil {
		return // its client has gone
	}
	s.metrics.observe(t, o, now)
	t.last = now
	if o.Generated == 1 && t.prompt != nil {
		// Before the answer, as LMCache's connector does (wait_for_save): who reads it finds the KV.
		if err := s.store.put(t.prompt); err != nil {
			s.log.Warn("KV not stored: others compute it again", "error", err)
		}
	}
	t.box.put(t.choice, *o)
	if o.Reason != Unfinished {
		delete(s.tickets, o.ID)
	}
}

// enter counts a completion request in, and the returned function out.
func (s *Server) enter() (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open--
		s.awake()
	}
}

// submit gives a call's sequences to the core, all or none.
func (s *Server) submit(c *call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return errDead
	}
	if s.closed {
		return errDraining
	}
	if most := s.cfg.MaxQueued; most > 0 && s.core.waiting.n+len(s.core.expecting) >= most {
		return errQueueFull
	}
	now := time.Now()
	for i := range c.choices {
		ch := &c.choices[i]
		s.serial++
		ch.request.ID = sequenceID(c.id, i, s.cfg.Incarnation, s.serial)
		if err := s.core.Add(ch.request); err != nil {
			for _, added := range c.choices[:i] {
				s.core.Abort(added.request.ID)
				delete(s.tickets, added.request.ID)
			}
			return err
		}
		s.tickets[ch.request.ID] = &ticket{box: c.box, choice: i, call: c.id, arrival: now, last: now, prompt: ch.request.Hashes}
	}
	s.awake()
	return nil
}

// abort ends sequences without a waiting caller at once.
func (s *Server) abort(ids ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		delete(s.tickets, id)
		s.core.Abort(id)
	}
	s.awake()
}

// noticed ends when the engine notices that the context has, and with stop.
func (s *Server) noticed(ctx context.Context) (late context.Context, stop func()) {
	if s.cfg.NoticeAfter == 0 {
		return ctx, func() {}
	}
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		select {
		case <-time.After(s.cfg.NoticeAfter):
			cancel()
		case <-late.Done():
		}
	})
	return late, cancel
}

// abortCalls ends every call, or those whose ids begin with the one named, if there is
// one of just that id. Their callers get what was generated so far.
func (s *Server) abortCalls(id string, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := all
	for _, t := range s.tickets {
		known = known || t.call == id
	}
	if !known {
		return
	}
	for seq, t := range s.tickets {
		if all || strings.HasPrefix(t.call, id) {
			delete(s.tickets, seq)
			s.core.Abort(seq)
			t.box.put(t.choice, Output{ID: seq, Reason: Aborted, Err: errAborted})
		}
	}
	s.awake()
}

// release queues the call that frees blocks at their producer.
func (s *Server) release(r *Remote) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releases = append(s.releases, *r)
	s.awake()
}

// close fails live requests and refuses new ones.
func (s *Server) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.running = false
	s.core.AbortAll()
	for number, answered := range s.guests {
		delete(s.guests, number)
		answered <- Met{Guest: number, Err: ErrNoPrefill}
	}
}

// awake makes Run take a turn.
func (s *Server) awake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
