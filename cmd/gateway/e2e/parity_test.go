package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/engine"
	"github.com/tandem-pd/tandem/internal/replay"
	"github.com/tandem-pd/tandem/internal/simulate"
	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/events"
)

// TestMain has fasthttp start its clock, a goroutine that never ends, before
// the first bubble, which it must not belong to.
func TestMain(m *testing.M) {
	app := fiber.New(fiber.Config{DisableStartupMessage: true})
	if _, err := app.Test(httptest.NewRequest(http.MethodGet, "/", nil)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// The trace of the parity test, and what both sides are made of.
const (
	paritySeed     = 11
	parityRequests = 300
	parityBlock    = 16
	parityGateway  = "127.0.0.1:8000"
)

// parityEngine has a cache that the trace overflows and room for a batch of it.
func parityEngine() engine.Config {
	return engine.Config{Model: simulate.Model, BlockSize: parityBlock, TotalKVBlocks: 4096, ContextLength: 24_576}
}

// parityFleet is a fleet under one setting of the gateway.
type parityFleet struct {
	name      string
	groups    []simulate.Group
	mode      string
	threshold float64 // the router's: below 0 nobody waits in the gateway
}

func (f *parityFleet) routers() map[pools.Role]router.Config {
	base := router.DefaultConfig()
	base.Seed, base.Mode, base.QueueThreshold = paritySeed, f.mode, f.threshold
	out := map[pools.Role]router.Config{}
	for _, role := range []pools.Role{pools.Prefill, pools.Decode, pools.Both} {
		out[role] = base.For(role)
	}
	return out
}

// parityTrace draws requests that come in bursts, share prefixes of two levels
// and are now and then long. No two come at the same time.
func parityTrace(seed uint64, rate float64) *replay.Workload {
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
		r.Spans = append(r.Spans, replay.Span{ID: 1 << 40 << (i % 2) * uint64(i+1), Tokens: own})
		w.Requests = append(w.Requests, r)
	}
	return w
}

// TestSimulateAgreesWithTheWire runs one trace through simulate and through the
// whole gateway with simulated engines in a bubble: HTTP on both sides of it,
// the queue's and the rooms' goroutines, KV events over a bus. Every request
// must be served by the same workers and find as much cached, and the times
// must agree.
func TestSimulateAgreesWithTheWire(t *testing.T) {
	agg := []simulate.Group{{Count: 3, Role: pools.Both, Engine: parityEngine()}}
	apart := []simulate.Group{{Count: 2, Role: pools.Prefill, Engine: parityEngine()}, {Count: 2, Role: pools.Decode, Engine: parityEngine()}}
	for _, shape := range []struct {
		name   string
		groups []simulate.Group
		rate   float64 // requests a second
	}{{"agg", agg, 14}, {"2P2D", apart, 14}} {
		for _, mode := range []string{"kv", "round-robin", "least-loaded", "power-of-two"} {
			for _, threshold := range []float64{-1, 0.5} {
				f := &parityFleet{fmt.Sprintf("%s/%s/threshold=%v", shape.name, mode, threshold), shape.groups, mode, threshold}
				t.Run(f.name, func(t *testing.T) { f.compare(t, parityTrace(paritySeed, shape.rate)) })
			}
		}
	}
}

func (f *parityFleet) compare(t *testing.T, w *replay.Workload) {
	t.Logf("seed %d", paritySeed)
	outcome, err := simulate.Run(t.Context(), simulate.Config{
		Stages: []simulate.Stage{{Name: w.Name, Requests: w.Requests, Chains: simulate.NewChains(w.Requests, parityBlock)}},
		Fleet:  f.groups, Routers: f.routers(), Queue: gatewayConfig().Flow.Queue,
		Name: func(_, index int) string { return handoff.SeededID(paritySeed, uint64(index)+1) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if outcome.Preemptions > 0 {
		t.Errorf("%d preemptions: the trace is to fit", outcome.Preemptions)
	}
	var wire []replay.Sample
	synctest.Test(t, func(t *testing.T) { wire = f.onTheWire(t, w) })
	agree(t, outcome.Samples, wire)
}

// agree compares two runs of one workload request for request.
func agree(t *testing.T, simulated, wire []replay.Sample) {
	t.Helper()
	byIndex := func(a, b replay.Sample) int { return cmp.Compare(a.Index, b.Index) }
	slices.SortFunc(simulated, byIndex)
	slices.SortFunc(wire, byIndex)
	if len(simulated) != parityRequests || len(wire) != parityRequests {
		t.Fatalf("%d simulated and %d real answers to %d requests", len(simulated), len(wire), parityRequests)
	}
	show := func(s *replay.Sample) string {
		return fmt.Sprintf("%s by %s|%s, %d of %d cached, TTFT %v, ITL %v, E2E %v", s.Outcome, s.PrefillWorker, s.DecodeWorker,
			s.CachedTokens, s.PromptTokens, time.Duration(s.TTFT), time.Duration(s.ITL), time.Duration(s.E2E))
	}
	picks, cached, shown := 0, 0, 0
	for i := range wire {
		a, b := &simulated[i], &wire[i]
		if a.Outcome != replay.Answered || b.Outcome != replay.Answered || a.OutputTokens != b.OutputTokens {
			t.Errorf("request %d: %s, %d tokens; on the wire %s %s, %d tokens", i, a.Outcome, a.OutputTokens, b.Outcome, b.Detail, b.OutputTokens)
		}
		other := a.PrefillWorker != b.PrefillWorker || a.DecodeWorker != b.DecodeWorker
		if other {
			picks++
		}
		if a.CachedTokens != b.CachedTokens {
			cached++
		}
		late := math.Abs(float64(a.TTFT-b.TTFT)) > float64(10*time.Microsecond) || math.Abs(float64(a.E2E-b.E2E)) > float64(10*time.Microsecond)
		if (late || other || a.CachedTokens != b.CachedTokens) && shown < 8 {
			shown++
			t.Logf("request %d at %v:\n simulated   %s\n on the wire %s", i, time.Duration(a.Scheduled), show(a), show(b))
		}
	}
	if picks+cached > 0 {
		t.Errorf("of %d requests %d went elsewhere and %d found another number of tokens cached", len(wire), picks, cached)
	}
	s, r := replay.Summarize(simulated), replay.Summarize(wire)
	t.Logf("TTFT %.3f/%.3f, on the wire %.3f/%.3f ms; ITL %.3f/%.3f, on the wire %.3f/%.3f ms (p50/p90)", s.TTFT.P50.Float(), s.TTFT.P90.Float(),
		r.TTFT.P50.Float(), r.TTFT.P90.Float(), s.ITL.P50.Float(), s.ITL.P90.Float(), r.ITL.P50.Float(), r.ITL.P90.Float())
	for _, c := range []struct {
		what      string
		ours, was replay.Millis
	}{{"TTFT p50", s.TTFT.P50, r.TTFT.P50}, {"TTFT p90", s.TTFT.P90, r.TTFT.P90}, {"ITL p50", s.ITL.P50, r.ITL.P50}, {"ITL p90", s.ITL.P90, r.ITL.P90}} {
		if off := math.Abs(float64(c.ours-c.was)) / float64(c.was); off > 0.02 {
			t.Errorf("%s is %v simulated and %v on the wire, %.1f %% apart", c.what, time.Duration(c.ours), time.Duration(c.was), 100*off)
		}
	}
}

// onTheWire replays the workload through a whole gateway. It is called in a
// bubble.
func (f *parityFleet) onTheWire(t *testing.T, w *replay.Workload) []replay.Sample {
	net := newNetwork()
	bus := events.NewMemoryBus()
	log := slog.New(slog.DiscardHandler)
	cfg := gatewayConfig()
	cfg.Routers = f.routers()
	cfg.Flow.Seed = paritySeed
	cfg.Upstream.Dial = net.dial
	side := &http.Transport{DialContext: net.dial, MaxIdleConnsPerHost: 64}
	turns := &inTurn{side: side, came: map[string]time.Duration{}, given: map[string]time.Duration{}}
	for i := range w.Requests {
		turns.came[handoff.SeededID(paritySeed, uint64(i)+1)] = time.Duration(i)
	}
	cfg.WrapTransport = func(under upstream.Transport) upstream.Transport {
		turns.Transport = under
		return turns
	}
	gateway, err := stack.NewGateway(cfg, stack.Links{Bus: bus}, log, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.listen("tcp", parityGateway)
	if err != nil {
		t.Fatal(err)
	}
	gateway.UseListener(listener)
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		if err := gateway.Run(ctx); err != nil {
			t.Errorf("gateway: %v", err)
		}
	})
	port := 9000
	for _, g := range f.groups {
		for i := range g.Count {
			port++
			wc := stack.WorkerConfig{Engine: g.Engine, Host: "127.0.0.1", Port: port, ModelInput: "text", Drain: time.Second, Listen: net.listen}
			wc.Engine.Role, wc.Engine.ID = string(g.Role), fmt.Sprintf("%s-%d", g.Role, i+1)
			wc.Engine.Client = &http.Client{Transport: turns}
			worker, err := stack.NewWorker(wc, stack.Links{Bus: bus}, log)
			if err != nil {
				t.Fatal(err)
			}
			group.Go(func() {
				if err := worker.Run(ctx); err != nil {
					t.Errorf("worker: %v", err)
				}
			})
			if err := gateway.Roster.Put(worker.Record()); err != nil {
				t.Fatal(err)
			}
		}
	}
	f.follow(t, gateway)

	prompter, err := replay.NewPrompter(tokens.Sim(), paritySeed)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Transport{DialContext: net.dial, MaxIdleConnsPerHost: 1024, DisableCompression: true}
	run, err := replay.New(replay.Config{Speed: 1, MaxInFlight: parityRequests, Timeout: time.Hour}, w, &replay.Endpoint{
		URL: "http://" + parityGateway, Model: simulate.Model, Prompter: prompter, Nvext: true, IgnoreEOS: true, Transport: client,
	})
	if err != nil {
		t.Fatal(err)
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
		if err != nil {
			t.Fatal(err)
		}
		if strings.Count(string(report), `"state":"live"`) == n {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the workers' caches are not followed")
}

// inTurn makes calls that are due at one instant one after another, a
// nanosecond apart: the gateway's in the order in which the requests came, and
// the pulls of a decode engine in the order in which it was given them. As what
// goes on at one instant runs in any order, it would be a toss-up otherwise; in
// simulate it is the order of the cores.
type inTurn struct {
	upstream.Transport
	side http.RoundTripper

	mu    sync.Mutex
	came  map[string]time.Duration // by the gateway's id
	given map[string]time.Duration // the same, of those that decode has
}

func (t *inTurn) Call(ctx context.Context, leg upstream.Leg) (upstream.Stream, error) {
	id, _, _ := strings.Cut(leg.RequestID, "-")
	time.Sleep(t.came[id])
	if leg.Kind == upstream.Decode {
		t.mu.Lock()
		t.given[id] = time.Duration(len(t.given))
		t.mu.Unlock()
	}
	return t.Transport.Call(ctx, leg)
}

// RoundTrip carries what engines say to each other.
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
