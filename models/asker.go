package models

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
)

// Outcomes of asking an engine for a prompt's tokens; a metric's label.
const (
	askAnswered  = "answered"
	askRemember  = "remembered" // asked before
	askRefused   = "refused"    // the engine will refuse the request as well
	askFailed    = "failed"
	askTimeout   = "timeout"
	askSaturated = "saturated" // too many are being asked
	askNone      = "no_worker" // none may be asked
)

var askOutcomes = []string{askAnswered, askRemember, askRefused, askFailed, askTimeout, askSaturated, askNone}

// Bounds of the queries.
const (
	asksAtOnce  = 64      // calls in flight
	maxAskBytes = 8 << 20 // of a body to ask about
	askTries    = 2       // workers that one prompt asks
	firstPause  = time.Second
	longPause   = 10 * time.Minute // of an engine that has no such endpoint
	maxPauses   = 4096
)

// asker requests the tokens of prompts from engines. An engine that does not answer costs its requests the time limit,
// and then nothing while it is paused.
type asker struct {
	transport http1.Transport
	timeout   time.Duration
	slots     chan struct{}

	mu     sync.Mutex // guards all below
	turn   uint64
	calls  map[askKey]*asking
	known  remembered
	paused map[incarnation]pause
}

// incarnation is one life of a worker.
type incarnation struct{ worker, life string }

// pause is until when a worker is not queried, and its consecutive failures.
type pause struct {
	until time.Time
	fails int
}

// asking is one question on its way; several requests may wait for its answer.
type asking struct {
	done    chan struct{}
	ids     []uint32
	life    incarnation // whose they are
	outcome string
}

func newAsker(t http1.Transport, timeout time.Duration, cacheBytes int64) *asker {
	return &asker{
		transport: t, timeout: timeout, slots: make(chan struct{}, asksAtOnce), calls: map[askKey]*asking{},
		known: remembered{limit: cacheBytes}, paused: map[incarnation]pause{},
	}
}

// ask returns the tokens that an engine makes of the request; nil with the reason where none answers.
func (a *asker) ask(ctx context.Context, q question, members []pools.Member) (ids []uint32, outcome string) {
	key := q.key()
	a.mu.Lock()
	if known, ok := a.known.get(key); ok {
		for i := range members {
			if lifeOf(members[i].Worker) == known.life {
				a.mu.Unlock()
				return known.ids, askRemember
			}
		}
		a.known.drop(known) // the process that made them has ended; another may have another template
	}
	call, under := a.calls[key]
	if !under {
		select {
		case a.slots <- struct{}{}:
			if !q.take() {
				<-a.slots
				a.mu.Unlock()
				return nil, askSaturated
			}
		default:
			a.mu.Unlock()
			return nil, askSaturated
		}
		call = &asking{done: make(chan struct{}), outcome: askFailed}
		a.calls[key] = call
	}
	a.mu.Unlock()
	if under {
		select {
		case <-call.done:
		case <-ctx.Done():
			return nil, askTimeout
		}
		return call.ids, call.outcome
	}
	defer func() {
		q.give()
		a.mu.Lock()
		delete(a.calls, key)
		if call.ids != nil {
			if known := a.known.put(key, call.ids, nil); known != nil {
				known.life = call.life
			}
		}
		a.mu.Unlock()
		<-a.slots
		close(call.done)
	}()
	// Others may wait for the answer: it is awaited though this request's client leaves, within the time limit.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.timeout)
	defer cancel()
	call.ids, call.life, call.outcome = a.call(ctx, q, members)
	return call.ids, call.outcome
}

// call tries one worker after another.
func (a *asker) call(ctx context.Context, q question, members []pools.Member) (ids []uint32, life incarnation, outcome string) {
	outcome = askNone
	for range askTries {
		w := a.choose(members)
		if w == nil {
			return nil, life, outcome
		}
		ids, status, err := a.one(ctx, q, w)
		switch {
		case err == nil && status == http.StatusOK:
			a.settle(w, 0)
			return ids, lifeOf(w), askAnswered
		case err == nil && (status == http.StatusBadRequest || status == http.StatusUnprocessableEntity):
			a.settle(w, 0)
			return nil, life, askRefused
		}
		a.settle(w, status)
		if outcome = askFailed; ctx.Err() != nil {
			return nil, life, askTimeout
		}
	}
	return nil, life, outcome
}

