package handoff

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/router/placement"
)

// partsAtOnce bounds the parts of a request that are served at a time.
const partsAtOnce = 64

// errPart ends a request's other parts when one has failed. Their engines see a departed client.
var errPart = fmt.Errorf("another part of the request failed: %w", fault.ErrClientGone)

// choosesApart reports whether each of several answers needs a call of its own. That is so where all of the model's
// workers serve in pairs, since KV is handed over once. vLLM's NIXL frees it when the first reader has it
// (_get_new_notifs in 0.32's nixl/pull_worker.py). In SGLang all answers to a prompt would meet in one room
// (_handle_batch_request in 0.5.23's tokenizer_manager.py). Elsewhere one worker serves them all from one copy.
func (f *Flow) choosesApart(req *openai.Request) bool {
	if req.N < 2 || req.BeamSearch {
		return false
	}
	name := req.Model
	if all := f.rooms.Roster.Models(); name == "" && len(all) == 1 {
		name = all[0]
	}
	name, _ = f.rooms.Roster.Resolve(name)
	return placement.PairsOnly(f.rooms.Roster.Fleet(name))
}

// parts is a request that is served as several.
type parts struct {
	call   *Call
	out    Sink
	cancel context.CancelCauseFunc
	each   int // answers of each
	per    int // parts of each prompt

	mu       sync.Mutex // guards the following
	next     int
	merge    openai.Merge
	started  bool
	whole    [][]byte
	held     int // bytes of whole
	events   []byte
	err      error // why the first of them failed
	panicked any
}

// serveParts serves a request's prompts, and each answer where apart is set, by calls of their own. Their answers
// become one. The first failure ends all.
func (f *Flow) serveParts(ctx context.Context, call *Call, out Sink, apart bool) error {
	if e := call.Request.CheckParts(apart); e != nil {
		return e
	}
	p := &parts{call: call, out: out, each: call.Request.N, per: 1}
	if apart {
		p.each, p.per = 1, call.Request.N
	}
	p.merge.Answers, p.merge.Calls = p.each, p.per
	p.whole = make([][]byte, p.per*call.Request.Prompts())
	ctx, p.cancel = context.WithCancelCause(ctx)
	defer p.cancel(nil)
	var group sync.WaitGroup
	for range min(len(p.whole), partsAtOnce) {
		group.Go(func() {
			defer p.contain()
			for i := p.begin(); i >= 0; i = p.begin() {
				p.ended(f.servePart(ctx, p, i))
			}
		})
	}
	group.Wait()
	if p.held > 0 {
		defer call.Request.Memory.Give(p.held)
	}
	if p.panicked != nil {
		panic(p.panicked) // on the request's goroutine, which reports it
	}
	return p.end()
}

// begin returns the next part, below 0 for none.
func (p *parts) begin() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil || p.next == len(p.whole) {
		return -1
	}
	p.next++
	return p.next - 1
}

// ended records the end of a part.
func (p *parts) ended(err error) {
	if err == nil {
		return
	}
	p.mu.Lock()
	if p.err == nil {
		p.err = err
	}
	p.mu.Unlock()
	p.cancel(errPart)
}

// contain keeps a part's panic.
func (p *parts) contain() {
	if v := recover(); v != nil {
		p.ended(errPart)
		p.mu.Lock()
		p.panicked = v
		p.mu.Unlock()
	}
}

// servePart serves a part.
func (f *Flow) servePart(ctx context.Context, p *parts, i int) error {
	call := *p.call
	var err error
	if call.Request, err = p.call.Request.Part(i/p.per, p.each); err != nil {
		return err
	}
	if memory := call.Request.Memory; memory != nil {
		n := len(call.Request.Raw) + call.Request.Extra()
		if !memory.Take(n) {
			return openai.MemoryTaken()
		}
		defer memory.Give(n)
	}
	call.Body, call.Arrival = nil, time.Now()
	return f.serve(ctx, &call, &partSink{parts: p, part: i, split: openai.NewSplitter(math.MaxInt)})
}

// end ends the client's answer.
func (p *parts) end() error {
	stream := p.call.Request.Stream
	if p.err != nil {
		if answer := (*openai.Error)(nil); p.started && !p.merge.Failed && errors.As(p.err, &answer) {
			_ = p.out.Write(openai.AppendEvent(nil, answer.Append(nil, p.call.ID))) // the client may be gone
		}
		return p.err
	}
	var err error
	if stream {
		err = p.out.Last(p.merge.AppendEnd(nil))
	} else {
		p.out.Start("application/json")
		err = p.out.Write(p.merge.AppendWhole(nil, p.whole))
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", fault.ErrClientGone, err)
	}
	return err
}

// partSink is where a part's answer goes.
type partSink struct {
	*parts
	part  int
	split *openai.Splitter
}

// Start implements [Sink]. The client's answer starts with its first byte.
func (*partSink) Start(string) {}

// Write implements [Sink]. It waits while the client is slow, as do the other parts.
func (s *partSink) Write(b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil || s.merge.Failed:
		return errPart
	case !s.call.Request.Stream:
		return s.keep(b)
	}
	s.events = s.events[:0]
	s.split.Write(b)
	for {
		ev, ok := s.split.Next()
		if !ok {
			break
		}
		s.events = s.merge.AppendEvent(s.events, s.part, ev)
	}
	if len(s.events) == 0 {
		return nil
	}
	if !s.started {
		s.started = true
		s.out.Start(openai.EventStream)
	}
	return s.out.Write(s.events)
}

// keep holds a whole answer. The caller holds mu.
func (s *partSink) keep(b []byte) error {
	if memory := s.call.Request.Memory; memory != nil {
		if !memory.Take(len(b)) {
			s.err = openai.MemoryTaken()
			return errPart
		}
		s.held += len(b)
	}
	s.whole[s.part] = append(s.whole[s.part], b...)
	return nil
}

// Last implements [Sink].
func (s *partSink) Last(b []byte) error { return s.Write(b) }

// Polls implements [Sink]: the part's goroutine relays it.
func (*partSink) Polls() bool { return false }

// TryWrite implements [Sink].
func (s *partSink) TryWrite(b []byte) error { return s.Write(b) }

// TryFlush implements [Sink].
func (*partSink) TryFlush() error { return nil }

// OnWritable implements [Sink].
func (*partSink) OnWritable(func()) bool { return false }
