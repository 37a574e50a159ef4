package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tandem-pd/tandem/internal/backoff"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
)

// ProberConfig is how a [Prober] works. The zero value of each field means its default.
type ProberConfig struct {
	// Every is how often each worker's health is asked for, by default 5 s.
	Every time.Duration `flag:"worker-health-interval" default:"5s" range:"100ms..10m" help:"How often a worker given by URL is asked for its health. Three failures in a row take it out, asked for in quicker succession; it comes back when it answers. Shorter notices sooner and asks more." when:"dead workers are noticed late"`
	// Timeout is how long one answer may take, by default 3/5 of Every and at least 100 ms.
	Timeout time.Duration
	// Failures in a row take a worker out, by default 3.
	Failures int
	// BlockSize in tokens of a worker that does not report its own; by default [defaultBlockSize].
	BlockSize int
	// APIKey is sent to the workers as Authorization: Bearer; empty sends none.
	APIKey string
	// Trust is the certificates of connections to https workers; nil takes the system's authorities and shows none.
	Trust upstream.Trust
	// AskFirst reports no worker before it has answered, though its model was given.
	AskFirst bool
	// OnBeat is called after each question with the worker's id and what was wrong, nil for nothing. It must not wait.
	OnBeat func(id string, err error)
	// Seed of pauses and incarnations.
	Seed uint64
}

// Validate names the first field that is out of range.
func (c *ProberConfig) Validate() error {
	switch {
	case c.Every < 0 || c.Timeout < 0:
		return errors.New("worker-health-interval must not be negative")
	case c.Failures < 0 || c.BlockSize < 0 || c.BlockSize > pools.MaxBlockSize:
		return errors.New("failures and block size must be in range")
	}
	return nil
}

// Prober finds workers that do not register: each is asked about itself until it answers, reported to the sink, and
// looked after from then on. A worker whose model was given is reported at once, with defaults for what it has not reported.
type Prober struct {
	sink  Sink
	cfg   ProberConfig
	log   *slog.Logger
	asker *asker
	kick  chan struct{} // holds at most one: the list changed
	doubt chan suspicion

	mu     sync.Mutex // guards wanted
	wanted []Endpoint
}

// NewProber returns a Prober that reports to sink. The error is the config's.
func NewProber(sink Sink, cfg ProberConfig, log *slog.Logger) (*Prober, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("workers by URL: %w", err)
	}
	cfg.Every = cmp.Or(cfg.Every, 5*time.Second)
	cfg.Timeout = cmp.Or(cfg.Timeout, max(cfg.Every*3/5, 100*time.Millisecond))
	cfg.Failures = cmp.Or(cfg.Failures, 3)
	return &Prober{sink: sink, cfg: cfg, log: log, asker: newAsker(cfg.APIKey, cfg.Timeout, cfg.Trust), kick: make(chan struct{}, 1), doubt: make(chan suspicion, 16)}, nil
}

// suspicion is that a worker may be another process than at some time.
type suspicion struct {
	id    string
	since time.Time
}

// Suspect says that another process may have come in a worker's place since then: it is asked everything at once, and reported
// as another incarnation, unless that has happened since. The zero time is now. It does not wait.
func (p *Prober) Suspect(id string, since time.Time) {
	if since.IsZero() {
		since = time.Now()
	}
	select {
	case p.doubt <- suspicion{id, since}:
	default: // so many are asked about already that one more look is not worth a wait
	}
}

// Set replaces the list of workers: those that are no longer in it go at once, those whose entry is another are asked
// again, and the others are left as they are.
func (p *Prober) Set(es []Endpoint) {
	p.mu.Lock()
	p.wanted = es
	p.mu.Unlock()
	select {
	case p.kick <- struct{}{}:
	default: // Run is notified already and has not looked yet
	}
}

