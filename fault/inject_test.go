package fault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/pools"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// worker is a transport that answers every call alike and counts the streams
// that were opened and closed.
type worker struct {
	contentType, body string
	err               error
	calls, closed     atomic.Int64
}

func (w *worker) Call(_ context.Context, leg http1.Leg) (http1.Stream, error) {
	if w.err != nil {
		return nil, w.err
	}
	w.calls.Add(1)
	return &scripted{worker: w, Reader: strings.NewReader(w.body), id: leg.RequestID}, nil
}

type scripted struct {
	io.Reader
	worker *worker
	id     string
}

func (s *scripted) Status() int         { return 200 }
func (s *scripted) ContentType() string { return s.worker.contentType }
func (s *scripted) Close() error        { s.worker.closed.Add(1); return nil }

const (
	streamed = "data: {\"n\":1}\n\ndata: {\"n\":2}\r\n\r\ndata: {\"n\":3}\n\ndata: [DONE]\n\n"
	handOff  = `{"choices":[],"kv_transfer_params":{"remote_engine_id":"e","remote_request_id":"r","remote_block_ids":[[1,2]],` +
		`"remote_host":"h","remote_port":7,"expiry":12345678901234567890}}`
)

func streamer() *worker {
	return &worker{contentType: "text/event-stream; charset=utf-8", body: streamed}
}

func decodeLeg(i int) http1.Leg {
	return http1.Leg{
		Purpose: string(pools.Decode), Worker: "decode-1", RequestID: fmt.Sprintf("%08x-%d", i, 1+i%3), Stream: true,
		Body: http1.Body{[]byte(`{"prompt":"x","kv_transfer_params":{}}`)},
	}
}

func prefillLeg(i int) http1.Leg {
	leg := decodeLeg(i)
	leg.Purpose, leg.Worker, leg.Stream = string(pools.Prefill), "prefill-1", false
	return leg
}

// sample is a valid rule for a fault, which ends by itself.
func sample(t *testing.T, f Registered) Rule {
	t.Helper()
	r := Rule{Fault: f.Name, Probability: 1}
	set := map[string]func(){
		"after_events": func() { r.AfterEvents = 1 }, "after_bytes": func() { r.AfterBytes = 5 }, "delay": func() { r.Delay = 3 * time.Second },
		"status": func() { r.Status = 502 }, "rate": func() { r.Rate = 10 },
	}
	for _, field := range f.uses {
		require.Contains(t, set, field, f.Name)
		set[field]()
	}
	return r
}

// A fault is one file, named for it, with a line of help; its rule is checked
// and armed.
func TestRegistry(t *testing.T) {
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	var files, names []string
	for _, e := range entries {
		if name, ok := strings.CutPrefix(e.Name(), "fault_"); ok && !strings.HasSuffix(name, "_test.go") {
			files = append(files, strings.TrimSuffix(name, ".go"))
		}
	}
	for _, f := range Faults() {
		names = append(names, f.Name)
		assert.True(t, f.Help != "" && !strings.Contains(f.Help, "\n"), "%s: help is not one line: %q", f.Name, f.Help)
		rule := sample(t, f)
		_, err := rule.check()
		assert.NoError(t, err, f.Name)
	}
	assert.True(t, slices.Equal(files, names), "files are %q, faults %q", files, names)
	assert.NotEmpty(t, names, "no fault is registered")
}

// hits says which of n calls the scenario hits, calling in the given order.
func hits(s Scenario, n int, order []int) []bool {
	hit := make([]bool, n)
	for _, i := range order {
		s.OnHit = func(http1.Leg, string) { hit[i] = true }
		if stream, err := Inject(streamer(), &s).Call(context.Background(), decodeLeg(i)); err == nil {
			_ = stream.Close()
		}
	}
	return hit
}

