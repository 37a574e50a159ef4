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

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// meeting is a connector whose legs find each other by the round's id, called in an
// order of its own. What a failed round leaves is freed at both workers.
type meeting struct {
	order connector.Order
	ends  bool // every answer ends in prefill
}

func (m meeting) Plan(r connector.Round) (connector.Plan, error) {
	leg := func(w *pools.Worker, role pools.Role) http1.Leg {
		e := r.Request.Edit()
		e.SetString("room", r.ID)
		return http1.Leg{Purpose: string(role), Worker: w.ID, RequestID: r.ID, Body: http1.Body{e.Bytes()}}
	}
	return connector.Plan{Order: m.order, Prefill: leg(r.P, pools.Prefill), Decode: leg(r.D, pools.Decode)}, nil
}

func (meeting) Pairs(_, _ *pools.Worker) error { return nil }
func (m meeting) OnPrefill(r connector.Round, _ prefill.Answer, now time.Time) (kv prefill.KV, whole bool, err error) {
	return prefill.KV{Producer: r.P.ID, Expires: now.Add(time.Minute)}, m.ends, nil
}
func (meeting) Bind(*http1.Leg, prefill.KV) {}
func (meeting) Release(r connector.Round, _ prefill.KV) []http1.Leg {
	return []http1.Leg{{Purpose: fault.Release, Worker: r.D.ID, RequestID: r.ID}}
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

func (t *theatre) Call(ctx context.Context, leg http1.Leg) (http1.Stream, error) {
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
		return nil, broken(leg, context.Cause(ctx))
	}
	if do.err != nil {
		return nil, broken(leg, do.err)
	}
	return answer(200, do.body), nil
}

// playhouse is a flow over two workers of each role that hand over as the connector has it.
func playhouse(t *testing.T, hands meeting, play *theatre) *house {
	t.Helper()
	play.calls = map[string]int{}
	workers := map[string]pools.Role{"p1": pools.Prefill, "p2": pools.Prefill, "d1": pools.Decode, "d2": pools.Decode}
	return build(t, workers, play, func(_ *Config, rooms *Rooms) {
		rooms.Between = func(_, _ *pools.Worker) (connector.Connector, error) { return hands, nil }
		rooms.Breakers = fault.NewBreakers(fault.BreakerConfig{})
	})
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
		order   connector.Order
		play    *theatre
		leaves  time.Duration // when the client leaves, 0 never
		want    []string      // what happens, in order
		frees   int           // calls that free what a failed round left
		took    time.Duration
		failed  fault.Class // None: answered
		reports int         // cached tokens that the client gets
	}{
		{"both at once", connector.Together, &theatre{prefill: []act{prompt}, decode: []act{good}}, 0,
			[]string{"decode called", "prefill called"}, 0, 2 * time.Second, fault.None, 3},
		{"decode first", connector.DecodeFirst, &theatre{prefill: []act{prompt}, decode: []act{good}}, 0,
			[]string{"decode called", "prefill called"}, 0, 2 * time.Second, fault.None, 3},
		{"prefill's answer trails", connector.Together, &theatre{prefill: []act{forever}, decode: []act{good}}, 0,
			[]string{"decode called", "prefill called", "prefill cut"}, 0, 2*time.Second + trailing, fault.None, 0},
		{"prefill fails, then another serves", connector.Together, &theatre{prefill: []act{{after: time.Second, err: io.EOF}, prompt},
			decode: []act{forever, good}}, 0,
			[]string{"decode called", "prefill called", "decode cut", "decode called", "prefill called"}, 1, 3 * time.Second, fault.None, 3},
		{"decode fails, then both again", connector.Together, &theatre{prefill: []act{forever, prompt},
			decode: []act{{after: time.Second, err: io.EOF}, good}}, 0,
			[]string{"decode called", "prefill called", "prefill cut", "decode called", "prefill called"}, 1, 3 * time.Second, fault.None, 3},
		{"decode is never sent", connector.DecodeFirst,
			&theatre{prefill: []act{prompt}, decode: []act{{after: time.Second, err: io.EOF, mute: true}, good}}, 0,
			[]string{"decode called", "decode called", "prefill called"}, 1, 3 * time.Second, fault.None, 3},
		{"the client's own mistake", connector.Together,
			&theatre{prefill: []act{{after: time.Second, body: `{"error":{"message":"no","code":400}}`}}, decode: []act{forever}}, 0,
			[]string{"decode called", "prefill called", "decode cut"}, 1, time.Second, fault.Rejected, 0},
		{"the client leaves", connector.DecodeFirst, &theatre{prefill: []act{forever}, decode: []act{forever}}, time.Second,
			[]string{"decode called", "prefill called", "decode cut", "prefill cut"}, 1, time.Second, fault.ClientGone, 0},
	} {
		bubble(t, c.name, func(t *testing.T) {
			h := playhouse(t, meeting{order: c.order}, c.play)
			ctx, leave := context.WithCancelCause(t.Context())
			defer leave(nil)
			if c.leaves > 0 {
				time.AfterFunc(c.leaves, func() { leave(fault.ErrClientGone) })
			}
			out := &written{}
			took, err := h.serve(ctx, t, "", out)
			assert.Equal(t, c.took, took)
			assert.True(t, (err == nil) == (c.failed == fault.None) && (c.failed != fault.ClientGone || errors.Is(err, fault.ErrClientGone)),
				"%v, want %v", err, c.failed)
			if err == nil {
				assert.Equal(t, c.reports, openai.Inspect([]byte(out.String())).CachedTokens, "cached tokens that are reported")
			}
			assert.Equal(t, inPairs(c.want), inPairs(c.play.events))
			assert.Equal(t, c.frees, c.play.calls[fault.Release], "calls that free what is left")
			if c.order == connector.DecodeFirst {
				assert.NotEqual(t, "prefill called", c.play.events[0])
			}
		})
	}
}

