package handoff

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
)

// meeting is a connector whose legs find each other by the round's id, called in an
// order of its own. What a failed round leaves is freed at both workers.
type meeting struct {
	order connector.Order
	ends  bool // every answer ends in prefill
}

func (m meeting) Plan(r connector.Round) (connector.Plan, error) {
	leg := func(w *pools.Worker, role pools.Role) upstream.Leg {
		e := r.Request.Edit()
		e.SetString("room", r.ID)
		return upstream.Leg{Purpose: string(role), Worker: w.ID, RequestID: r.ID, Body: upstream.Body{e.Bytes()}}
	}
	return connector.Plan{Order: m.order, Prefill: leg(r.P, pools.Prefill), Decode: leg(r.D, pools.Decode)}, nil
}

func (meeting) Pairs(_, _ *pools.Worker) error { return nil }
func (m meeting) OnPrefill(r connector.Round, _ prefill.Answer, now time.Time) (kv prefill.KV, whole bool, err error) {
	return prefill.KV{Producer: r.P.ID, Expires: now.Add(time.Minute)}, m.ends, nil
}
func (meeting) Bind(*upstream.Leg, prefill.KV) {}
func (meeting) Abandon(r connector.Round, _ prefill.KV) []upstream.Leg {
	return []upstream.Leg{{Purpose: fault.Release, Worker: r.D.ID, RequestID: r.ID}}
}

// theatre is a Transport whose engines follow a script: what each purpose's calls do,
// in turn. It notes what happens.
type theatre struct {
	prefill, decode []act

	mu     sync.Mutex
	calls  map[string]int
	events []string
}

// act is what one call does: after a while it answers, breaks, or waits for its end.
type act struct {
	after time.Duration
	body  string
	err   error // instead of an answer
	mute  bool  // it is never sent
}

func (t *theatre) note(event string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.events = append(t.events, event)
}

func (t *theatre) Call(ctx context.Context, leg upstream.Leg) (upstream.Stream, error) {
	t.note(leg.Purpose + " called")
	script := map[string][]act{"prefill": t.prefill, "decode": t.decode, fault.Release: {{body: "{}"}}}[leg.Purpose]
	t.mu.Lock()
	do := script[min(t.calls[leg.Purpose], len(script)-1)]
	t.calls[leg.Purpose]++
	t.mu.Unlock()
	if leg.Sent != nil && !do.mute {
		leg.Sent()
	}
	select {
	case <-time.After(do.after):
	case <-ctx.Done():
		t.note(leg.Purpose + " cut")
		return nil, &upstream.Error{Worker: leg.Worker, Op: upstream.OpHead, Err: context.Cause(ctx)}
	}
	if do.err != nil {
		return nil, &upstream.Error{Worker: leg.Worker, Op: upstream.OpHead, Err: do.err}
	}
	return answered{strings.NewReader(do.body)}, nil
}

// playhouse is a flow over two workers of each role whose engine is the connector's.
func playhouse(t *testing.T, engine string, play *theatre) (*Flow, *router.Set, *pools.Roster) {
	t.Helper()
	roster := rosterOf(t, engine, map[string]pools.Role{"p1": pools.Prefill, "p2": pools.Prefill, "d1": pools.Decode, "d2": pools.Decode})
	set := routers(t)
	play.calls = map[string]int{}
	f, err := New(Config{DecodeFallback: true, Queue: setting.Default[queue.Config]()}, Rooms{
		Roster: roster, Prefill: prefill.New(prefill.Config{}, roster, play), Decode: decode.New(decode.Config{}, roster, play),
		Between: func(p, _ *pools.Worker) (connector.Connector, error) {
			return meeting{
				order: map[string]connector.Order{
					"sglang": connector.Together, "trtllm": connector.DecodeFirst, "vllm": connector.PrefillFirst, "sim": connector.PrefillFirst,
				}[p.Engine],
				ends: p.Engine == "vllm",
			}, nil
		},
		Breakers: fault.NewBreakers(fault.BreakerConfig{}), Transport: play, Routers: set, Languages: languages(t, nil),
	}, unobserved{})
	if err != nil {
		t.Fatal(err)
	}
	return f, set, roster
}