// What is hit follows from seed and call: never from the order, and as often
// as the probability says.
func TestTheSameCallsAreHit(t *testing.T) {
	const n = 4000
	forth := make([]int, n)
	for i := range forth {
		forth[i] = i
	}
	back := slices.Clone(forth)
	slices.Reverse(back)
	rules := []Rule{{Fault: "refuse", Probability: .3}}
	first := hits(Scenario{Seed: 1, Rules: rules}, n, forth)
	assert.Equal(t, first, hits(Scenario{Seed: 1, Rules: rules}, n, back), "in another order")
	assert.NotEqual(t, first, hits(Scenario{Seed: 2, Rules: rules}, n, forth), "with another seed")
	share := func(hit []bool) float64 {
		return float64(n-len(slices.DeleteFunc(slices.Clone(hit), func(h bool) bool { return h }))) / n
	}
	assert.InDelta(t, .3, share(first), .03) // 4 standard deviations are 0.029
	// Two rules throw coins of their own: .5 and .5 of the rest hit three quarters.
	two := []Rule{{Fault: "refuse", Probability: .5}, {Fault: "wrong_status", Probability: .5}}
	assert.InDelta(t, .75, share(hits(Scenario{Seed: 1, Rules: two}, n, forth)), .03)
}

func TestRulesChooseTheirCalls(t *testing.T) {
	for _, c := range []struct {
		name string
		rule Rule
		hit  bool
	}{
		{"any", Rule{Fault: "refuse"}, true},
		{"its kind", Rule{Fault: "refuse", Leg: string(pools.Decode)}, true},
		{"another kind", Rule{Fault: "refuse", Leg: Release}, false},
		{"its worker", Rule{Fault: "refuse", Worker: "decode-*"}, true},
		{"another worker", Rule{Fault: "refuse", Worker: "prefill-?"}, false},
		{"its place", Rule{Fault: "refuse", Where: "*/decode-1"}, true},
		{"another place", Rule{Fault: "refuse", Where: "prefill/*"}, false},
		{"a kind that the fault cannot befall", Rule{Fault: "lost_handoff"}, false},
	} {
		c.rule.Probability = 1
		hit := hits(Scenario{Rules: []Rule{c.rule}}, 2, []int{1})
		assert.Equal(t, []bool{false, c.hit}, hit, c.name)
	}
	w := streamer()
	assert.True(t, Inject(w, nil) == http1.Transport(w) && Inject(w, &Scenario{Seed: 3}) == http1.Transport(w),
		"a scenario without rules stands in the way")
}

// Whatever a fault does with a call, closing its stream closes the worker's,
// once, read or not; no goroutine is left waiting (TestMain); its error is of the
// transport's type.
func TestEveryFaultClosesTheWorkersStream(t *testing.T) {
	for _, f := range Faults() {
		for _, leg := range []http1.Leg{decodeLeg(7), prefillLeg(7)} {
			for _, read := range []bool{false, true} {
				bubble(t, fmt.Sprintf("%s/%s/read=%v", f.Name, leg.Purpose, read), func(t *testing.T) {
					w := streamer()
					if leg.Purpose == string(pools.Prefill) {
						w = &worker{contentType: "application/json", body: handOff}
					}
					s, err := always(w, sample(t, f)).Call(t.Context(), leg)
					if err == nil && read {
						_, err = io.Copy(io.Discard, io.LimitReader(s, 1<<20)) // one of them has no end
					}
					var failed *http1.Error
					assert.True(t, err == nil || errors.As(err, &failed) && failed.Worker == leg.Worker,
						"%v is no *upstream.Error of the worker", err)
					if s != nil {
						assert.NoError(t, s.Close())
					}
					assert.Equal(t, w.calls.Load(), w.closed.Load(), "streams closed, of those opened")
				})
			}
		}
	}
}

// A worker that fails by itself fails as before.
func TestFaultsKeepTheWorkersOwnError(t *testing.T) {
	own := &http1.Error{Worker: "decode-1", Op: http1.OpDial, Err: errors.New("own")}
	for _, name := range []string{"reset", "stall", "truncate", "garble"} {
		s, err := always(&worker{err: own}, Rule{Fault: name}).Call(t.Context(), decodeLeg(1))
		assert.ErrorIs(t, err, own, name)
		assert.Nil(t, s, name)
	}
}