// An answer that is complete in prefill reaches the client as it asked for it; decode is not called, its booking and
// permit are given back, and its circuit learns nothing.
func TestPrefillsAnswerMayBeTheWholeOne(t *testing.T) {
	const used = `"usage":{"prompt_tokens":1,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":3}}}`
	const whole = `{"object":"text_completion","choices":[{"index":0,"text":"hi","finish_reason":"stop"}],` + used
	const event = `data: {"object":"text_completion","choices":`
	const streamed = event + `[{"index":0,"text":"hi","finish_reason":null}]}` + "\n\n" + event +
		`[{"index":0,"text":"","finish_reason":"stop"}]}` + "\n\n"
	for more, want := range map[string]string{
		``:               whole,
		`,"stream":true`: streamed + "data: [DONE]\n\n",
		`,"stream":true,"stream_options":{"include_usage":true}`: streamed + event + `[],` + used + "\n\ndata: [DONE]\n\n",
	} {
		synctest.Test(t, func(t *testing.T) {
			play, out := &theatre{prefill: []act{{after: time.Second, body: whole}}, decode: []act{{after: time.Hour}}}, &written{}
			h := playhouse(t, meeting{order: connector.PrefillFirst, ends: true}, play)
			_, err := h.serve(t.Context(), t, more, out)
			assert.NoError(t, err)
			assert.Equal(t, want, out.String())
			assert.Equal(t, []string{"prefill called"}, play.events)
		})
	}
}

// A decode worker that has answered has had the KV, also where the answer has no token: nothing is released after it.
func TestAnEmptyAnswerTakesTheKV(t *testing.T) {
	const ended = `{"choices":[{"index":0,"text":"","finish_reason":"stop"}]}`
	for more, body := range map[string]string{``: ended, `,"stream":true`: "data: " + ended + "\n\ndata: [DONE]\n\n"} {
		synctest.Test(t, func(t *testing.T) {
			play := &theatre{prefill: []act{{body: `{"choices":[{"text":"x"}]}`}}, decode: []act{{body: body}}}
			h := playhouse(t, meeting{order: connector.PrefillFirst}, play)
			_, err := h.serve(t.Context(), t, more, &written{})
			assert.NoError(t, err)
			assert.Equal(t, []string{"prefill called", "decode called"}, play.events)
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