// Both legs of a round run at the same time and are one unit: the first failure ends
// the other leg, what engines may still hold is freed once, and the next round begins
// with nothing of this one but decode's booking.
func TestLegsOfOneRound(t *testing.T) {
	const whole = `{"choices":[{"text":"hi","finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":9}}}`
	const cached = `{"choices":[{"text":"x"}],"usage":{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":3}}}`
	good, prompt := act{after: 2 * time.Second, body: whole}, act{after: time.Second, body: cached}
	forever := act{after: time.Hour}
	for _, c := range []struct {
		name    string
		engine  string
		play    *theatre
		leaves  time.Duration // when the client leaves, 0 never
		want    []string      // what happens, in order
		frees   int           // calls that free what a failed round left
		took    time.Duration
		failed  fault.Class // None: answered
		reports int         // cached tokens that the client gets
	}{
		{"both at once", "sglang", &theatre{prefill: []act{prompt}, decode: []act{good}}, 0,
			[]string{"decode called", "prefill called"}, 0, 2 * time.Second, fault.None, 3},
		{"decode first", "trtllm", &theatre{prefill: []act{prompt}, decode: []act{good}}, 0,
			[]string{"decode called", "prefill called"}, 0, 2 * time.Second, fault.None, 3},
		{"prefill's answer trails", "sglang", &theatre{prefill: []act{forever}, decode: []act{good}}, 0,
			[]string{"decode called", "prefill called", "prefill cut"}, 0, 2*time.Second + trailing, fault.None, 0},
		{"prefill fails, then another serves", "sglang", &theatre{prefill: []act{{after: time.Second, err: io.EOF}, prompt}, decode: []act{forever, good}}, 0,
			[]string{"decode called", "prefill called", "decode cut", "decode called", "prefill called"}, 1, 3 * time.Second, fault.None, 3},
		{"decode fails, then both again", "sglang", &theatre{prefill: []act{forever, prompt}, decode: []act{{after: time.Second, err: io.EOF}, good}}, 0,
			[]string{"decode called", "prefill called", "prefill cut", "decode called", "prefill called"}, 1, 3 * time.Second, fault.None, 3},
		{"decode is never sent", "trtllm", &theatre{prefill: []act{prompt}, decode: []act{{after: time.Second, err: io.EOF, mute: true}, good}}, 0,
			[]string{"decode called", "decode called", "prefill called"}, 1, 3 * time.Second, fault.None, 3},
		{"the client's own mistake", "sglang", &theatre{prefill: []act{{after: time.Second, body: `{"error":{"message":"no","code":400}}`}}, decode: []act{forever}}, 0,
			[]string{"decode called", "prefill called", "decode cut"}, 1, time.Second, fault.Rejected, 0},
		{"the client leaves", "trtllm", &theatre{prefill: []act{forever}, decode: []act{forever}}, time.Second,
			[]string{"decode called", "prefill called", "decode cut", "prefill cut"}, 1, time.Second, fault.ClientGone, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, set, roster := playhouse(t, c.engine, c.play)
				ctx, leave := context.WithCancelCause(t.Context())
				defer leave(nil)
				if c.leaves > 0 {
					time.AfterFunc(c.leaves, func() { leave(fault.ErrClientGone) })
				}
				out, began := &written{}, time.Now()
				err := f.Serve(ctx, &Call{ID: "x", Request: scanned(t, openai.Completions, `{"model":"m","prompt":"hi"}`), Arrival: began}, out)
				if took := time.Since(began); took != c.took {
					t.Errorf("it took %v, want %v", took, c.took)
				}
				if (err == nil) != (c.failed == fault.None) || c.failed == fault.ClientGone && !errors.Is(err, fault.ErrClientGone) {
					t.Errorf("%v, want %v", err, c.failed)
				}
				if info := openai.Inspect(out.Bytes()); err == nil && info.CachedTokens != c.reports {
					t.Errorf("%d cached tokens are reported, want %d: %s", info.CachedTokens, c.reports, out.Bytes())
				}
				if err := f.Close(t.Context()); err != nil {
					t.Error(err)
				}
				if got, want := inPairs(c.play.events), inPairs(c.want); !slices.Equal(got, want) {
					t.Errorf("happened %q\nwant %q", got, want)
				}
				if n := c.play.calls[fault.Release]; n != c.frees {
					t.Errorf("%d calls free what is left, want %d", n, c.frees)
				}
				if i := slices.Index(c.play.events, "prefill called"); c.engine == "trtllm" && i == 0 {
					t.Error("prefill was called before decode")
				}
				for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
					for _, l := range set.For("m", role).Loads(roster.Snapshot("m", role)) {
						if l.Requests != 0 || l.ActiveBlocks != 0 || l.PrefillTokens != 0 {
							t.Errorf("booked at the end: %+v", l)
						}
					}
				}
			})
		})
	}
}

