package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// loadConfig configures clients. Each sends a request, reads the answer and repeats.
type loadConfig struct {
	clients     int
	promptWords int
	tokens      int // of an answer
	seed        uint64
	// persistent clients retry if the connection breaks before the answer, as OpenAI's library does.
	persistent bool
}

// load is clients at work on one gateway until stopped.
type load struct {
	cfg    loadConfig
	url    string
	client *http.Client
	abort  context.CancelFunc
	stop   chan struct{}
	group  sync.WaitGroup
	next   atomic.Uint64 // of the questions

	mu        sync.Mutex
	outcomes  []outcome
	streaming int // streams that have begun and not ended
	killed    string
	killedAt  time.Time
}

// outcome is one request and its result.
type outcome struct {
	judged
	gateway string // as named by the balancer; empty without one
	sent    time.Time
	took    time.Duration
	again   bool          // the same question was sent again
	silent  time.Duration // the longest wait of a stream for its next token, the first one included
}

// askLimit bounds one request: far above every limit of the gateway.
const askLimit = 60 * time.Second

// startLoad sets the clients to work.
func startLoad(ctx context.Context, url string, cfg loadConfig) *load {
	ctx, abort := context.WithCancel(ctx)
	l := &load{
		cfg: cfg, url: url, abort: abort, stop: make(chan struct{}),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: cfg.clients}},
	}
	for range cfg.clients {
		l.group.Go(func() {
			for {
				select {
				case <-l.stop:
					return
				case <-ctx.Done():
					return
				default:
					l.one(ctx)
				}
			}
		})
	}
	return l
}

// finish lets every request that was sent end, and reports all of them.
func (l *load) finish() []outcome {
	close(l.stop)
	l.group.Wait()
	l.abort()
	l.client.CloseIdleConnections()
	for i := range l.outcomes {
		o := &l.outcomes[i]
		if o.verdict == severed && l.killed != "" && o.sent.Before(l.killedAt) && (o.gateway == l.killed || o.gateway == "") {
			o.judged = judged{wentDown, "in mid-answer"}
			if o.again {
				o.detail = "sent again"
			}
		}
	}
	return l.outcomes
}

// gatewayKilled notes that a gateway was just killed: its requests may break off, later ones may not.
func (l *load) gatewayKilled(service string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.killed, l.killedAt = service, time.Now()
}

// answeredBy is how many answers a gateway has given in full.
func (l *load) answeredBy(gateway string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.outcomes {
		if o.gateway == gateway && o.verdict == right {
			n++
		}
	}
	return n
}

// answered is how many requests have ended, and open how many streams are in their middle.
func (l *load) answered() (ended, open int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.outcomes), l.streaming
}

// one sends a new question. Every third is not streamed.
func (l *load) one(ctx context.Context) {
	n := l.next.Add(1)
	q := newQuestion(prompt(l.cfg.seed, n, l.cfg.promptWords), l.cfg.tokens, n%3 != 0)
	again := true
	for left := 2; again; left-- {
		o, begun := l.attempt(ctx, &q)
		again = l.cfg.persistent && left > 0 && o.verdict == severed && !begun
		o.again = again
		l.mu.Lock()
		l.outcomes = append(l.outcomes, o)
		l.mu.Unlock()
	}
}

// attempt sends a request once and reads the answer. It reports whether any of its text came.
func (l *load) attempt(ctx context.Context, q *question) (o outcome, begun bool) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	o.sent = time.Now()
	last := o.sent
	o.judged, o.gateway = l.send(ctx, q, func(more string) {
		if more != "" && q.stream {
			if !begun {
				l.count(1)
			}
			o.silent, last = max(o.silent, time.Since(last)), time.Now()
		}
		begun = begun || more != ""
	})
	o.took = time.Since(o.sent)
	if q.stream && begun {
		l.count(-1)
	}
	return o, begun
}

// send sends a request, and returns the result and the gateway that the balancer names.
func (l *load) send(ctx context.Context, q *question, received func(string)) (judged, string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url+"/v1/completions", strings.NewReader(q.body()))
	if err != nil {
		return judged{wrong, err.Error()}, ""
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := l.client.Do(req)
	if err != nil {
		ended := judged{severed, "no answer: " + err.Error()}
		if ctx.Err() != nil {
			ended.verdict = wrong
		}
		return ended, ""
	}
	defer res.Body.Close()
	return q.judge(res, received), res.Header.Get("x-served-by")
}

func (l *load) count(by int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streaming += by
}

// prompt is the nth prompt of a seed, of so many words.
func prompt(seed, n uint64, words int) string {
	rng := rand.New(rand.NewPCG(seed, n))
	var b strings.Builder
	fmt.Fprintf(&b, "Question %d.", n)
	for range words {
		b.WriteByte(' ')
		for range 2 + rng.IntN(5) {
			b.WriteByte(byte('a' + rng.IntN(26)))
		}
	}
	return b.String()
}
