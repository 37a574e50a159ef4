package handoff

import (
	"context"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
)

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
		return answered{strings.NewReader(`{"choices":[],"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":5600}}`)}, nil
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
func (unread) Last([]byte) error  { return nil }

// TestRunningRequestsCostTheirBodies: a request that decodes holds its body once,
// and its tokens, of four bytes each, where the gateway has the tokenizer.
func TestRunningRequestsCostTheirBodies(t *testing.T) {
	t.Run("without a tokenizer", func(t *testing.T) { costOfRunning(t, nil) })
	t.Run("with one", func(t *testing.T) { costOfRunning(t, models.Sim(1<<20)) })
}

// languages has the language of the model m, if there is one.
func languages(t *testing.T, m *models.Language) *models.Library {
	t.Helper()
	l, err := models.NewLibrary(models.Config{}, nil, nil, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	if m != nil {
		l.Put("m", m)
	}
	return l
}

func costOfRunning(t *testing.T, sim *models.Language) {
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
		Transport: net, Routers: set, Languages: languages(t, sim),
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
			_ = f.Serve(ctx, &Call{ID: "x", Request: r, Arrival: time.Now()}, unread{}) // left by its client
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
	if sim != nil {
		limit += 4 * int64(len(sim.Tokenizer().Encode(nil, body)))
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
