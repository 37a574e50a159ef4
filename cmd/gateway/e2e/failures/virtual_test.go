package failures

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/pools"
)

var (
	faultsAlone  = flag.Int("faults-alone", 20, "requests that TestFaultsInVirtualTime sends under each fault alone")
	faultsPaired = flag.Int("faults-paired", 3, "requests that it sends under each pair of faults")
	faultsSeed   = flag.Uint64("faults-seed", 1, "seed of its faults")
)

// The trace is the one that the product ships, eight times as fast, with prompts of a 64th and short answers.
const (
	troubledShrink = 64
	troubledSpeed  = 8
	troubledTokens = 24
	troubledLease  = time.Second // what no call can free ends with it
)

// trouble is one thing that goes wrong, again and again.
type trouble struct {
	name   string
	rules  []fault.Rule                                  // of calls
	dies   pools.Role                                    // a worker of this role is killed and comes back as another process, its cache empty
	events func(rng *rand.Rand, m *nats.Msg) []*nats.Msg // what comes of a message with KV events
	leave  bool                                          // some clients leave in mid-answer
}

// mid is a fault that finds answers which have begun.
func mid(rule fault.Rule) fault.Rule {
	rule.Leg, rule.AfterEvents, rule.Probability = string(pools.Decode), 5, .3
	if rule.Fault == "reset" {
		rule.AfterEvents, rule.AfterBytes = 0, 1200
	}
	return rule
}

// troubles is everything that goes wrong: each fault of the registry as it is, those of answers in mid-answer as well,
// and what is not a call's fault.
func troubles() []trouble {
	var all []trouble
	for _, f := range fault.Faults() {
		rule := fault.Rule{Fault: f.Name, Probability: .3}
		switch f.Name {
		case "delay":
			rule.Delay = 200 * time.Millisecond
		case "slow_drip":
			rule.Rate = 8192
		case "stall":
			rule.Probability = .15
		}
		all = append(all, trouble{name: f.Name, rules: []fault.Rule{rule}})
		if slices.Contains([]string{"endless_tokens", "garble", "reset", "stall", "truncate"}, f.Name) {
			all = append(all, trouble{name: f.Name + ", in mid-answer", rules: []fault.Rule{mid(rule)}})
		}
	}
	late := fault.Rule{Fault: "delay", Leg: string(pools.Decode), Probability: .3, Delay: 3 * troubledLease / 2}
	return append(all,
		trouble{name: "lease of the KV ends", rules: []fault.Rule{late}},
		trouble{name: "prefill workers killed, and back", dies: pools.Prefill},
		trouble{name: "decode workers killed, and back", dies: pools.Decode},
		trouble{name: "KV events lost", events: func(rng *rand.Rand, m *nats.Msg) []*nats.Msg {
			return []*nats.Msg{m}[:min(1, rng.IntN(4))]
		}},
		trouble{name: "KV events doubled", events: func(rng *rand.Rand, m *nats.Msg) []*nats.Msg {
			return []*nats.Msg{m, copied(m)}[:1+rng.IntN(2)]
		}},
		trouble{name: "KV events reordered", events: reordered()},
		trouble{name: "clients leave", leave: true},
	)
}

func copied(m *nats.Msg) *nats.Msg {
	return &nats.Msg{Subject: m.Subject, Header: m.Header, Data: slices.Clone(m.Data)}
}

// reordered holds some messages back until the next one.
func reordered() func(*rand.Rand, *nats.Msg) []*nats.Msg {
	held := map[string]*nats.Msg{} // by subject
	return func(rng *rand.Rand, m *nats.Msg) []*nats.Msg {
		if before := held[m.Subject]; before != nil {
			delete(held, m.Subject)
			return []*nats.Msg{m, before}
		}
		if rng.IntN(4) == 0 {
			held[m.Subject] = m
			return nil
		}
		return []*nats.Msg{m}
	}
}

// troubledBus alters what workers publish. They share one, so that it is locked.
type troubledBus struct {
	wire.Bus
	mu    *sync.Mutex
	rng   *rand.Rand
	alter []func(*rand.Rand, *nats.Msg) []*nats.Msg
}

