package follow

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/kv/zmq"
)

// A Subscriber that starts asks the other gateways of its group for their views before it asks workers. A view comes with
// the number of the last message in it, and from there on the source is followed as after a lost connection: what the
// worker sent since is asked of its ring, and a worker that is another process by now is found by its numbers.

// Group is the gateways that follow the same workers, over a bus of theirs.
type Group struct {
	Bus wire.Bus
	// Join waits until the others are known, for a bounded time, and returns the subject at which this gateway is asked for
	// its views, and those of the others. It returns early when ctx ends.
	Join func(ctx context.Context) (own string, others []string)
}

// Bounds of a restore.
const (
	// restoreWindow is how long after the start the other gateways are asked for sources that are tracked meanwhile.
	restoreWindow = 30 * time.Second
	// restoreTimeout is how long one source may take, of all gateways together.
	restoreTimeout = 10 * time.Second
	// maxRestoreBytes bounds one source's view: more than two million blocks.
	maxRestoreBytes = 64 << 20
)

// peers are the gateways that can be asked.
type peers struct {
	group *Group
	until time.Time // sources that are tracked later are not restored
	known bool      // others are; Run's own

	mu     sync.Mutex // guards others
	others []string
}

func newPeers(g *Group) *peers { return &peers{group: g} }

// mayRestore reports whether a source that is tracked now is to be restored.
func (p *peers) mayRestore(now time.Time) bool {
	return p.group != nil && (!p.known || now.Before(p.until) && p.any())
}

// know notes who the others are.
func (p *peers) know(others []string, now time.Time) {
	p.known, p.until = true, now.Add(restoreWindow)
	p.mu.Lock()
	p.others = others
	p.mu.Unlock()
}

// any reports whether any gateway may be asked, now or once the others are known.
func (p *peers) any() bool { return !p.known || len(p.list()) > 0 }

func (p *peers) list() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.others
}

// strike asks a gateway no more.
func (p *peers) strike(subject string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := make([]string, 0, len(p.others))
	for _, other := range p.others {
		if other != subject {
			kept = append(kept, other)
		}
	}
	p.others = kept
}

// join has the loop know the others, and answers them.
func (s *Subscriber) join(ctx context.Context) {
	if s.cfg.Group == nil {
		return
	}
	s.fetches.Go(func() {
		own, others := s.cfg.Group.Join(ctx)
		if own != "" {
			stop, err := s.cfg.Group.Bus.Subscribe(own, newServer(ctx, s).reply, func(int) {}) // who gets no answer asks the worker
			if err != nil {
				s.log.Warn("views are not offered to other gateways", "error", err)
			} else {
				defer stop()
			}
		}
		select {
		case s.joined <- others:
		case <-ctx.Done():
			return
		}
		<-ctx.Done()
	})
}

// restore asks one gateway after another for its view of a source. What it returns is a follower's request.
func (s *Subscriber) restore(f follower) func(context.Context) func(time.Time) {
	is := f.base()
	others, what := s.peers.list(), is.question()
	from := fetcher{s.cfg.Group.Bus, s.cfg.PageTimeout, min(maxRestoreBytes, s.cfg.MaxSnapshotBytes), is.log}
	return func(ctx context.Context) func(time.Time) {
		limited, cancel := context.WithTimeout(ctx, restoreTimeout)
		defer cancel()
		var got *restored
		for i := range others {
			// Each source begins with another of them, so that they share the work.
			other := others[(i+int(xxh3.HashString(is.name.Worker)%uint64(len(others))))%len(others)]
			snapshot, err := from.snapshot(limited, other, what, nil)
			if err == nil {
				got, err = readRestored(snapshot, is.how)
			}
			if err == nil {
				break
			}
			if got = nil; limited.Err() != nil {
				break
			}
			if !errors.Is(err, errNone) {
				s.peers.strike(other)
				is.log.Warn("view of another gateway cannot be restored; not requested again", "source", is.name, "asked", other, "error", err)
			}
		}
		return func(now time.Time) {
			is.restoring = false
			if f.resume(got, now) {
				is.retry(now)
				is.repaired(ByPeer)
				is.log.Debug("view restored from another gateway", "source", is.name, "seq", is.flow.seq, "blocks", is.view.Blocks())
			}
		}
	}
}

// resume implements follower. Of a publisher that is another process by now nothing is taken over.
func (p *published) resume(from *restored, _ time.Time) bool {
	if from == nil || from.Epoch == 0 || p.flow.seq != 0 || p.flow.epoch != 0 && p.flow.epoch != from.Epoch || !p.view.Restore(from.view) {
		return false
	}
	if p.flow.epoch == 0 {
		p.flow.begin(from.Epoch)
	}
	p.reached(from.Epoch, from.At)
	p.flow.move(from.Seq)
	if p.catchUp(); p.stale {
		p.wantResync()
	}
	p.publish()
	return true
}

func (p *published) stand() (at standing, ok bool) {
	return standing{Epoch: p.flow.epoch, Seq: p.flow.seq, At: p.at}, State(p.state.Load()) == Live
}

// resume implements follower. The replay that follows shows whether the engine is the one that the other gateway
// followed. Without a replay its next messages do; those that came meanwhile were held.
func (e *engine) resume(from *restored, now time.Time) bool {
	fits := from != nil && from.Seq > 0 && e.connected && e.flow.seq == 0 && !e.lost.open && e.view.Restore(from.view)
	if fits {
		e.flow.move(from.Seq)
		e.sum, e.guess, e.fromZero = from.Sum, from.Guess, from.FromZero
	}
	if e.alone() {
		if fits {
			e.resumed = from.Seq
		}
		held := e.flow.held
		e.flow.forget()
		e.highest = 0
		for _, m := range held {
			e.live(zmq.Message{Seq: m.seq - 1, Payload: m.payload}, now)
		}
	}
	e.publish()
	return fits
}

func (e *engine) stand() (at standing, ok bool) {
	return standing{Seq: e.flow.seq, Sum: e.sum, Guess: e.guess, FromZero: e.fromZero}, State(e.state.Load()) == Live && e.resumed == 0
}

// before reports whether a message is in a view that was taken over. One far below the view's number, or another one of
// the very number, is of an engine that started again meanwhile: the view begins empty, and the message counts.
func (e *engine) before(n uint64, payload []byte) bool {
	switch {
	case n > e.resumed:
		e.resumed = 0
		return false
	case n == e.resumed && xxh3.Hash(payload) == e.sum:
		e.resumed = 0
	case n == e.resumed, e.resumed-n > beatSlack:
		e.restart()
		e.highest = n
		return false
	}
	e.count.verdicts[stale].Inc()
	return true
}

// restored is what another gateway has of a source.
type restored struct {
	standing
	view view.ReadableCopy
}