// Run looks after the workers until ctx ends, when it returns nil and leaves them in the sink. It may be called once.
func (p *Prober) Run(ctx context.Context) error {
	defer p.asker.close()
	followed := map[string]*probe{} // by id
	begun := uint64(0)
	var running sync.WaitGroup
	defer running.Wait()
	for {
		p.mu.Lock()
		wanted := p.wanted
		p.mu.Unlock()
		now := make(map[string]Endpoint, len(wanted))
		for _, e := range wanted {
			now[e.Given.ID] = e
		}
		for id, f := range followed {
			if e, still := now[id]; !still || !e.Given.Equal(&f.given) {
				f.cancel()
				<-f.done
				p.sink.Remove(id)
				delete(followed, id)
			}
		}
		for _, e := range wanted {
			if id := e.Given.ID; followed[id] == nil {
				f := p.probe(e.Given, begun)
				begun++
				followed[id] = f
				ctx, cancel := context.WithCancel(ctx)
				f.cancel = cancel
				running.Go(func() {
					defer cancel()
					defer close(f.done)
					f.run(ctx)
				})
			}
		}
		for kicked := false; !kicked; {
			select {
			case <-ctx.Done():
				return nil
			case <-p.kick:
				kicked = true
			case s := <-p.doubt:
				if f := followed[s.id]; f != nil {
					f.suspect(s.since)
				}
			}
		}
	}
}

// probe makes the nth probe of this Prober: no two draw the same incarnations.
func (p *Prober) probe(given pools.Worker, nth uint64) *probe {
	return &probe{
		Prober: p, given: given, pulse: pulse{limit: p.cfg.Failures}, done: make(chan struct{}), suspected: make(chan time.Time, 1),
		rng: rand.New(rand.NewPCG(p.cfg.Seed, nth)),
	}
}

// probe looks after one worker.
type probe struct {
	*Prober
	given  pools.Worker
	pulse  pulse
	rng    *rand.Rand
	cancel context.CancelFunc
	done   chan struct{} // closed when run has ended

	suspected chan time.Time // holds at most one: since when

	beats       int
	incarnation string
	began       time.Time    // when it was drawn
	facts       facts        // the latest
	vocab       int          // of the process that was asked for it, which may not say it; 0 unknown
	reported    pools.Worker // to the sink
	complained  bool         // the log says that the worker does not answer
}

func (f *probe) run(ctx context.Context) {
	if f.given.Model != "" && !f.cfg.AskFirst {
		f.pulse.join()
		f.publish(facts{}, true)
	}
	for {
		f.beat(ctx)
		select {
		case <-ctx.Done():
			return
		case since := <-f.suspected:
			if f.began.After(since) {
				break // it was reported as another since
			}
			f.pulse.suspect()
		case <-time.After(f.pause()):
		}
	}
}

// suspect has run ask, soon. Of several times that it was not yet asked about the latest counts: the latest moment since which it may be another
// then is another since before. The Prober's Run alone calls it.
func (f *probe) suspect(since time.Time) {
	select {
	case before := <-f.suspected:
		if before.After(since) {
			since = before
		}
	default:
	}
	f.suspected <- since // no other goroutine fills it
}

// askAgain is after how many looks at its health a worker is asked everything again, over a new connection: its name may
// have moved to another address while the old one goes on answering.
const askAgain = 12

// beat asks once, and reports what follows.
func (f *probe) beat(ctx context.Context) {
	var reported facts
	f.beats++
	full, err := !f.pulse.steady() || f.beats%askAgain == 0, error(nil)
	if !full {
		full, err = f.asker.health(ctx, f.given.Address, f.beats%askAgain == askAgain-1)
	}
	switch {
	case err != nil:
	case full:
		reported, err = f.asker.all(ctx, &f.given)
		if err == nil && reported.engine == "sglang" && (f.vocab == 0 || reported.born != f.facts.born) {
			f.vocab = f.asker.vocabulary(ctx, f.given.Address)
		}
	default: // adapters come and go without any other sign
		now := f.facts
		if now.adapters = f.asker.adapters(ctx, &f.given, now); now.adapters != f.facts.adapters && ctx.Err() == nil {
			f.log.Info("worker has other adapters", "worker", f.given.ID, "adapters", strings.Split(now.adapters, "\n"))
			f.publish(now, false)
		}
	}
	if errors.Is(err, errGateway) {
		err = &answerError{Worker: f.given.ID, Address: f.given.Address, Problem: errGateway.Error()}
		f.pulse.in = false // it never was a worker
	}
	if ctx.Err() == nil && f.cfg.OnBeat != nil {
		f.cfg.OnBeat(f.given.ID, err)
	}
	switch {
	case ctx.Err() != nil:
	case unasked(err):
		if !f.complained {
			f.complained = true
			f.log.Warn("worker cannot be asked: the gateway's own machine cannot connect; the worker stays as it is", "worker", f.given.ID, "address", f.given.Address, "error", err)
		}
	case err != nil:
		f.failed(err)
	case full:
		if f.complained {
			f.complained = false
			f.log.Info("worker answers", "worker", f.given.ID, "address", f.given.Address)
		}
		f.publish(reported, f.pulse.answered(reported))
	}
}