func (b troubledBus) Publish(m *nats.Msg) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := []*nats.Msg{m}
	if strings.HasPrefix(m.Subject, wire.EventsPrefix) {
		out = []*nats.Msg{copied(m)} // the publisher's own is used again
		for _, alter := range b.alter {
			var next []*nats.Msg
			for _, m := range out {
				next = append(next, alter(b.rng, m)...)
			}
			out = next
		}
	}
	var errs []error
	for _, m := range out {
		errs = append(errs, b.Bus.Publish(m))
	}
	return errors.Join(errs...)
}

// marked is a transport that notes which requests something has happened to: a call was hit or failed, or its answer
// broke off.
type marked struct {
	http1.Transport
	note func(requestID string)
}

func (m marked) Call(ctx context.Context, leg http1.Leg) (http1.Stream, error) {
	s, err := m.Transport.Call(ctx, leg)
	if err != nil || s.Status() != http.StatusOK {
		m.note(leg.RequestID)
	}
	if err != nil {
		return nil, err
	}
	return markedStream{s, func() { m.note(leg.RequestID) }}, nil
}

type markedStream struct {
	http1.Stream
	note func()
}

func (m markedStream) Read(p []byte) (int, error) {
	n, err := m.Stream.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		m.note()
	}
	return n, err
}

// traced is the i-th request of the trace: either endpoint, streamed or not.
func traced(w *replay.Workload, p *replay.Prompter, i int) fleet.Question {
	r := &w.Requests[i%len(w.Requests)]
	spans := make([]replay.Span, len(r.Spans))
	for j, s := range r.Spans {
		spans[j] = replay.Span{ID: s.ID, Tokens: (s.Tokens + troubledShrink - 1) / troubledShrink}
	}
	text := string(p.AppendText(nil, spans))
	return fleet.Asked(text, i%2 == 0, i%3 != 0, min(r.OutputTokens, troubledTokens))
}

// due is when that request leaves; no two leave at one instant.
func due(w *replay.Workload, i int) time.Duration {
	lap, i := i/len(w.Requests), i%len(w.Requests)
	return (w.Requests[i].At+time.Duration(lap)*(w.Span()+time.Second))/troubledSpeed + time.Duration(i)
}

// seen is what a client saw of one request.
type seen struct {
	fleet.Answer
	err     error
	left    bool          // it left by itself
	silence time.Duration // the longest one, the wait for the beginning included
}

// troubled is a fleet in which troubles happen, in virtual time.
type troubled struct {
	*fleet.Fleet
	streams disturbances
	seed    uint64
}

type disturbances struct {
	mu sync.Mutex
	of map[string]bool // by the gateway's own name of a request
}

func (d *disturbances) note(id string) {
	id, _, _ = strings.Cut(id, "-")
	d.mu.Lock()
	defer d.mu.Unlock()
	d.of[id] = true
}

// met reports whether something has happened to a request.
func (d *disturbances) met(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.of[id]
}

// toll is the result of a run.
type toll struct {
	requests, disturbed, whole, failed, left int
	silences                                 []time.Duration // of disturbed requests that were answered
}

func (o *toll) add(other toll) {
	o.requests += other.requests
	o.disturbed += other.disturbed
	o.whole += other.whole
	o.failed += other.failed
	o.left += other.left
}

