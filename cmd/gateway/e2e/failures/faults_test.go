package failures

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/pools"
)

// A dead prefill worker costs no answer, and leaves the choice at its
// first refused connection; with none left decode prefills for itself.
func TestPrefillWorkersDie(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		f := fleet.New(t, fleet.Options{})
		f.Workers["prefill-1"].Kill()
		for range 6 {
			p, _ := f.Served(f.Exact(fleet.Long, 6))
			require.Equal(t, "prefill-2", p)
		}
		assert.LessOrEqual(t, strings.Count(f.Logs.String(), "class=refused"), 1, "calls of the dead worker")
		f.Workers["prefill-2"].Kill()
		for range 3 {
			p, _ := f.Served(f.Exact(fleet.Long, 6))
			require.Empty(t, p, "who prefilled, with decode alone")
		}
		assert.Equal(t, http.StatusOK, f.Status("/health"), "/health while decode stands in")
		f.Idle()
	})
}

func TestDecodeFallbackOff(t *testing.T) {
	f := fleet.New(t, fleet.Options{Gateway: func(c *stack.GatewayConfig) { c.Flow.DecodeFallback = false }})
	f.Workers["prefill-1"].Kill()
	f.Workers["prefill-2"].Kill()
	a := f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 4))
	f.Refused(a, http.StatusServiceUnavailable, "no_worker", "")
	assert.Equal(t, http.StatusServiceUnavailable, f.Status("/health"), "/health")
	f.Idle()
}

// A decode worker that dies before the first byte is replaced, with the KV that
// is already staged where it never saw the request.
func TestDecodeWorkersDie(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		f := fleet.New(t, fleet.Options{})
		f.Workers["decode-1"].Kill()
		for range 6 {
			_, d := f.Served(f.Exact(fleet.Long, 4))
			require.Equal(t, "decode-2", d)
		}
		f.Workers["decode-2"].Kill()
		a := f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 4))
		if e := f.Parse(a.Body).Error; a.Status != http.StatusServiceUnavailable || e == nil || e.Code == nil {
			t.Errorf("status %d: %s", a.Status, a.Body)
		}
		f.Eventually("the bookings are zero", func() bool {
			return !strings.Contains(f.Books(), "booked")
		})
	})
}

// A prefill worker that accepts and answers nothing is left after prefill-timeout, and decode prefills.
func TestSilentPrefillWorker(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		const limit = time.Second
		f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1, Gateway: func(c *stack.GatewayConfig) { c.Prefill.Timeout = limit }})
		silent := fleet.Listen(t, 0)
		defer silent.Close()
		record := f.Workers["prefill-1"].Record()
		f.Gateway.Roster.Remove("prefill-1")
		record.ID, record.Address = "silent-1", "http://"+silent.Addr().String()
		f.Put(record)
		start := time.Now()
		a := f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 4))
		if p, d := f.Served(a); p != "" || d != "decode-1" {
			t.Errorf("served by %q and %q", p, d)
		}
		if took := time.Since(start); took < limit || took > limit+300*time.Millisecond {
			t.Errorf("took %v, of which prefill may have %v", took, limit)
		}
		assert.Contains(t, f.Logs.String(), "class=timeout", "no timeout in the log")
		f.Idle()
	})
}

// Clients that leave all at once free both workers, wherever their requests are.
func TestClientsLeave(t *testing.T) {
	for _, c := range []struct {
		phase   string
		options fleet.Options
		prompt  string
		there   func(f *fleet.Fleet) bool // every request has come to the phase
	}{
		{
			// Slow engines: a prefill that ends in the moment its client leaves hands over nothing by which
			// it could be released, and its blocks stay for the engine's lease.
			"queueing", fleet.Options{Speedup: .05, Worker: func(c *devfleet.WorkerConfig) { c.Engine.MaxNumSeqs = 1 }},
			strings.Repeat(fleet.Long, 10),
			func(f *fleet.Fleet) bool {
				return f.Gateway.Flow.Waiting()["tandem-sim"].Waiting >= fleet.Clients-2
			},
		},
		{
			"prefill", fleet.Options{Speedup: .005}, strings.Repeat(fleet.Long, 10),
			func(f *fleet.Fleet) bool { return f.Engines("prefill") == fleet.Clients },
		},
		{
			"prefill at decode", fleet.Options{Both: 2, Speedup: .005}, strings.Repeat(fleet.Long, 10),
			func(f *fleet.Fleet) bool { return f.Engines("both") == fleet.Clients },
		},
		{
			"transfer", fleet.Options{Speedup: 1,
				Worker: func(c *devfleet.WorkerConfig) { c.Engine.TransferSetup = fleet.Transfers / fleet.Clients }}, fleet.Long,
			func(f *fleet.Fleet) bool { return f.Transferring() > fleet.Clients/2 },
		},
		{
			"streaming", fleet.Options{Speedup: 1}, fleet.Long,
			func(f *fleet.Fleet) bool { return f.Started() >= fleet.Clients },
		},
	} {
		fleet.VirtualRun(t, c.phase, func(t *testing.T) {
			fleet.LeaveAtOnce(t, fleet.New(t, c.options), c.phase, c.prompt, c.there)
		})
	}
}

