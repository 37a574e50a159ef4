package discovery

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/pools"
)

// ProberConfig is how a [Prober] works. The zero value of each field means its default.
type ProberConfig struct {
	// Every is how often each worker's health is asked for, by default 5 s.
	Every time.Duration
	// Timeout is how long one answer may take, by default 3/5 of Every and at least 100 ms.
	Timeout time.Duration
	// Failures in a row take a worker out, by default 3.
	Failures int
	// BlockSize in tokens of a worker that does not report its own; by default [defaultBlockSize].
	BlockSize int
	// APIKey is sent to the workers as Authorization: Bearer; empty sends none.
	APIKey string
	// Trust is the certificates of connections to https workers; nil takes the system's authorities and shows none.
	Trust http1.Trust
	// Dial replaces the network, for tests in memory.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// AskFirst reports no worker before it has answered, even if its model is configured.
	AskFirst bool
	// OnBeat runs after each query with the worker's id and the error, nil for none. It must not block.
	OnBeat func(id string, err error)
	// Latest returns when a worker last generated a token: one within a second is health, however long /health takes.
	// It may be nil.
	Latest func(id string) time.Time
	// Seed of pauses and incarnations.
	Seed uint64
}

// Prober finds workers that do not register: it queries each until it answers, reports it to the sink, and keeps
// checking it. A worker with a configured model is reported at once, with defaults for the rest.
type Prober struct {
	sink  Sink
	cfg   ProberConfig
	log   *slog.Logger
	asker *asker
	kick  chan struct{} // holds at most one: the list changed
	doubt chan suspicion

	mu         sync.Mutex // guards all below
	wanted     []Endpoint
	responding map[string]bool // ids of those whose last answer was good
}

// NewProber returns a Prober that reports to sink.
func NewProber(sink Sink, cfg ProberConfig, log *slog.Logger) *Prober {
	cfg.Every = cmp.Or(cfg.Every, 5*time.Second)
	cfg.Timeout = cmp.Or(cfg.Timeout, max(cfg.Every*3/5, 100*time.Millisecond))
	cfg.Failures = cmp.Or(cfg.Failures, 3)
	return &Prober{sink: sink, cfg: cfg, log: log, asker: newAsker(cfg.APIKey, cfg.Timeout, cfg.Trust, cfg.Dial),
		kick: make(chan struct{}, 1), doubt: make(chan suspicion, 256), responding: map[string]bool{}}
}

// suspicion is that a worker may be another process than at some time, that it has ended, or that it has other adapters.
type suspicion struct {
	id    string
	since time.Time
	ended bool
	look  bool // only that its record may be out of date
}

// Suspect notes that another process may have replaced a worker since then. The worker is queried at once and reported
// as another incarnation, unless that has happened since. The zero time is now. It does not block.
func (p *Prober) Suspect(id string, since time.Time) {
	if since.IsZero() {
		since = time.Now()
	}
	p.put(suspicion{id: id, since: since})
}

// Ended notes that a worker closed a connection as an ending process does. It gets no new requests unless it answers
// soon. It does not block.
func (p *Prober) Ended(id string) { p.put(suspicion{id: id, ended: true}) }

// Look queries a worker's adapters at once. It does not block.
func (p *Prober) Look(id string) { p.put(suspicion{id: id, look: true}) }

func (p *Prober) put(s suspicion) {
	select {
	case p.doubt <- s:
	default: // so many are asked about already that one more look is not worth a wait
	}
}

// Set replaces the list of workers: those that are no longer in it go at once. Those whose entry has changed are
// probed again; the others stay as they are.
func (p *Prober) Set(es []Endpoint) {
	p.mu.Lock()
	p.wanted = es
	p.mu.Unlock()
	select {
	case p.kick <- struct{}{}:
	default: // Run is notified already and has not looked yet
	}
}

// Wanted is how many workers the list has.
func (p *Prober) Wanted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.wanted)
}

// Responds reports whether a worker of the list has answered and does so still. One whose model is configured is reported before that.
func (p *Prober) Responds(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.responding[id]
}

func (p *Prober) responds(id string, well bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !well {
		delete(p.responding, id)
		return
	}
	p.responding[id] = true
}

// Run looks after the workers until ctx ends, when it returns nil and leaves them in the sink. It may be called once.
func (p *Prober) Run(ctx context.Context) error {
	defer p.asker.client.CloseIdleConnections()
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
			now[e.Worker.ID] = e
		}
		for id, f := range followed {
			if e, still := now[id]; !still || !e.Worker.Equal(&f.listed) {
				f.cancel()
				<-f.done
				p.responds(id, false)
				p.sink.Remove(id)
				delete(followed, id)
			}
		}
		for _, e := range wanted {
			if id := e.Worker.ID; followed[id] == nil {
				f := p.probe(e.Worker, begun)
				begun++
				followed[id] = f
				ctx, cancel := context.WithCancel(ctx)
				f.cancel = cancel
				running.Go(func() {
					defer cancel()
					defer close(f.done)
					_ = guard.Run(ctx, p.log, "probe", func(ctx context.Context) error { f.run(ctx); return nil })
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
				switch f := followed[s.id]; {
				case f == nil:
				case s.ended:
					notify(f.ended)
				case s.look:
					notify(f.due)
				default:
					f.suspect(s.since)
				}
			}
		}
	}
}

// probe makes the nth probe of this Prober: no two draw the same incarnations.
func (p *Prober) probe(listed pools.Worker, nth uint64) *probe {
	return &probe{
		Prober: p, listed: listed, pulse: pulse{limit: p.cfg.Failures}, done: make(chan struct{}),
		suspected: make(chan time.Time, 1), ended: make(chan struct{}, 1),
		due: make(chan struct{}, 1),
		rng: rand.New(rand.NewPCG(p.cfg.Seed, nth)),
	}
}
