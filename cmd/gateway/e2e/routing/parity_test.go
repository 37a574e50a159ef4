package routing

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/lab/simulate"
	"github.com/tandem-pd/tandem/lab/testkit"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
)

// The trace of the parity test, and what both sides are made of.
const (
	paritySeed     = 11
	parityRequests = 120
	parityBlock    = 16
	parityGateway  = "127.0.0.1:8000"
)

// parityEngine has a cache that the trace overflows and room for a batch of it.
func parityEngine() engine.Config {
	return engine.Config{Model: simulate.Model, BlockSize: parityBlock, TotalKVBlocks: 4096, ContextLength: 24_576}
}

// parityFleet is a fleet under one setting of the gateway.
type parityFleet struct {
	groups      []simulate.Group
	mode        string
	temperature float64
	threshold   float64 // the queue's: below 0 no request waits in the gateway for prefill
	warm        int     // requests before the trace, one after another, from which the gateway learns how long prompts take

	delay time.Duration // of what the gateway sends to workers

	// Of the gateway on the wire.
	reg   *prometheus.Registry
	begun func(engines []*engine.Server) // where it is set: requests begin now
}

func (f *parityFleet) router() router.Config {
	base := router.DefaultConfig()
	base.Seed, base.Mode, base.Temperature, base.QueueThreshold = paritySeed, f.mode, f.temperature, f.threshold
	return base
}

// queue is the gateway's queue, in the order that suits the mode.
func (f *parityFleet) queue() queue.Config {
	cfg := fleet.GatewayConfig().Flow.Queue
	if cfg.Policy = "fcfs"; f.mode == "eft" || f.mode == "auto" {
		cfg.Policy = "hrrn"
	}
	return cfg
}

// after is w with f.warm requests before it, one a second, which fill every cache.
func (f *parityFleet) after(w *replay.Workload) *replay.Workload {
	if f.warm == 0 {
		return w
	}
	rng := rand.New(rand.NewPCG(paritySeed, 6))
	all := &replay.Workload{Name: w.Name}
	for i := range f.warm {
		r := replay.Request{Index: i, At: time.Duration(i) * time.Second, OutputTokens: 4}
		r.Spans = []replay.Span{{ID: 1<<42 + uint64(i), Tokens: 500 + rng.IntN(6000)}}
		all.Requests = append(all.Requests, r)
	}
	for _, r := range w.Requests {
		r.Index += f.warm
		r.At += time.Duration(f.warm) * time.Second
		all.Requests = append(all.Requests, r)
	}
	return all
}

// parityTrace draws requests in bursts that share prefixes of two levels
// and are now and then long. No two are sent at the same time.
func parityTrace(seed uint64) *replay.Workload {
	const rate = 14 // requests a second between bursts
	rng := rand.New(rand.NewPCG(seed, 5))
	w := &replay.Workload{Name: "parity"}
	at := 0.0 // seconds
	for i := range parityRequests {
		gap := rng.ExpFloat64() / rate
		if i%25 > 15 {
			gap /= 20 // a burst
		}
		at += gap
		group := uint64(rng.ExpFloat64() * 3)
		r := replay.Request{Index: i, At: time.Duration(at*1e9) + time.Duration(i)*time.Microsecond, OutputTokens: 4 + rng.IntN(36)}
		if rng.IntN(5) > 0 {
			r.Spans = append(r.Spans, replay.Span{ID: 1 + group, Tokens: 300 + int(group%7)*250})
			if sub := rng.Uint64N(4); sub > 0 {
				r.Spans = append(r.Spans, replay.Span{ID: 1000 + group*10 + sub, Tokens: 200 + int(sub)*131})
			}
		}
		own := 20 + rng.IntN(1200)
		if rng.IntN(25) == 0 {
			own += 9000
		}
		r.Spans = append(r.Spans, replay.Span{ID: 1<<40 + uint64(i), Tokens: own})
		w.Requests = append(w.Requests, r)
	}
	return w
}