// TestLinksBreak: a worker whose connections are reset, or carry nothing any more, costs no answer: streams go on on
// the other decode worker, token for token, at once or after the limit for silence; prompts that prefill is not reached
// for are computed by decode.
func TestLinksBreak(t *testing.T) {
	const idle, prefill = 500 * time.Millisecond, time.Second
	for name, c := range map[string]struct {
		role   string
		silent bool
		wait   time.Duration // that the break costs at the least, and 300 ms more at the most
	}{
		"decode reset":   {"decode", false, 0},
		"decode silent":  {"decode", true, idle},
		"prefill reset":  {"prefill", false, 0},
		"prefill silent": {"prefill", true, prefill},
	} {
		fleet.VirtualRun(t, name, func(t *testing.T) {
			f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 2, Speedup: 2, Gateway: func(c *stack.GatewayConfig) {
				c.Decode.StreamIdleTimeout, c.Decode.FirstTokenTimeout, c.Prefill.Timeout = idle, idle, prefill
			}})
			cut := func(id string) {
				at, _ := url.Parse(f.Workers[id].Record().Address)
				fleet.NetworkOf(t).CutOff(at.Host, c.silent)
			}
			var silence time.Duration
			last, n := time.Now(), 0
			for i := range 4 {
				prompt := fmt.Sprint(i, fleet.Long)
				if last = time.Now(); i == 1 && c.role == "prefill" {
					cut("prefill-1")
				}
				a, err := f.Try(context.Background(), fleet.CompletionPath, fleet.Ask(prompt, 100), func(string) {
					silence, last = max(silence, time.Since(last)), time.Now()
					if n++; n == 30 && c.role == "decode" {
						cut(f.Generating())
					}
				})
				require.NoError(t, err)
				if got := f.Text(a); got != fleet.Answered(prompt, 100) || a.Events[len(a.Events)-1] != "[DONE]" {
					t.Errorf("answer %d is %q and ends with %q", i, got, a.Events[len(a.Events)-1])
				}
			}
			assert.True(t, silence >= c.wait && silence <= c.wait+300*time.Millisecond,
				"the longest silence is %v, the limit %v", silence, c.wait)
			f.Idle()
		})
	}
}

// injectedFleet is a fleet whose calls go wrong by a scenario.
type injectedFleet struct {
	*fleet.Fleet
	hits    atomic.Int64
	streams atomic.Int64 // workers' answers that are open
}

// newInjectedFleet starts a fleet of three and three, so that two failures of a request need not be its end. What
// cannot be freed by a call, such as the KV of a prefill whose answer was lost, ends with a lease; a second is long
// enough for every hand-off and short enough to wait for.
func newInjectedFleet(t *testing.T, rules ...fault.Rule) *injectedFleet {
	t.Helper()
	in := &injectedFleet{}
	scenario := &fault.Scenario{Seed: 7, Rules: rules, OnHit: func(http1.Leg, string) { in.hits.Add(1) }}
	in.Fleet = fleet.New(t, fleet.Options{
		Prefill: 3, Decode: 3,
		Worker: func(c *devfleet.WorkerConfig) { c.Engine.Lease = time.Second },
		Gateway: func(c *stack.GatewayConfig) {
			c.Prefill.Timeout = time.Second
			c.Decode = decode.Config{FirstTokenTimeout: time.Second, StreamIdleTimeout: time.Hour}
			c.Pools.DownFor = time.Millisecond // a refusal is by chance here, and the next call need not be
			c.WrapTransport = func(inner http1.Transport) http1.Transport {
				return fault.Inject(&counting{inner, &in.streams}, scenario)
			}
		},
	})
	return in
}

// counting is a transport that counts the answers which are open.
type counting struct {
	http1.Transport
	open *atomic.Int64
}

func (c *counting) Call(ctx context.Context, leg http1.Leg) (http1.Stream, error) {
	s, err := c.Transport.Call(ctx, leg)
	if err != nil {
		return nil, err
	}
	c.open.Add(1)
	return &counted{Stream: s, open: c.open}, nil
}

type counted struct {
	http1.Stream
	open *atomic.Int64
	once sync.Once
}

func (c *counted) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Stream.Close()
}

