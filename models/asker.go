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

// Outcomes of a query to an engine's /tokenize; a metric label.
const (
	askAnswered  = "answered"
	askRemember  = "remembered" // cached
	askRefused   = "refused"    // the engine will refuse the request too
	askFailed    = "failed"
	askTimeout   = "timeout"
	askSaturated = "saturated" // too many queries in flight
	askNone      = "no_worker" // none can be queried
)

var askOutcomes = []string{askAnswered, askRemember, askRefused, askFailed, askTimeout, askSaturated, askNone}

// Bounds of the queries.
const (
	asksAtOnce  = 64      // calls in flight
	maxAskBytes = 8 << 20 // of the request's body
	askTries    = 2       // workers per prompt
	firstPause  = time.Second
	longPause   = 10 * time.Minute // of an engine that has no such endpoint
	maxPauses   = 4096
)

// asker queries engines for the tokens of prompts. An engine that fails is paused, so that it delays few requests.
type asker struct {
	transport http1.Transport
	timeout   time.Duration
	slots     chan struct{}

	mu     sync.Mutex // guards all below
	next   uint64
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

// asking is a query in flight; several requests may wait for it.
type asking struct {
	done    chan struct{}
	ids     []uint32
	life    incarnation // the process that returned them
	outcome string
}

func newAsker(t http1.Transport, timeout time.Duration, cacheBytes int64) *asker {
	return &asker{
		transport: t, timeout: timeout, slots: make(chan struct{}, asksAtOnce), calls: map[askKey]*asking{},
		known: remembered{limit: cacheBytes}, paused: map[incarnation]pause{},
	}
}

// ask returns an engine's tokens of the request, nil if none answers, and the outcome.
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
		a.known.drop(known) // its process has ended; a new one may have another template
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
	// Others may wait for the answer, so the query outlives this request's client.
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
			a.observe(w, 0)
			return ids, lifeOf(w), askAnswered
		case err == nil && (status == http.StatusBadRequest || status == http.StatusUnprocessableEntity):
			a.observe(w, 0)
			return nil, life, askRefused
		}
		a.observe(w, status)
		if outcome = askFailed; ctx.Err() != nil {
			return nil, life, askTimeout
		}
	}
	return nil, life, outcome
}

// choose returns the next worker to query, round robin; nil for none.
func (a *asker) choose(members []pools.Member) *pools.Worker {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next++
	for i := range members {
		m := &members[(a.next+uint64(i))%uint64(len(members))]
		if m.Eligible(now) && !a.paused[lifeOf(m.Worker)].until.After(now) {
			return m.Worker
		}
	}
	return nil
}

func lifeOf(w *pools.Worker) incarnation { return incarnation{w.ID, w.Incarnation} }

// observe records the result of a call: a failed worker is paused, twice as long after each failure, and long if it has
// no such endpoint. status is 0 for success, below 0 without an answer.
func (a *asker) observe(w *pools.Worker, status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	life := lifeOf(w)
	if status == 0 {
		delete(a.paused, life)
		return
	}
	if len(a.paused) >= maxPauses { // mostly of ended processes
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

// answerBytes bounds an answer per byte of the query: a token has at least a byte, and at most ten digits and a comma.
const answerBytes = 12

// cost returns the bytes that an answer and its growing tokens may take, 0 for a short question.
func (q *question) cost() int {
	if q.req.Memory == nil || len(q.req.Raw) <= freeBytes {
		return 0
	}
	return 3 * answerBytes * len(q.req.Raw)
}

// take reserves the question's memory, and give releases it.
func (q *question) take() bool { return q.cost() == 0 || q.req.Memory.Take(q.cost()) }

func (q *question) give() {
	if n := q.cost(); n > 0 {
		q.req.Memory.Give(n)
	}
}

// asks reports whether to query engines of this kind about such a request: they have /tokenize, and the prompt is text.
func asks(engine string, req *openai.Request) bool {
	return (engine == "vllm" || engine == "sglang" || engine == "sim") && !req.HasMedia() && len(req.Raw) <= maxAskBytes &&
		(req.Prompt.Kind == openai.PromptText || req.Prompt.Kind == openai.PromptMessages) && !given(req, "chat_template")
}