// TestSimulateAgreesWithTheWire runs one trace through simulate and through the whole gateway with simulated engines in
// a bubble: HTTP on both sides of it, the queue's and the rooms' goroutines, KV events over a bus. Every request must
// be served by the same workers and find as much cached, and the times must agree.
func TestSimulateAgreesWithTheWire(t *testing.T) {
	t.Parallel()
	t.Logf("seed %d", paritySeed)
	prompter, err := replay.NewPrompter(tokens.Sim(), paritySeed)
	require.NoError(t, err)
	w := parityTrace(paritySeed)
	for _, shape := range []struct {
		name   string
		groups []simulate.Group
	}{
		{"agg", []simulate.Group{{Count: 3, Role: pools.Both, Engine: parityEngine()}}},
		{"2P2D", []simulate.Group{{Count: 2, Role: pools.Prefill, Engine: parityEngine()},
			{Count: 2, Role: pools.Decode, Engine: parityEngine()}}},
	} {
		for _, f := range []parityFleet{
			{mode: "kv", threshold: -1}, {mode: "kv", threshold: 0.1}, {mode: "kv", threshold: -1, temperature: 0.5},
			{mode: "round-robin", threshold: 0.1}, {mode: "power-of-two", threshold: 0.1},
			{mode: "lmetric", threshold: 0.1}, {mode: "eft", threshold: -1, warm: 40}, {mode: "auto", threshold: -1, warm: 40},
		} {
			if shape.name == "agg" && (f.threshold > 0 && f.mode != "kv" || f.temperature > 0) {
				continue // the queue before prefill is the same, and so is the draw
			}
			f.groups, f.reg = shape.groups, prometheus.NewRegistry()
			w := f.after(w)
			t.Run(fmt.Sprintf("%s/%s/threshold=%v,temperature=%v", shape.name, f.mode, f.threshold, f.temperature), func(t *testing.T) {
				t.Parallel()
				simulated := f.simulated(t, w)
				var wire []replay.Sample
				synctest.Test(t, func(t *testing.T) { wire = f.onTheWire(t, w, prompter) })
				agree(t, simulated, wire)
			})
		}
	}
}

// simulated runs the workload under virtual time alone.
func (f *parityFleet) simulated(t *testing.T, w *replay.Workload) []replay.Sample {
	out, err := simulate.Run(t.Context(), simulate.Config{
		Stages: []simulate.Stage{{Name: w.Name, Requests: w.Requests, Chains: simulate.NewChains(w.Requests, parityBlock)}},
		Fleet:  f.groups, Routers: f.router().ByRole(), Queue: f.queue(), Learns: f.warm > 0, Readings: 1000,
		Name: func(_, index int) string { return handoff.SeededID(paritySeed, uint64(index)+1) },
	})
	require.NoError(t, err)
	queued := 0
	for _, r := range out.Readings {
		queued = max(queued, r.Queued)
	}
	summary := replay.Summarize(out.Samples)
	t.Logf("up to %d wait in the gateway, %.0f %% of the prompts' tokens are cached, %d preemptions", queued, 100**summary.HitRate,
		out.Preemptions)
	assert.True(t, *summary.HitRate >= 0.1 && (f.threshold < 0 || queued >= 5) && out.Preemptions <= 0,
		"the trace does not test what it is for")
	return out.Samples
}

// agree compares two runs of one workload request for request.
func agree(t *testing.T, simulated, wire []replay.Sample) {
	t.Helper()
	byIndex := func(a, b replay.Sample) int { return cmp.Compare(a.Index, b.Index) }
	slices.SortFunc(simulated, byIndex)
	slices.SortFunc(wire, byIndex)
	require.True(t, len(simulated) == len(wire) && len(wire) >= parityRequests,
		"%d simulated and %d real answers", len(simulated), len(wire))
	picks, cached := 0, 0
	var first []string // of those that differ, the first one explains the others
	for i := range wire {
		a, b := &simulated[i], &wire[i]
		if a.Outcome != replay.Answered || b.Outcome != replay.Answered || a.OutputTokens != b.OutputTokens {
			t.Errorf("request %d: %s, %d tokens; on the wire %s %s, %d tokens", i, a.Outcome, a.OutputTokens, b.Outcome, b.Detail,
				b.OutputTokens)
		}
		pick, cache := a.PrefillWorker != b.PrefillWorker || a.DecodeWorker != b.DecodeWorker, a.CachedTokens != b.CachedTokens
		if pick {
			picks++
		}
		if cache {
			cached++
		}
		// The network takes nanoseconds.
		if pick || cache || max(a.TTFT-b.TTFT, b.TTFT-a.TTFT, a.E2E-b.E2E, b.E2E-a.E2E) > replay.Millis(10*time.Microsecond) {
			first = append(first, fmt.Sprintf("request %d at %v\n simulated   %s\n on the wire %s", i, time.Duration(a.Scheduled),
				telling(a), telling(b)))
		}
	}
	assert.LessOrEqual(t, picks+cached, 0,
		"of %d requests %d went elsewhere and %d found another number of tokens cached", len(wire), picks, cached)
	s, r := replay.Summarize(simulated), replay.Summarize(wire)
	for _, c := range []struct {
		what      string
		ours, was replay.Millis
	}{{"TTFT p50", s.TTFT.P50, r.TTFT.P50}, {"TTFT p90", s.TTFT.P90, r.TTFT.P90}, {"ITL p50", s.ITL.P50, r.ITL.P50},
		{"ITL p90", s.ITL.P90, r.ITL.P90}} {
		t.Logf("%s is %v simulated and %v on the wire", c.what, time.Duration(c.ours), time.Duration(c.was))
		if off := math.Abs(float64(c.ours-c.was)) / float64(c.was); !(off <= 0.02) {
			t.Errorf("%s: %.1f %% apart", c.what, 100*off)
		}
	}
	if len(first) > 0 {
		t.Logf("%d requests differ, of which the first:\n%s", len(first), strings.Join(first[:min(4, len(first))], "\n"))
	}
}