// settled checks what holds after any replay: nothing is booked, no engine
// holds anything, and every answer of a worker was closed.
func (f *injectedFleet) settled() {
	f.T.Helper()
	f.Idle()
	f.Eventually("every answer is closed", func() bool { return f.streams.Load() == 0 })
}

// Clients that leave decode workers which have fallen silent for good take everything with them.
func TestClientsLeaveStalledStreams(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		const clients = 20
		f := newInjectedFleet(t, fault.Rule{Fault: "stall", Probability: 1, Leg: string(pools.Decode), AfterEvents: 2})
		ctx, leave := context.WithCancel(context.Background())
		defer leave()
		var group sync.WaitGroup
		for i := range clients {
			group.Go(func() {
				_, err := f.Try(ctx, fleet.CompletionPath, fleet.Ask(fmt.Sprint(i, fleet.Long), 50), func(string) { f.First(i) })
				assert.ErrorIs(t, err, context.Canceled, "client %d", i)
			})
		}
		f.Eventually("every stream has begun", func() bool { return f.Started() == clients })
		leave()
		group.Wait()
		f.settled()
	})
}

// A client that takes nothing for far longer than a stream may be idle gets its whole answer in the end: that it holds
// the engine up is not the engine's silence.
func TestSlowClientIsNoSilentWorker(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		const idle, tokens = 500 * time.Millisecond, 30_000
		f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1, Speedup: 1000, Gateway: func(c *stack.GatewayConfig) {
			c.Decode = decode.Config{StreamIdleTimeout: idle}
			c.Edge.Heartbeat = 0
		}})
		// The engine is held up once it has generated tokens and has stopped before the end.
		held := func() string {
			b := f.Workers["decode-1"].Engine.Books()
			return fmt.Sprint(b.Running, b.Waiting, f.Books())
		}
		takesNothing := sync.OnceFunc(func() {
			for last, since := held(), time.Now(); time.Since(since) < 3*idle; {
				<-time.After(idle / 50)
				if now := held(); now != last {
					last, since = now, time.Now()
				}
			}
			assert.NotEmpty(t, f.Books(), "the answer was over before it was read: nothing was held up")
		})
		a, err := f.Try(context.Background(), fleet.CompletionPath, fleet.Ask("hello", tokens), func(string) { takesNothing() })
		assert.True(t, err == nil && a.Events[len(a.Events)-1] == "[DONE]" && f.Text(a) == fleet.Answered("hello", tokens),
			"%v: %d events are not the undisturbed answer", err, len(a.Events))
		f.Idle()
	})
}

// handsOver is a prefill worker's answer with a hand-off.
const handsOver = `{"choices":[{"index":0,"text":"x","finish_reason":"length"}],"kv_transfer_params":` +
	`{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"e","remote_request_id":"r","remote_host":"h",` +
	`"remote_port":5600,"remote_block_ids":[[1]]}}`

// A gateway that stops cuts what still runs at the end of its drain, and ends only
// when the KV that was staged for it has been released.
func TestReleasesAreAwaitedPastTheDrain(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		cfg := fleet.GatewayConfig()
		cfg.Drain = 50 * time.Millisecond
		f := fleet.Bare(t, cfg, stack.Links{}, slog.LevelInfo)
		f.URL = fleet.ListenAs(t, f.Gateway)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.Gateway.Run(ctx) }()

		decoding, releasing, letGo := make(chan struct{}), make(chan struct{}), make(chan struct{})
		var released atomic.Bool
		fleet.NewEngines(f, pools.Prefill, 1, fleet.Answers(handsOver))
		fleet.NewEngines(f, pools.Decode, 1, func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.Header.Get("X-Request-Id"), "-release") {
				close(decoding)
				<-r.Context().Done()
				return
			}
			close(releasing)
			<-letGo // an engine that takes its time, well past the drain
			released.Store(true)
			w.WriteHeader(http.StatusNotFound)
		})
		answered := make(chan fleet.Answer, 1)
		go func() {
			a, _ := f.Try(context.Background(), fleet.CompletionPath, fleet.Ask(fleet.Long, 4), nil) // cut, or with an error
			answered <- a
		}()
		<-decoding
		stop()
		<-releasing
		if a := <-answered; a.Status != 0 && a.Status != http.StatusServiceUnavailable {
			t.Errorf("status %d: %s", a.Status, a.Body)
		}
		select {
		case err := <-ended:
			t.Errorf("the gateway ended while a release was in flight: %v", err)
			ended <- err
		case <-time.After(4 * cfg.Drain):
		}
		close(letGo)
		if err := <-ended; err != nil || !released.Load() {
			t.Errorf("%v; released: %v", err, released.Load())
		}
		assert.NotContains(t, f.Logs.String(), "staged KV not released")
	})
}