// choose takes turns among the workers that may be asked.
func (a *asker) choose(members []pools.Member) *pools.Worker {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turn++
	for i := range members {
		m := &members[(a.turn+uint64(i))%uint64(len(members))]
		if m.Eligible(now) && !a.paused[lifeOf(m.Worker)].until.After(now) {
			return m.Worker
		}
	}
	return nil
}

func lifeOf(w *pools.Worker) incarnation { return incarnation{w.ID, w.Incarnation} }

// settle notes what came of a call: a worker that failed is left alone, twice as long after each failure, and long
// where it has no such endpoint. status is 0 for a call that went well, and below 0 for one without an answer.
func (a *asker) settle(w *pools.Worker, status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	life := lifeOf(w)
	if status == 0 {
		delete(a.paused, life)
		return
	}
	if len(a.paused) >= maxPauses { // lives that are over
		clear(a.paused)
	}
	p := a.paused[life]
	wait := firstPause << min(p.fails, 6)
	if status == http.StatusNotFound || status == http.StatusMethodNotAllowed || status == http.StatusNotImplemented {
		wait = longPause
	}
	a.paused[life] = pause{time.Now().Add(wait), p.fails + 1}
}

// one queries one worker. The status is below 0 without an answer.
func (a *asker) one(ctx context.Context, q question, w *pools.Worker) (ids []uint32, status int, err error) {
	body := q.body(w.Engine)
	stream, err := a.transport.Call(ctx, http1.Leg{
		Purpose: "tokenize", Worker: w.ID, Base: w.Address, Path: "/tokenize", RequestID: q.id, Rank: -1, Body: http1.Body{body},
	})
	if err != nil {
		return nil, -1, err
	}
	defer stream.Close()
	if status = stream.Status(); status != http.StatusOK {
		return nil, status, nil
	}
	most := int64(answerBytes*len(body) + 64<<10)
	answer, err := io.ReadAll(io.LimitReader(stream, most+1))
	if err != nil {
		return nil, -1, err
	}
	var reply struct {
		Count  *int     `json:"count"`
		Tokens []uint32 `json:"tokens"`
	}
	if int64(len(answer)) > most {
		return nil, -1, fmt.Errorf("the answer is longer than %d bytes", most)
	}
	if err := json.Unmarshal(answer, &reply); err != nil {
		return nil, -1, err
	}
	if len(reply.Tokens) == 0 || reply.Count != nil && *reply.Count != len(reply.Tokens) {
		return nil, -1, fmt.Errorf("%d tokens", len(reply.Tokens))
	}
	return reply.Tokens, http.StatusOK, nil
}

// answerBytes is how long an answer may be for each byte of the question: a token takes a byte at least, and ten digits and a comma
// at most.
const answerBytes = 12

// cost is what an answer and its tokens may take, which move as they grow; 0 for a short question.
func (q *question) cost() int {
	if q.req.Memory == nil || len(q.req.Raw) <= freeBytes {
		return 0
	}
	return 3 * answerBytes * len(q.req.Raw)
}

// take takes the memory that the question may need, and give gives it back.
func (q *question) take() bool { return q.cost() == 0 || q.req.Memory.Take(q.cost()) }

func (q *question) give() {
	if n := q.cost(); n > 0 {
		q.req.Memory.Give(n)
	}
}

// asks reports whether engines like this are asked for tokens of a request like this: they have /tokenize, and it is
// about text.
func asks(engine string, req *openai.Request) bool {
	return (engine == "vllm" || engine == "sglang" || engine == "sim") && !req.HasMedia() && len(req.Raw) <= maxAskBytes &&
		(req.Prompt.Kind == openai.PromptText || req.Prompt.Kind == openai.PromptMessages) && !given(req, "chat_template")
}