// telling is what is compared of a request.
func telling(s *replay.Sample) string {
	return fmt.Sprintf("%s by %s|%s, %d of %d cached, TTFT %v, ITL %v, E2E %v", s.Outcome, s.PrefillWorker, s.DecodeWorker,
		s.CachedTokens, s.PromptTokens, time.Duration(s.TTFT), time.Duration(s.ITL), time.Duration(s.E2E))
}

// onTheWire replays the workload through a whole gateway. It is called in a bubble.
func (f *parityFleet) onTheWire(t *testing.T, w *replay.Workload, prompter *replay.Prompter) []replay.Sample {
	net := fleet.NewNetwork()
	bus := testkit.NewBus()
	log := slog.New(slog.DiscardHandler)
	cfg := fleet.GatewayConfig()
	cfg.Router = f.router()
	cfg.Flow.Seed, cfg.Flow.Queue = paritySeed, f.queue()
	cfg.Upstream.Dial = net.Dial
	side := &http.Transport{DialContext: net.Dial, MaxIdleConnsPerHost: 64}
	turns := &inTurn{side: side, delay: f.delay, came: map[string]time.Duration{}, given: map[string]time.Duration{}}
	for i := range w.Requests {
		turns.came[handoff.SeededID(paritySeed, uint64(i)+1)] = time.Duration(i)
	}
	cfg.WrapTransport = func(under http1.Transport) http1.Transport {
		turns.Transport = under
		return turns
	}
	gateway, err := stack.NewGateway(cfg, stack.Links{Bus: bus}, log, f.reg)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", parityGateway)
	require.NoError(t, err)
	gateway.UseListener(listener)
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		assert.NoError(t, gateway.Run(ctx), "gateway")
	})
	port := 9000
	var engines []*engine.Server
	for _, g := range f.groups {
		for i := range g.Count {
			port++
			wc := devfleet.WorkerConfig{Engine: g.Engine, Host: "127.0.0.1", Port: port, ModelInput: "text", Drain: time.Second,
				Listen: net.Listen}
			wc.Engine.Role, wc.Engine.ID = string(g.Role), fmt.Sprintf("%s-%d", g.Role, i+1)
			wc.Engine.Client = &http.Client{Transport: turns}
			worker, err := devfleet.NewWorker(wc, stack.Links{Bus: bus}, log)
			require.NoError(t, err)
			engines = append(engines, worker.Engine)
			group.Go(func() {
				assert.NoError(t, worker.Run(ctx), "worker")
			})
			require.NoError(t, gateway.Roster.Put(worker.Record()))
		}
	}
	f.follow(t, gateway)

	client := &http.Transport{DialContext: net.Dial, MaxIdleConnsPerHost: 1024, DisableCompression: true}
	run, err := replay.New(replay.Config{Speed: 1, MaxInFlight: len(w.Requests), Timeout: time.Hour}, w, &replay.Endpoint{
		URL: "http://" + parityGateway, Model: simulate.Model, Prompter: prompter, Nvext: true, IgnoreEOS: true, Transport: client,
	})
	require.NoError(t, err)
	if f.begun != nil {
		f.begun(engines)
	}
	samples := run.Run(ctx)
	client.CloseIdleConnections()
	cancel()
	group.Wait()
	side.CloseIdleConnections()
	bus.Close()
	time.Sleep(time.Minute) // fasthttp's pool cleaner, which sleeps for ten seconds
	return samples
}

