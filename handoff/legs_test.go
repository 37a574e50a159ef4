package handoff

import (
	"context"
	"encoding/json"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
)

// legsOf makes both legs of a request with a prompt of n bytes, metadata bound.
func legsOf(t testing.TB, n int) func() Plan {
	t.Helper()
	r, err := openai.Limits{}.Scan(openai.Completions, []byte(`{"model":"m","stream":true,"prompt":"`+strings.Repeat("x", n)+`","max_tokens":9}`))
	if err != nil {
		t.Fatal(err)
	}
	a, kv := pair("text"), prefill.KV{Params: json.RawMessage(goodParams)}
	return func() Plan {
		plan, err := NIXL{}.Plan(carrying(a, r, nil))
		if err != nil {
			t.Fatal(err)
		}
		NIXL{}.Bind(&plan.Decode, kv)
		return plan
	}
}

// TestLegsShareTheClientsBody: what a round's legs cost does not grow with the
// client's body, or many running requests hold several copies of each.
func TestLegsShareTheClientsBody(t *testing.T) {
	make := legsOf(t, 1<<20)
	cost := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			make()
		}
	}).AllocedBytesPerOp()
	if cost > 16<<10 {
		t.Errorf("the legs of a body of 1 MiB took %d bytes", cost)
	}
}

// answered is an answer of 200 with a body.
type answered struct{ *strings.Reader }

func (answered) Status() int         { return 200 }
func (answered) ContentType() string { return "application/json" }
func (answered) Close() error        { return nil }

// holding answers prefill at once and holds decode calls until their context ends.
type holding struct{ held chan struct{} }

func (h holding) Call(ctx context.Context, leg upstream.Leg) (upstream.Stream, error) {
	switch pools.Role(leg.Purpose) {
	case pools.Prefill:
		return answered{strings.NewReader(`{"choices":[],"kv_transfer_params":` + goodParams + `}`)}, nil
	case pools.Decode:
		h.held <- struct{}{}
		<-ctx.Done()
	}
	return nil, &upstream.Error{Worker: leg.Worker, Op: upstream.OpHead, Err: context.Cause(ctx)}
}

// unread is a Sink of an answer that never begins.
type unread struct{}

func (unread) Start(string)       {}
func (unread) Write([]byte) error { return nil }

// TestRunningRequestsCostTheirBodies: a request that decodes holds its body once,
// and its tokens, of four bytes each, where the gateway has the tokenizer.
func TestRunningRequestsCostTheirBodies(t *testing.T) {
	t.Run("without a tokenizer", func(t *testing.T) { costOfRunning(t, nil) })
	t.Run("with one", func(t *testing.T) { costOfRunning(t, tokens.NewCache(tokens.Sim(), 1<<20)) })
}

func costOfRunning(t *testing.T, tokenizer *tokens.Cache) {
	const requests, size = 16, 1 << 20
	log := slog.New(slog.DiscardHandler)
	roster := pools.NewRoster(pools.Config{}, log)
	for id, role := range map[string]pools.Role{"p1": pools.Prefill, "d1": pools.Decode} {
		w := pools.Worker{ID: id, Incarnation: "i", Model: "m", Role: role, Engine: "vllm", Address: "http://10.0.0.1:1", BlockSize: 16}
		if err := roster.Put(w); err != nil {
			t.Fatal(err)
		}
	}
	base, cfg := router.DefaultConfig(), map[pools.Role]router.Config{}
	for _, role := range []pools.Role{pools.Prefill, pools.Decode, pools.Both} {
		cfg[role] = base.For(role)
	}
	set, err := router.NewSet(cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	net := holding{make(chan struct{})}
	f, err := New(Config{Queue: setting.Default[queue.Config]()}, Rooms{
		Roster: roster, Prefill: prefill.New(prefill.Config{}, roster, net), Decode: decode.New(decode.Config{}, roster, net),
		Transport: net, Routers: set, Tokenizer: func(string) *tokens.Cache { return tokenizer },
	}, unobserved{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	var running sync.WaitGroup
	body := `{"model":"m","stream":true,"max_tokens":9,"prompt":"` + strings.Repeat("hello world ", size/12) + `"}` // one, so that a cache is predicted once
	start := func() {
		r, err := openai.Limits{}.Scan(openai.Completions, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			_ = f.Serve(ctx, Call{ID: "x", Request: r, Arrival: time.Now()}, unread{}) // left by its client
		})
		<-net.held
	}
	start()
	before := liveBytes()
	for range requests {
		start()
	}
	each := (liveBytes() - before) / requests
	limit := int64(size * 5 / 4)
	if tokenizer != nil {
		limit += 4 * int64(len(tokenizer.Encode(nil, body)))
	}
	if each > limit {
		t.Errorf("a running request of %d bytes holds %d, want at most %d", size, each, limit)
	}
	leave()
	running.Wait()
	if err := f.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// liveBytes is the heap in use without pooled buffers, which two collections empty.
func liveBytes() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func BenchmarkLegs(b *testing.B) {
	for _, size := range []struct {
		name  string
		bytes int
	}{{"600B", 600}, {"1MiB", 1 << 20}} {
		b.Run(size.name, func(b *testing.B) {
			make := legsOf(b, size.bytes)
			b.ReportAllocs()
			for b.Loop() {
				make()
			}
		})
	}
}