// An answer that is complete in prefill reaches the client as it asked for it; decode is not called, its booking and
// permit are given back, and its circuit learns nothing.
func TestPrefillsAnswerMayBeTheWholeOne(t *testing.T) {
	const whole = `{"object":"text_completion","choices":[{"index":0,"text":"hi","finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":3}}}`
	const event = `data: {"object":"text_completion","choices":`
	for more, want := range map[string]string{
		``:               whole,
		`,"stream":true`: event + `[{"index":0,"text":"hi","finish_reason":null}]}` + "\n\n" + event + `[{"index":0,"text":"","finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n",
		`,"stream":true,"stream_options":{"include_usage":true}`: event + `[{"index":0,"text":"hi","finish_reason":null}]}` + "\n\n" + event + `[{"index":0,"text":"","finish_reason":"stop"}]}` + "\n\n" +
			event + `[],"usage":{"prompt_tokens":1,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":3}}}` + "\n\ndata: [DONE]\n\n",
	} {
		synctest.Test(t, func(t *testing.T) {
			play := &theatre{prefill: []act{{after: time.Second, body: whole}}, decode: []act{{after: time.Hour}}}
			f, set, roster := playhouse(t, "vllm", play)
			out := &written{}
			err := f.Serve(t.Context(), &Call{ID: "x", Request: scanned(t, openai.Completions, `{"model":"m","prompt":"hi"`+more+`}`), Arrival: time.Now()}, out)
			if err != nil || out.String() != want {
				t.Errorf("%s: %v\n got %s\nwant %s", more, err, out, want)
			}
			if err := f.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if !slices.Equal(play.events, []string{"prefill called"}) {
				t.Errorf("%s: happened %q", more, play.events)
			}
			for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
				for _, l := range set.For("m", role).Loads(roster.Snapshot("m", role)) {
					if l.Requests != 0 || l.ActiveBlocks != 0 || l.PrefillTokens != 0 {
						t.Errorf("booked at the end: %+v", l)
					}
				}
			}
		})
	}
}

// A decode worker that has answered has had the KV, also where the answer has no token: nothing is released after it.
func TestAnEmptyAnswerTakesTheKV(t *testing.T) {
	for more, body := range map[string]string{
		``:               `{"choices":[{"index":0,"text":"","finish_reason":"stop"}]}`,
		`,"stream":true`: `data: {"choices":[{"index":0,"text":"","finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n",
	} {
		synctest.Test(t, func(t *testing.T) {
			play := &theatre{prefill: []act{{body: `{"choices":[{"text":"x"}]}`}}, decode: []act{{body: body}}}
			f, _, _ := playhouse(t, "sim", play)
			if err := f.Serve(t.Context(), &Call{ID: "x", Request: scanned(t, openai.Completions, `{"model":"m","prompt":"hi"`+more+`}`), Arrival: time.Now()}, &written{}); err != nil {
				t.Error(err)
			}
			if err := f.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if !slices.Equal(play.events, []string{"prefill called", "decode called"}) {
				t.Errorf("%s: happened %q", more, play.events)
			}
		})
	}
}

// inPairs sorts neighbours that happen at the same moment: two calls or two cuts.
// Releases, which happen at any later time, are left out.
func inPairs(events []string) []string {
	out := slices.DeleteFunc(slices.Clone(events), func(e string) bool { return strings.HasPrefix(e, fault.Release) })
	for i := 0; i+1 < len(out); i++ {
		if strings.HasSuffix(out[i], "called") == strings.HasSuffix(out[i+1], "called") && out[i] > out[i+1] {
			out[i], out[i+1] = out[i+1], out[i]
		}
	}
	return out
}

// written is a Sink that keeps the answer.
type written struct{ strings.Builder }

func (w *written) Start(string)  {}
func (w *written) Bytes() []byte { return []byte(w.String()) }
func (w *written) Write(p []byte) error {
	w.Builder.Write(p)
	return nil
}

func (w *written) Last(p []byte) error { return w.Write(p) }

func scanned(t *testing.T, ep openai.Endpoint, body string) *openai.Request {
	t.Helper()
	r, err := openai.Limits{}.Scan(ep, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return r
}