// follow waits until the gateway follows every worker's cache.
func (f *parityFleet) follow(t *testing.T, gateway *stack.Gateway) {
	n := 0
	for _, g := range f.groups {
		n += g.Count
	}
	for range 1000 {
		report, err := json.Marshal(gateway.Workers())
		require.NoError(t, err)
		if strings.Count(string(report), `"state":"live"`) == n {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the workers' caches are not followed")
}

// inTurn makes calls that are due at one instant one after another, a nanosecond apart: the gateway's in the order in
// which the requests came, and the pulls of a decode engine in the order in which it was given them. As what goes on at
// one instant runs in any order, it would be a toss-up otherwise; in simulate it is the order of the cores.
type inTurn struct {
	http1.Transport
	side  http.RoundTripper
	delay time.Duration

	mu    sync.Mutex
	came  map[string]time.Duration // by the gateway's id
	given map[string]time.Duration // the same, of those that decode has
}

func (t *inTurn) Call(ctx context.Context, leg http1.Leg) (http1.Stream, error) {
	id, _, _ := strings.Cut(leg.RequestID, "-")
	time.Sleep(t.delay + t.came[id])
	if leg.Purpose == string(pools.Decode) {
		t.mu.Lock()
		t.given[id] = time.Duration(len(t.given))
		t.mu.Unlock()
	}
	return t.Transport.Call(ctx, leg)
}

// RoundTrip carries the engines' calls to each other.
func (t *inTurn) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := r.GetBody()
	if err != nil {
		return nil, err
	}
	var message struct {
		Requests []string `json:"request_ids"`
	}
	if err := json.NewDecoder(body).Decode(&message); err != nil {
		return nil, err
	}
	if id := sequenceOf.FindStringSubmatch(message.Requests[0]); id != nil {
		t.mu.Lock()
		turn := t.given[id[1]]
		t.mu.Unlock()
		time.Sleep(turn)
	}
	return t.side.RoundTrip(r)
}

// sequenceOf finds the gateway's id in an engine's name of a sequence.
var sequenceOf = regexp.MustCompile(`([0-9a-f]{16})-1-0-`)

// In mode eft prompts wait in the gateway, and yet a prefill engine has hardly a moment without one while others wait:
// little more than the 2 ms that each takes to arrive, of 107 ms in the mean to be computed.
func TestPrefillIsRarelyIdle(t *testing.T) {
	t.Parallel()
	const engines, from, span = 2, 43 * time.Second, 8 * time.Second
	each := parityEngine()
	f := parityFleet{
		groups: []simulate.Group{{Count: engines, Role: pools.Prefill, Engine: each}, {Count: 2, Role: pools.Decode, Engine: each}},
		mode:   "eft", threshold: -1, warm: 40, delay: 2 * time.Millisecond, reg: prometheus.NewRegistry(),
	}
	rng := rand.New(rand.NewPCG(paritySeed, 7))
	more := &replay.Workload{Name: "more than they can do"}
	for i := range 340 {
		more.Requests = append(more.Requests, replay.Request{
			Index: i, At: time.Duration(i) * 33 * time.Millisecond, OutputTokens: 2,
			Spans: []replay.Span{{ID: 1<<43 + uint64(i), Tokens: 200 + rng.IntN(3600)}},
		})
	}
	prompter, err := replay.NewPrompter(tokens.Sim(), paritySeed)
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		idle := make(chan float64, 1)
		f.begun = func(all []*engine.Server) {
			busy := func() (ms float64) {
				for _, e := range all[:engines] {
					ms += e.Books().BusyMs
				}
				return ms
			}
			go func() {
				time.Sleep(from)
				before := busy()
				time.Sleep(span)
				idle <- 1 - (busy()-before)/float64(span.Milliseconds())/engines
			}()
		}
		f.onTheWire(t, f.after(more), prompter)
		share := <-idle
		t.Logf("prefill engines were idle for %.2f %% of %v", 100*share, span)
		assert.LessOrEqual(t, share, .03, "that is above 3 %")
	})
}

func TestMain(m *testing.M) { os.Exit(fleet.Main(m)) }