// unasked says that this machine could not even make the connection, which says nothing about the worker. That its name
// does not exist does: it is how a worker in a cluster ends.
func unasked(err error) bool {
	resolver, ok := errors.AsType[*net.DNSError](err)
	return upstream.LocalFailure(err) && !(ok && resolver.IsNotFound)
}

// draw is another incarnation: the one that was given with the worker, and for each later process that and a number.
func (f *probe) draw() string {
	switch {
	case f.given.Incarnation == "":
		return fmt.Sprintf("%016x", f.rng.Uint64())
	case f.incarnation == "":
		return f.given.Incarnation
	}
	return fmt.Sprintf("%s-%08x", f.given.Incarnation, f.rng.Uint32())
}

// publish puts the worker into the sink, if that is news.
func (f *probe) publish(reported facts, fresh bool) {
	if fresh {
		f.incarnation, f.began = f.draw(), time.Now()
	}
	f.facts = reported
	w, noEvents := reported.record(f.given, f.cfg.BlockSize)
	w.Incarnation, w.VocabSize = f.incarnation, cmp.Or(f.given.VocabSize, f.vocab)
	if !fresh && w.Equal(&f.reported) {
		return
	}
	f.reported = w
	if f.sink.Put(w) != nil {
		return // the sink has said so; it takes the worker itself when nothing stands against it any more
	}
	f.log.Info("worker taken in by its URL", "worker", w.ID, "address", w.Address, "role", w.Role, "model", w.Model, "engine", w.Engine,
		"block_size", w.BlockSize, "kv_blocks", w.TotalKVBlocks, "context", w.ContextLength, "kv_events", w.KVEvents)
	if noEvents != "" {
		f.log.Warn("the worker's KV events are not followed, its cache is predicted", "worker", w.ID, "reason", noEvents)
	}
}

// failed notes that the worker did not answer, or not well.
func (f *probe) failed(err error) {
	out := f.pulse.failed(errors.Is(err, syscall.ECONNREFUSED))
	_, answers := errors.AsType[*answerError](err)
	switch {
	case answers && !f.pulse.in:
		f.reported = pools.Worker{}
		f.sink.Refuse(f.given, err)
	case out:
		f.log.Warn("worker taken out: it does not answer", "worker", f.given.ID, "address", f.given.Address, "failures", f.pulse.failures, "error", err)
		f.reported = pools.Worker{}
		f.sink.Remove(f.given.ID)
		f.complained = true
	case !f.complained:
		f.log.Warn("worker does not answer; it is asked on", "worker", f.given.ID, "address", f.given.Address, "error", err)
		f.complained = true
	}
}

// pause is the time to the next question: after a failure short at first, so that a dead worker is soon out and one
// that starts is soon in.
func (f *probe) pause() time.Duration {
	every := f.cfg.Every
	switch n := f.pulse.failures; {
	case n == 0:
		return every - time.Duration(f.rng.Int64N(int64(every)/10+1))
	case f.pulse.in:
		return backoff.Backoff{Min: every / 5, Max: every}.Delay(n-1, f.rng)
	default:
		return backoff.Backoff{Min: every / 25, Max: every}.Delay(n-1, f.rng)
	}
}
