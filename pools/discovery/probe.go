package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/pools"
)

// probe looks after one worker.
type probe struct {
	*Prober
	listed pools.Worker
	pulse  pulse
	rng    *rand.Rand
	cancel context.CancelFunc
	done   chan struct{} // closed when run has ended

	suspected chan time.Time // holds at most one: since when
	ended     chan struct{}  // holds at most one
	due       chan struct{}  // holds at most one

	looks chan look          // what the look in the background found; nil while there is none
	stop  context.CancelFunc // of that look

	beats       int
	incarnation string
	began       time.Time    // when it was drawn
	facts       facts        // the latest
	vocab       int          // of the process queried for it, which may not report it; 0 unknown
	reported    pools.Worker // to the sink
	complained  bool         // a warning about the worker is logged
}

func (f *probe) run(ctx context.Context) {
	if f.listed.Model != "" && !f.cfg.AskFirst {
		f.pulse.in = true // before it has reported anything
		f.publish(facts{}, true)
	}
	defer f.endLook()
	for {
		f.beat(ctx)
		if !f.await(ctx) {
			return
		}
	}
}

// await waits until the next beat is due; false is the end of ctx.
func (f *probe) await(ctx context.Context) bool {
	due := time.After(f.pause())
	for {
		select {
		case <-ctx.Done():
			return false
		case since := <-f.suspected:
			if !f.began.After(since) { // else it was reported as another since
				f.endLook()
				f.pulse.suspect()
			}
			return true
		case <-f.ended:
			f.confirm(ctx)
			return true
		case l := <-f.looks:
			f.looks = nil
			f.stop()
			f.heed(ctx, true, l.facts, l.err)
			due = time.After(f.pause())
		case <-f.due:
			return true
		case <-due:
			return true
		}
	}
}

// suspect makes run query the worker soon. Of several pending times the latest counts. Only the Prober's Run calls it.
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

// notify puts what c lacks into c.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// aliveWithin is how soon a worker that may have ended must answer.
const aliveWithin = 500 * time.Millisecond

// confirm suspends a worker that may have ended until it answers, and removes it if it does not: a crashed SGLang
// accepts connections for 5 s and answers nothing (srt/managers/tokenizer_manager.py, "before crash diagnostics").
func (f *probe) confirm(ctx context.Context) {
	if !f.pulse.in {
		return
	}
	f.endLook()
	f.sink.Suspend(f.listed.ID, true)
	soon := *f.asker
	soon.timeout = min(soon.timeout, aliveWithin)
	_, err := soon.alive(ctx, f.listed.Address, f.engine(), true)
	switch {
	case ctx.Err() != nil:
	case err == nil || unasked(err):
		f.sink.Suspend(f.listed.ID, false)
	default:
		f.failed(err, true)
	}
}

// askAgain is after how many health checks a worker is queried in full over a new connection: its name may have moved
// to another address while the old one still answers.
const askAgain = 12

// generatesEvery is how often an SGLang must generate a token: nothing else detects a hung scheduler.
const generatesEvery = 10 * time.Second

// engine is the worker's, empty unknown.
func (f *probe) engine() string { return cmp.Or(f.listed.Engine, f.facts.engine) }

// look is what a worker answered in the background.
type look struct {
	facts facts
	err   error
}

// startLook asks the worker everything in the background, unless it is asked already.
func (f *probe) startLook(ctx context.Context) {
	if f.looks != nil {
		return
	}
	ctx, f.stop = context.WithCancel(ctx)
	looks, listed, engine := make(chan look, 1), f.listed, f.engine()
	f.looks = looks
	go func() {
		facts, err := f.asker.all(ctx, &listed, engine, true)
		looks <- look{facts, err}
	}()
}

// endLook ends the look in the background and waits for its end.
func (f *probe) endLook() {
	if f.looks != nil {
		f.stop()
		<-f.looks
		f.looks = nil
	}
}

// beat queries the worker once and reports the result. A busy SGLang answers some queries only between two forward
// passes: those run in the background, with liveness checks meanwhile.
func (f *probe) beat(ctx context.Context) {
	var reported facts
	f.beats++
	slow, every := f.pulse.in && f.engine() == "sglang", askAgain
	if slow {
		every = max(1, int(generatesEvery/f.cfg.Every))
	}
	full, err := !f.pulse.steady() || f.beats%every == 0, error(nil)
	if !full || slow {
		var fresh bool
		fresh, err = f.asker.alive(ctx, f.listed.Address, f.engine(), f.beats%every == every-1)
		full = full || fresh
	}
	switch {
	case err != nil:
	case full && slow:
		f.startLook(ctx)
		full = false
	case full:
		reported, err = f.asker.all(ctx, &f.listed, f.engine(), false)
	default: // adapters come and go without any other sign
		now := f.facts
		if now.adapters = f.asker.adapters(ctx, &f.listed, now); now.adapters != f.facts.adapters && ctx.Err() == nil {
			f.log.Info("adapters of a worker changed", "worker", f.listed.ID, "adapters", strings.Split(now.adapters, "\n"))
			f.publish(now, false)
		}
	}
	f.heed(ctx, full, reported, err)
}