// undergo sends the first n requests of the trace while the troubles happen. It is called in a bubble, whose end proves
// that no goroutine and no timer is left.
func undergo(t *testing.T, w *replay.Workload, questions []fleet.Question, seed uint64, all ...trouble) toll {
	t.Helper()
	f := &troubled{seed: seed, streams: disturbances{of: map[string]bool{}}}
	rng := rand.New(rand.NewPCG(seed, uint64(len(questions))))
	scenario := &fault.Scenario{Seed: seed, OnHit: func(leg http1.Leg, _ string) { f.streams.note(leg.RequestID) }}
	bus := troubledBus{mu: new(sync.Mutex), rng: rand.New(rand.NewPCG(seed, 2))}
	leave := false
	for _, each := range all {
		scenario.Rules = append(scenario.Rules, each.rules...)
		if each.events != nil {
			bus.alter = append(bus.alter, each.events)
		}
		leave = leave || each.leave
	}
	o := fleet.Options{
		Prefill: 2, Decode: 3, Speedup: 1, LogLevel: slog.LevelError,
		Worker: func(c *devfleet.WorkerConfig) { c.Engine.Lease, c.Engine.AbortTimeout = troubledLease, troubledLease },
		Bus: func(under wire.Bus) wire.Bus {
			altered := bus
			altered.Bus = under
			return altered
		},
		Gateway: func(c *stack.GatewayConfig) {
			c.Flow.Seed = seed
			if seed%2 == 0 { // every other run waits in the queue
				c.Router.Mode, c.Flow.Queue.Policy, c.Router.Slice = "eft", "hrrn", 32
			}
			c.Pools.DownFor = time.Millisecond // a refusal is by chance here, and the next call need not be
			c.Prefill.Timeout = 2 * time.Second
			c.Decode = decode.Config{FirstTokenTimeout: 2 * time.Second, StreamIdleTimeout: time.Second}
			c.WrapTransport = func(inner http1.Transport) http1.Transport {
				return marked{fault.Inject(inner, scenario), f.streams.note}
			}
		},
	}
	f.Fleet = fleet.New(t, o)
	over := make(chan struct{})
	var deaths sync.WaitGroup
	for _, each := range all {
		if each.dies != "" {
			deaths.Go(func() { f.kill(each.dies, o, over) })
		}
	}
	came := make([]seen, len(questions))
	var group sync.WaitGroup
	begun := time.Now()
	for i := range questions {
		after := 0
		if leave && rng.IntN(4) == 0 {
			after = 1 + rng.IntN(6)
		}
		group.Go(func() {
			<-time.After(time.Until(begun.Add(due(w, i))))
			came[i] = f.send(questions[i], after)
		})
	}
	group.Wait()
	close(over)
	deaths.Wait()
	f.Idle()
	return f.judge(questions, came)
}

// send sends one request, and leaves after so many events unless that is 0.
func (f *troubled) send(q fleet.Question, leaves int) (s seen) {
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	last, events := time.Now(), 0
	look := func() {
		s.silence = max(s.silence, time.Since(last))
		last = time.Now()
	}
	s.Answer, s.err = f.Try(ctx, q.Path, q.Body, func(string) {
		look()
		if events++; events == leaves {
			s.left = true
			leave()
		}
	})
	look()
	return s
}

// kill kills a worker of a role again and again, and starts it as another process a moment later.
func (f *troubled) kill(role pools.Role, o fleet.Options, over <-chan struct{}) {
	rng := rand.New(rand.NewPCG(f.seed, 3))
	n := map[pools.Role]int{pools.Prefill: o.Prefill, pools.Decode: o.Decode}[role]
	log := slog.New(slog.DiscardHandler)
	for {
		select {
		case <-over:
			return
		case <-time.After(time.Duration(500+rng.IntN(1500)) * time.Millisecond):
		}
		id := fmt.Sprintf("%s-%d", role, 1+rng.IntN(n))
		f.Workers[id].Kill()
		<-time.After(500 * time.Millisecond)
		f.Start(role, id, o, log)
	}
}

// judge holds what the clients saw against the undisturbed answers.
func (f *troubled) judge(questions []fleet.Question, came []seen) (o toll) {
	f.T.Helper()
	for i, s := range came {
		o.requests++
		disturbed := f.streams.met(handoff.SeededID(f.seed, uint64(i)+1))
		if disturbed {
			o.disturbed++
		}
		if s.left {
			o.left++
			continue
		}
		whole, err := f.Verdict(questions[i], s.Answer)
		if err = errors.Join(s.err, err); err == nil && whole {
			// The end of the text is a token, too.
			if n, want := f.Read(s.Answer).Completion, len(tokens.Sim().Encode(nil, questions[i].Want)); n != want && n != want+1 {
				err = fmt.Errorf("usage of %d tokens, the answer has %d", n, want)
			}
		}
		switch {
		case err != nil:
			f.T.Errorf("request %d: %v", i, err)
		case !whole:
			o.failed++
		default:
			o.whole++
			if disturbed {
				o.silences = append(o.silences, s.silence)
			}
		}
	}
	return o
}