// What each fault makes of an answer, read in whole and byte by byte.
func TestFaults(t *testing.T) {
	const first, second = "data: {\"n\":1}\n\n", "data: {\"n\":2}\r\n\r\n"
	whole, small := &worker{contentType: "application/json", body: handOff},
		&worker{contentType: "application/json", body: `{"choices":[{"a":[]}]}`}
	for _, c := range []struct {
		name   string
		rule   Rule
		worker *worker
		leg    http1.Leg
		want   string // what arrives
		status int
		class  Class // of the call's error or the reading's
		calls  int64 // that the worker saw
	}{
		{"refuse", Rule{Fault: "refuse"}, streamer(), decodeLeg(1), "", 0, Refused, 0},
		{"reset before the head", Rule{Fault: "reset"}, streamer(), decodeLeg(1), "", 0, Reset, 1},
		{"reset in the body", Rule{Fault: "reset", AfterBytes: 4}, streamer(), decodeLeg(1), "data", 200, Reset, 1},
		{"reset after the end", Rule{Fault: "reset", AfterBytes: 400}, streamer(), decodeLeg(1), streamed, 200, None, 1},
		{"truncate at once", Rule{Fault: "truncate"}, streamer(), decodeLeg(1), "", 200, None, 1},
		{"truncate", Rule{Fault: "truncate", AfterEvents: 1}, streamer(), decodeLeg(1), first, 200, None, 1},
		{"truncate at other line ends", Rule{Fault: "truncate", AfterEvents: 2}, streamer(), decodeLeg(1), first + second, 200, None, 1},
		{"truncate no stream", Rule{Fault: "truncate", AfterEvents: 9}, whole, prefillLeg(1), handOff[:wholeBytes], 200, None, 1},
		{"garble", Rule{Fault: "garble", AfterEvents: 2}, streamer(), decodeLeg(1),
			first + second + "data: #\"n\":3#\n\ndata: #DONE#\n\n", 200, None, 1},
		{"garble no stream", Rule{Fault: "garble"}, small, prefillLeg(1), `{"choices":[`[:wholeBytes] + `#"a":#####`, 200, None, 1},
		{"wrong status", Rule{Fault: "wrong_status", Status: 429}, streamer(), decodeLeg(1),
			`{"error":{"message":"injected status 429","type":"InjectedError","param":null,"code":429}}`, 429, None, 0},
		{"kv gone without a hand-off", Rule{Fault: "kv_gone"}, streamer(),
			http1.Leg{Purpose: string(pools.Decode), Body: http1.Body{[]byte(`{"prompt":"kv_transfer_params"}`)}}, streamed, 200, None, 1},
		{"delay", Rule{Fault: "delay", Delay: time.Minute}, streamer(), decodeLeg(1), streamed, 200, None, 1},
		{"stall that ends", Rule{Fault: "stall", AfterEvents: 1, Delay: time.Minute}, streamer(), decodeLeg(1), streamed, 200, None, 1},
	} {
		for _, slow := range []bool{false, true} {
			bubble(t, fmt.Sprintf("%s/slow=%v", c.name, slow), func(t *testing.T) {
				before, start := c.worker.calls.Load(), time.Now()
				s, err := always(c.worker, c.rule).Call(t.Context(), c.leg)
				var got []byte
				status, class := 0, None
				if err == nil {
					defer s.Close()
					status = s.Status()
					var r io.Reader = s
					if slow {
						r = iotest.OneByteReader(s)
					}
					got, err = io.ReadAll(r)
				}
				if err != nil {
					class = Classify(err, 0)
				}
				assert.True(t, string(got) == c.want && status == c.status && class == c.class,
					"%q, status %d, %s; want %q, %d, %s", got, status, class, c.want, c.status, c.class)
				assert.Equal(t, c.calls, c.worker.calls.Load()-before, "calls that the worker saw")
				assert.Equal(t, c.rule.Delay, time.Since(start))
			})
		}
	}
}