// heed reports the result of an answer: full of everything, else of liveness; or of its absence.
func (f *probe) heed(ctx context.Context, full bool, reported facts, err error) {
	if errors.Is(err, errGateway) {
		err = &answerError{Worker: f.listed.ID, Address: f.listed.Address, Problem: errGateway.Error()}
		f.pulse.in = false // it never was a worker
	}
	if f.generates(err) {
		full, err = false, nil
	}
	if ctx.Err() == nil && f.cfg.OnBeat != nil {
		f.cfg.OnBeat(f.listed.ID, err)
	}
	switch {
	case ctx.Err() != nil:
	case unasked(err):
		if !f.complained {
			f.complained = true
			f.log.Warn("worker not probed: this machine cannot connect; the worker's state is kept", "worker", f.listed.ID,
				"address", f.listed.Address, "error", err)
		}
	case err != nil:
		unwell, answered := errors.AsType[*statusError](err)
		f.failed(err, answered && f.engine() == "sglang" && unwell.path == "/health") // it has waited for 20 s by then
	default:
		f.responds(f.listed.ID, true)
		if f.complained {
			f.complained = false
			f.log.Info("worker responding", "worker", f.listed.ID, "address", f.listed.Address)
		}
		if !full {
			f.pulse.alive()
			break
		}
		if reported.engine == "sglang" && (f.vocab == 0 || reported.born != f.facts.born) {
			f.vocab = f.asker.vocabulary(ctx, f.listed.Address)
		}
		f.publish(reported, f.pulse.answered(reported))
	}
}

// generates reports whether a worker that was too slow to answer still generates: under load an engine's HTTP server
// takes seconds for anything else. A received answer or a closed port is no excuse.
func (f *probe) generates(err error) bool {
	return f.pulse.in && f.cfg.Latest != nil && errors.Is(err, context.DeadlineExceeded) && time.Since(f.cfg.Latest(f.listed.ID)) < time.Second
}

// unasked reports whether this machine could not even connect, which does not blame the worker. A name that does not
// exist does: that is how a worker in a cluster ends.
func unasked(err error) bool {
	resolver, ok := errors.AsType[*net.DNSError](err)
	return http1.LocalFailure(err) && !(ok && resolver.IsNotFound)
}

// draw returns a new incarnation: the configured one first, and for later processes that with a number.
func (f *probe) draw() string {
	switch {
	case f.listed.Incarnation == "":
		return fmt.Sprintf("%016x", f.rng.Uint64())
	case f.incarnation == "":
		return f.listed.Incarnation
	}
	return fmt.Sprintf("%s-%08x", f.listed.Incarnation, f.rng.Uint32())
}

// publish puts the worker into the sink, if that is news.
func (f *probe) publish(reported facts, fresh bool) {
	if fresh {
		f.incarnation, f.began = f.draw(), time.Now()
	}
	f.facts = reported
	w, noEvents := reported.record(f.listed, f.cfg.BlockSize)
	w.Incarnation, w.VocabSize = f.incarnation, cmp.Or(f.listed.VocabSize, f.vocab)
	if !fresh && w.Equal(&f.reported) {
		return
	}
	f.reported = w
	if f.sink.Put(w) != nil {
		return // the sink has logged it, and admits the worker later by itself
	}
	f.log.Info("worker added by URL", "worker", w.ID, "address", w.Address, "role", w.Role, "model", w.Model, "engine", w.Engine,
		"block_size", w.BlockSize, "kv_blocks", w.TotalKVBlocks, "context", w.ContextLength, "kv_events", w.KVEvents)
	if noEvents != "" {
		f.log.Warn("KV events not followed; predicting the worker's cache", "worker", w.ID, "reason", noEvents)
	}
}

// failed notes that the worker did not answer, or not well; certain takes it out at once.
func (f *probe) failed(err error, certain bool) {
	f.responds(f.listed.ID, false)
	out := f.pulse.failed(errors.Is(err, syscall.ECONNREFUSED), certain)
	_, answers := errors.AsType[*answerError](err)
	switch {
	case answers && !f.pulse.in:
		f.reported = pools.Worker{}
		f.sink.Refuse(f.listed, err)
	case out:
		f.log.Warn("worker removed: not responding", "worker", f.listed.ID, "address", f.listed.Address,
			"failures", f.pulse.failures, "error", err)
		f.endLook()
		w := f.reported
		if f.reported = (pools.Worker{}); w.ID == "" {
			w = f.listed
		}
		f.sink.Lose(w)
		f.complained = true
	case !f.complained:
		if !f.pulse.in {
			f.sink.Lose(f.listed)
		}
		f.log.Warn("worker not responding; still probing", "worker", f.listed.ID, "address", f.listed.Address, "error", err)
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
		return guard.Backoff{Min: every / 5, Max: every}.Delay(n-1, f.rng)
	default:
		return guard.Backoff{Min: every / 25, Max: every}.Delay(n-1, f.rng)
	}
}
