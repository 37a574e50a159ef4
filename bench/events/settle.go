package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/lab/replay"
)

// errWrong is an index that is not what the engines hold.
var errWrong = errors.New("the index is not what the engines hold")

// end lets nothing go wrong any more, waits until the index is what the engines hold, repairs by a restart or by clearing
// those that cannot be known otherwise, and compares all once more.
func (s *session) end(ctx context.Context) error {
	if err := s.calm(); err != nil {
		return err
	}
	began := time.Now()
	if err := s.speakAgain(); err != nil {
		return err
	}
	if err := s.settled(ctx); err != nil {
		return err
	}
	s.result.Settled = time.Since(began)
	if err := s.repair(ctx); err != nil {
		return err
	}
	// Once more, all at rest: what was exact has not been undone by a straggler.
	return s.final()
}

// calm ends all disturbances and sends the messages kept back.
func (s *session) calm() error {
	if s.cfg.deaf {
		return nil
	}
	s.on.Store(false)
	s.bus.gate.open()
	for _, l := range s.links {
		switch l := l.(type) {
		case *overNATS:
			if err := errors.Join(l.bus.settle(), l.conn.Flush()); err != nil {
				return err
			}
		case *overZMQ:
			l.stall.open()
			l.live.refuse(false)
		}
	}
	return s.heard.Flush()
}

// speakAgain has the engines without a replay socket say something: that their last message was lost shows by nothing
// but the next.
func (s *session) speakAgain() error {
	for i, l := range s.links {
		if z, overZ := l.(*overZMQ); overZ && !z.replays {
			if err := s.compute(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// settled waits until every engine's last message is in its view and the view is exact. Those that are predicted for
// good are to show nothing that is not true.
func (s *session) settled(ctx context.Context) error {
	waits := ""
	err := until(ctx, s.cfg.settle, "the index is what the engines hold", func() bool {
		waits = ""
		for i, l := range s.links {
			status := s.status(i)
			epoch, seq := l.last()
			d := s.compare(i)
			marked := status.State == follow.Predicted && poolOf(i) == zmqPool && d.Phantom == 0
			if status.Seq != seq || epoch != 0 && status.Epoch != epoch || !marked && (status.State != follow.Live || d.wrong() > 0) {
				waits += fmt.Sprintf("\n%s: %s at %d of %d, %d blocks missing and %d phantom of %d", name(i), status.State, status.Seq, seq,
					d.Missing, d.Phantom, d.True)
			}
		}
		return waits == ""
	})
	if errors.Is(err, errNever) {
		return fmt.Errorf("%w: %w%s", errWrong, err, waits)
	}
	return err
}

// repair resynchronises the engines that are predicted, one half by a new process and the other by clearing the cache, and has
// them compute something again.
func (s *session) repair(ctx context.Context) error {
	for i, l := range s.links {
		if s.status(i).State != follow.Predicted {
			continue
		}
		s.result.Predicted++
		m := s.stream.engines[i]
		if s.result.Predicted%2 == 0 {
			s.result.RepairedByRestart++
			if err := s.restart(i); err != nil {
				return err
			}
			z := l.(*overZMQ) // over NATS no engine is predicted here: settled saw to it
			if err := until(ctx, s.cfg.settle, name(i)+" is connected to again", func() bool { return z.pub.Subscribers() > 0 }); err != nil {
				return err
			}
		} else {
			s.result.RepairedByClearing++
			s.clear(m)
		}
		if err := s.compute(i); err != nil {
			return err
		}
	}
	if s.result.Predicted == 0 {
		return nil
	}
	if err := s.settled(ctx); err != nil {
		return err
	}
	for i := range s.links {
		if st := s.status(i); st.State != follow.Live {
			return fmt.Errorf("%w: %s is %s though it began again", errWrong, name(i), st.State)
		}
	}
	return nil
}

// compute has an engine serve a prompt that is new to it, to its end, with nothing else to do.
func (s *session) compute(i int) error {
	m := s.stream.engines[i]
	s.extra++
	r := replay.Request{
		Index: len(s.cfg.trace.Requests) + s.extra, OutputTokens: 2 * s.cfg.stream.Block,
		Spans: []replay.Span{{ID: chance(s.cfg.stream.Seed, uint64(s.extra), 14), Tokens: 8 * s.cfg.stream.Block}},
	}
	if err := s.stream.give(m, &r); err != nil {
		return err
	}
	if es := s.stream.run(m); len(es) > 0 {
		s.tell(m, es)
	}
	for !s.stream.done() {
		st, said, err := s.stream.next(1<<63 - 1)
		if err != nil {
			return err
		}
		if said {
			s.tell(st.engine, st.events)
		}
	}
	return nil
}

// final compares every engine's cache itself with the index.
func (s *session) final() error {
	for i, m := range s.stream.engines {
		really, err := truthOf(m.core)
		if err != nil {
			return err
		}
		if !really.equal(m.truth) {
			return fmt.Errorf("%s: the cache is not what its own events say: %d blocks and %d", name(i), len(really.held), len(m.truth.held))
		}
		d := s.compare(i)
		s.result.half(i).Final.True += d.True
		s.result.half(i).Final.Missing += d.Missing
		s.result.half(i).Final.Phantom += d.Phantom
	}
	if n := s.result.NATS.Final.wrong() + s.result.ZMQ.Final.wrong(); n > 0 {
		return fmt.Errorf("%w: %d pairs of a block and an engine at the end", errWrong, n)
	}
	return nil
}