// The three ways to be gone, drawn by the call: a status, or for a stream an
// error event too.
func TestKVGone(t *testing.T) {
	in := always(streamer(), Rule{Fault: "kv_gone"})
	seen := map[int]int{}
	for i := range 200 {
		leg := decodeLeg(i)
		leg.Stream = i%2 == 0
		s, err := in.Call(t.Context(), leg)
		require.NoError(t, err)
		body, _ := io.ReadAll(s)
		require.True(t, strings.Contains(string(body), `{"error":`) && (s.Status() != 200 || leg.Stream), "status %d: %s", s.Status(), body)
		seen[s.Status()]++
	}
	assert.True(t, seen[200] >= 25 && seen[500] >= 125 && seen[200]+seen[500] == 200, "statuses %v", seen)
}

// Each way to lose a hand-off comes up, none leaves a usable one, and what is
// left of the answer survives, 64-bit integers as well.
func TestLostHandoff(t *testing.T) {
	in := always(&worker{contentType: "application/json", body: handOff}, Rule{Fault: "lost_handoff"})
	seen := map[string]bool{}
	for i := range 100 {
		s, err := in.Call(t.Context(), prefillLeg(i))
		require.NoError(t, err)
		body, err := io.ReadAll(s)
		require.True(t, err == nil && s.Status() == 200 && strings.Contains(string(body), `"choices":[]`), "%v: %s", err, body)
		require.True(t, !strings.Contains(string(body), "remote_host") || strings.Contains(string(body), "12345678901234567890"),
			"an integer was lost: %s", body)
		seen[string(body)] = true
	}
	assert.Len(t, seen, 6, "kinds of answers")
	assert.NotContains(t, seen, handOff)
}

// A stall without end and a delay are ended by their call's context, whose cause they give, and a stall
// by Close from another goroutine, as a connection is.
func TestStallsAndDelaysEnd(t *testing.T) {
	cause := errors.New("the client left")
	for _, want := range []error{cause, errClosed} {
		bubble(t, want.Error(), func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			s, err := always(streamer(), Rule{Fault: "stall", AfterEvents: 2}).Call(ctx, decodeLeg(1))
			require.NoError(t, err)
			defer s.Close()
			ended := make(chan error, 1)
			go func() {
				got, err := io.ReadAll(s)
				assert.Equal(t, 2, strings.Count(string(got), "data:"), "events before the stall")
				ended <- err
			}()
			time.Sleep(time.Hour)
			require.Empty(t, ended, "ended by itself")
			if want == cause {
				cancel(cause)
			} else {
				_ = s.Close()
			}
			assert.ErrorIs(t, <-ended, want)
		})
	}
	bubble(t, "a delay", func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, cause)
		defer cancel()
		w := streamer()
		_, err := always(w, Rule{Fault: "delay", Delay: time.Minute}).Call(ctx, decodeLeg(1))
		assert.ErrorIs(t, err, cause)
		assert.Zero(t, w.calls.Load())
	})
}

func TestInjectPanicsOnAnInvalidScenario(t *testing.T) {
	assert.Panics(t, func() { Inject(streamer(), &Scenario{Rules: []Rule{{Fault: "refuse", Probability: 2}}}) })
}

// The last event before the cut comes again and again, until the call's context ends.
func TestEndlessTokens(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	s, err := always(streamer(), Rule{Fault: "endless_tokens"}).Call(ctx, decodeLeg(1))
	require.NoError(t, err)
	defer s.Close()
	got := make([]byte, 4<<10)
	_, err = io.ReadFull(s, got)
	require.NoError(t, err)
	events := strings.Split(strings.ReplaceAll(string(got), "\r", ""), "\n\n")
	require.True(t, len(events) >= 10 && events[1] != events[0], "%q", events)
	for _, e := range events[2 : len(events)-1] {
		require.Equal(t, events[1], strings.TrimLeft(e, "\n"))
	}
	cancel(ErrClientGone)
	_, err = s.Read(got)
	assert.ErrorIs(t, err, ErrClientGone)
}

// always is a transport that a fault befalls in every call.
func always(w *worker, rule Rule) http1.Transport {
	rule.Probability = 1
	return Inject(w, &Scenario{Rules: []Rule{rule}})
}
