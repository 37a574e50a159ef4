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

// A starting Subscriber requests views from the other gateways before it turns to workers. A view has the number of its
// last message. From there the source continues as after a lost connection: newer messages come from the worker's ring,
// and numbers reveal a restarted worker.

// Group is the gateways that follow the same workers.
type Group struct {
	Bus wire.Bus
	// Join waits, bounded, until the others are known. It returns this gateway's name, the subject at which it serves
	// its views, and those of the others. It returns early when ctx ends.
	Join func(ctx context.Context) (name, own string, others []string)
}

// Bounds of a restore.
const (
	// restoreWindow is how long after the start newly tracked sources are restored from other gateways.
	restoreWindow = 30 * time.Second
	// restoreTimeout bounds the restore of one source over all gateways.
	restoreTimeout = 10 * time.Second
	// maxRestoreBytes bounds one source's view: more than two million blocks.
	maxRestoreBytes = 64 << 20
)

// peers are the gateways that can serve views.
type peers struct {
	group *Group
	until time.Time // later tracked sources are not restored
	known bool      // the others are; Run's own
	name  string    // this gateway's, once known; Run's own

	mu     sync.Mutex // guards others
	others []string
}

// mayRestore reports whether a source tracked now is to be restored.
func (p *peers) mayRestore(now time.Time) bool {
	return p.group != nil && (!p.known || now.Before(p.until) && p.any())
}

// joined is the result of [Group.Join].
type joined struct {
	name   string
	others []string
}

// join sets the others' subjects.
func (p *peers) join(j joined, now time.Time) {
	p.known, p.until, p.name = true, now.Add(restoreWindow), j.name
	p.mu.Lock()
	p.others = j.others
	p.mu.Unlock()
}

// any reports whether a gateway can serve views, now or once the others are known.
func (p *peers) any() bool { return !p.known || len(p.list()) > 0 }

func (p *peers) list() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.others
}

// strike stops requests to a gateway.
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

// join passes the others to the loop, and serves them.
func (s *Subscriber) join(ctx context.Context) {
	if s.cfg.Group == nil {
		return
	}
	s.fetches.Go(func() {
		name, own, others := s.cfg.Group.Join(ctx)
		if own != "" {
			stop, err := s.cfg.Group.Bus.Subscribe(own, (&server{sub: s, ctx: ctx, name: name}).reply,
				func(int) {}) // without an answer, the other requests from the worker
			if err != nil {
				s.log.Warn("views are not offered to other gateways", "error", err)
			} else {
				defer stop()
			}
		}
		select {
		case s.joined <- joined{name, others}:
		case <-ctx.Done():
			return
		}
		<-ctx.Done()
	})
}

// restore requests a source's view from one gateway after another. It returns a follower's request.
func (s *Subscriber) restore(f follower) func(context.Context) func(time.Time) {
	is := f.base()
	others, what := s.peers.list(), is.question(s.peers.name)
	from := fetcher{s.cfg.Group.Bus, s.cfg.PageTimeout, min(maxRestoreBytes, s.cfg.MaxSnapshotBytes), is.log}
	return func(ctx context.Context) func(time.Time) {
		limited, cancel := context.WithTimeout(ctx, restoreTimeout)
		defer cancel()
		var got *restored
		for i := range others {
			// Each source starts with another gateway, to spread the load.
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

// resume implements follower. It copies nothing of a publisher that is another process by now.
func (p *natsSource) resume(from *restored, _ time.Time) bool {
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
	p.updateState()
	return true
}

func (p *natsSource) stand() (at standing, ok bool) {
	return standing{Epoch: p.flow.epoch, Seq: p.flow.seq, At: p.at}, State(p.state.Load()) == Live
}

// resume implements follower. The replay that follows shows whether both gateways followed the same engine. Without a
// replay the next messages do; messages meanwhile were held.
func (e *zmqSource) resume(from *restored, now time.Time) bool {
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
	e.updateState()
	return fits
}

func (e *zmqSource) stand() (at standing, ok bool) {
	return standing{Seq: e.flow.seq, Sum: e.sum, Guess: e.guess, FromZero: e.fromZero}, State(e.state.Load()) == Live && e.resumed == 0
}

// before reports whether a message is in a copied view. A number far below the view's, or another payload at its
// number, is from a restarted engine: the view is emptied and the message counts.
func (e *zmqSource) before(n uint64, payload []byte) bool {
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

// restored is another gateway's state of a source.
type restored struct {
	standing
	view view.ReadableCopy
}