// Under every fault alone and under every pair of faults each answer is, token for token, the undisturbed one or one
// typed error, which few are, and nothing is left: no booking, no KV at any engine, no goroutine. This is a sample;
// `make faults` runs all of it.
func TestFaultsInVirtualTime(t *testing.T) {
	t.Logf("seed %d", *faultsSeed)
	begun := time.Now()
	w := replay.BuiltIn(0)
	prompter, err := replay.NewPrompter(tokens.Sim(), *faultsSeed)
	require.NoError(t, err)
	questions := make([]fleet.Question, max(*faultsAlone, *faultsPaired))
	for i := range questions {
		questions[i] = traced(w, prompter, i)
	}
	all := troubles()
	alone, sum := make([]toll, len(all)), toll{}
	run := func(name string, n int, seed uint64, these ...trouble) (o toll) {
		t.Run(name, func(t *testing.T) {
			fleet.Virtual(t, func(t *testing.T) { o = undergo(t, w, questions[:n], seed, these...) })
		})
		return o
	}
	if o := run("nothing", *faultsAlone, *faultsSeed); o.requests > 0 && (o.whole != *faultsAlone || o.disturbed != 0) {
		t.Errorf("undisturbed: %+v", o)
	}
	for i := range all {
		alone[i] = run(all[i].name, *faultsAlone, *faultsSeed, troubles()[i])
		sum.add(alone[i])
		for j := range i {
			name := all[j].name + " and " + all[i].name
			sum.add(run(name, *faultsPaired, *faultsSeed+uint64(i*len(all)+j), troubles()[j], troubles()[i]))
		}
	}
	reportTroubles(t, all, alone, sum, time.Since(begun))
}

// docs/faults.md has the report of TestFaultsInVirtualTime between two lines.
const (
	virtualBegin = "<!-- virtual: written by make faults -->\n"
	virtualEnd   = "<!-- end of virtual -->\n"
)

// reportTroubles logs the result of each fault, and with -update writes it into docs/faults.md.
func reportTroubles(t *testing.T, all []trouble, alone []toll, sum toll, took time.Duration) {
	t.Helper()
	var out strings.Builder
	fmt.Fprintf(&out, "| fault | disturbed of %d | typed error | silence p50 | p99 |\n|---|---|---|---|---|\n", *faultsAlone)
	for i := range all {
		fmt.Fprintf(&out, "| %s |%s\n", all[i].name, cells(alone[i]))
		assert.True(t, alone[i].requests <= 0 || alone[i].disturbed != 0 || len(all[i].rules) <= 0,
			"%s: it hit nothing", all[i].name)
	}
	assert.LessOrEqual(t, 3*sum.failed, sum.disturbed, "%d of %d disturbed requests failed: a third", sum.failed, sum.disturbed)
	fmt.Fprintf(&out, "\n%d requests in %s, seed %d: %d of them disturbed, %d exact, %d ended with a typed error, %d clients left. "+
		"0 tokens lost, doubled or changed; 0 bookings, 0 KV left at engines, 0 goroutines and timers left.\n",
		sum.requests, took.Round(time.Second), *faultsSeed, sum.disturbed, sum.whole, sum.failed, sum.left)
	t.Log("\n" + out.String())
	if !*fleet.Update || t.Failed() {
		return
	}
	old, err := os.ReadFile(resumeFile)
	require.NoError(t, err)
	head, rest, _ := strings.Cut(string(old), virtualBegin)
	_, tail, found := strings.Cut(rest, virtualEnd)
	require.True(t, found, "%s has no place for the report", resumeFile)
	require.NoError(t, os.WriteFile(resumeFile, []byte(head+virtualBegin+out.String()+virtualEnd+tail), 0o644))
}

// cells are a toll's, each with its bar behind it.
func cells(o toll) string {
	slices.Sort(o.silences)
	quantile := func(q float64) string {
		if len(o.silences) == 0 {
			return "–"
		}
		return replay.Quantile(o.silences, q).Round(time.Millisecond).String()
	}
	return fmt.Sprintf(" %d | %d | %s | %s |", o.disturbed, o.failed, quantile(.5), quantile(.99))
}

func TestMain(m *testing.M) { os.Exit(fleet.Main(m)) }
