package handoff

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/lab/testkit"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/placement"
)

// unobserved observes nothing.
type unobserved struct{}

var _ Observer = unobserved{}

func (unobserved) Arrived(*Record)                             {}
func (unobserved) Understood(*Record)                          {}
func (unobserved) Queued(*Record, int)                         {}
func (unobserved) Granted(*Record, error)                      {}
func (unobserved) LegStarted(*Record, Leg) func(time.Duration) { return nil }
func (unobserved) FirstToken(*Record, Leg)                     {}
func (unobserved) LegEnded(*Record, Leg)                       {}
func (unobserved) Failed(*Record, *fault.Error, Action)        {}
func (unobserved) Ended(*Record, error)                        {}
func (unobserved) Released(prefill.KV, string, error)          {}
func (unobserved) Warmed(string, string)                       {}

// nowhere is a Transport that is not called.
type nowhere struct{}

func (nowhere) Call(context.Context, http1.Leg) (http1.Stream, error) {
	return nil, errors.New("called")
}

// answered is an engine's answer.
type answered struct {
	*strings.Reader
	status int
	kind   string
}

func (a answered) Status() int         { return a.status }
func (a answered) ContentType() string { return a.kind }
func (a answered) Close() error        { return nil }

// answer is one of JSON.
func answer(status int, body string) answered {
	return answered{strings.NewReader(body), status, "application/json"}
}

// broken is a call that ended with err before its answer began.
func broken(leg http1.Leg, err error) error {
	return &http1.Error{Worker: leg.Worker, Op: http1.OpHead, Err: err}
}

// written is a Sink that keeps the answer.
type written struct {
	testkit.Waits
	strings.Builder
}

func (w *written) Write(p []byte) error {
	w.Builder.Write(p)
	return nil
}
func (w *written) Last(p []byte) error { return w.Write(p) }

// house is a flow whose circuits open for openFor at the first failure.
type house struct {
	*Flow
	breakers *fault.Breakers
}

const openFor = time.Second

var (
	oneOfEach = map[string]pools.Role{"p1": pools.Prefill, "d1": pools.Decode}
	twoDecode = map[string]pools.Role{"p1": pools.Prefill, "d1": pools.Decode, "d2": pools.Decode}
	both      = []pools.Role{pools.Prefill, pools.Decode}
)

// build makes a house of these workers, which are called through net.
func build(t *testing.T, workers map[string]pools.Role, net http1.Transport, more func(*Config, *Rooms)) *house {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	roster := pools.NewRoster(pools.Config{}, log)
	for id, role := range workers {
		require.NoError(t, roster.Put(pools.Worker{
			ID: id, Incarnation: "i", Model: "m", Role: role, Engine: "vllm", Address: "http://h:1", BlockSize: 16,
		}))
	}
	set, err := router.NewSet(router.DefaultConfig().ByRole(), log)
	require.NoError(t, err)
	h := &house{breakers: fault.NewBreakers(fault.BreakerConfig{Consecutive: 1, OpenFor: openFor})}
	cfg := Config{DecodeFallback: true, Queue: setting.Default[queue.Config]()}
	rooms := Rooms{
		Roster: roster, Prefill: prefill.New(prefill.Config{}, roster, net), Decode: decode.New(decode.Config{}, roster, net),
		Breakers: h.breakers, Transport: net, Routers: set, Languages: languages(t, nil),
	}
	if more != nil {
		more(&cfg, &rooms)
	}
	h.Flow, err = New(cfg, rooms, unobserved{})
	require.NoError(t, err)
	return h
}

// newHouse is a house whose workers are only chosen, never called.
func newHouse(t *testing.T, fallback bool, workers map[string]pools.Role) *house {
	t.Helper()
	return build(t, workers, nowhere{}, func(cfg *Config, _ *Rooms) { cfg.DecodeFallback = fallback })
}

// languages has the language of the model m, if there is one.
func languages(t *testing.T, m *models.Language) *models.Library {
	t.Helper()
	l, err := models.NewLibrary(models.Config{}, nil, nil, slog.New(slog.DiscardHandler), nil)
	require.NoError(t, err)
	if m != nil {
		l.Put("m", m)
	}
	return l
}

// change makes another of one of a house's workers.
func (h *house) change(t *testing.T, id string, change func(w *pools.Worker)) {
	t.Helper()
	m, ok := h.rooms.Roster.Lookup(id)
	require.True(t, ok, id)
	w := *m.Worker
	change(&w)
	require.NoError(t, h.rooms.Roster.Put(w))
}

func (h *house) drain(t *testing.T, id string) {
	t.Helper()
	require.NoError(t, h.rooms.Roster.Drain(id, true))
}

// open opens workers' circuits.
func (h *house) open(t *testing.T, leg pools.Role, workers ...string) {
	t.Helper()
	for _, w := range workers {
		end, err := h.breakers.Acquire(w, "i", leg, "", false)
		require.NoError(t, err)
		end(fault.Reset)
	}
}

// requestOf is a request as a flow begins it.
func requestOf(call Call, id string) *request {
	r := new(http1.Pool[request, *request]).Take()
	r.Record = Record{Call: call, ID: id}
	return r
}

func scanned(t *testing.T, ep openai.Endpoint, body string) *openai.Request {
	t.Helper()
	r, err := openai.Limits{}.Scan(ep, []byte(body))
	require.NoError(t, err)
	return r
}

// ask is a request that has been understood.
func (h *house) ask(tried ...string) *request {
	r := requestOf(Call{Request: &openai.Request{Model: "m", N: 1}}, h.ids.next())
	r.ISL, r.tried, r.card = 4, tried, models.Card{BlockSize: 16}
	return r
}

// reserve is the drain step of r.
func (h *house) reserve(r *request) (*placement.Placement, error) {
	g, err := h.Flow.reserve(h.nextAsk(r), queue.Drain[*placement.Ask]{}, time.Now())
	if err != nil {
		return nil, err
	}
	return &g, nil
}

// take is the placement of a request that gets one.
func (h *house) take(t *testing.T) *placement.Placement {
	t.Helper()
	g, err := h.reserve(h.ask())
	require.NoError(t, err)
	return g
}

// admitted is r once it has its workers.
func (h *house) admitted(t *testing.T, r *request) *request {
	t.Helper()
	require.NoError(t, h.admit(t.Context(), r))
	return r
}

// bookings are how many are open of prefill and of decode.
func (h *house) bookings() [2]int {
	return [2]int{h.rooms.Routers.For("m", pools.Prefill).Open(), h.rooms.Routers.For("m", pools.Decode).Open()}
}

// serve has a completion of more fields served, and waits until nothing of it is under way; took is without that wait.
func (h *house) serve(ctx context.Context, t *testing.T, more string, out Sink) (took time.Duration, err error) {
	t.Helper()
	request := scanned(t, openai.Completions, `{"model":"m","prompt":"hi"`+more+`}`)
	began := time.Now()
	err = h.Serve(ctx, &Call{ID: "x", Request: request, Arrival: began}, out)
	took = time.Since(began)
	require.NoError(t, h.Close(t.Context()))
	for _, role := range both {
		for _, l := range h.rooms.Routers.For("m", role).Loads(h.rooms.Roster.Snapshot("m", role)) {
			assert.Zero(t, [3]int{l.Requests, l.ActiveBlocks, l.PrefillTokens}, "booked at the end")
		}
	}
	return took, err
}

// bubble runs a subtest in virtual time.
func bubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}
