package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/cmd/gateway/problems"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/replica"
)

// consoleOf is a console of n prefill and n decode workers that are called by hand.
func consoleOf(t testing.TB, n int) (*Console, *pools.Roster) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	roster := pools.NewRoster(pools.Config{}, log)
	for i := range 2 * n {
		role := []pools.Role{pools.Prefill, pools.Decode}[i%2]
		w := pools.Worker{ID: fmt.Sprintf("%s-%02d", role, i/2+1), Model: "m", Role: role, Address: fmt.Sprintf("http://127.0.0.1:%d", 10_000+i),
			Engine: "vllm", Transfer: fmt.Sprintf("127.0.0.1:%d", 20_000+i), BlockSize: 16, TotalKVBlocks: 40_000, MaxNumSeqs: 256,
			ModelInput: "text"}
		require.NoError(t, roster.Put(w))
	}
	routers, err := router.NewSet(router.DefaultConfig().ByRole(), log)
	require.NoError(t, err)
	rooms := handoff.Rooms{Roster: roster, Routers: routers, Prefill: prefill.New(prefill.Config{}, roster, nil)}
	observer := observe.New(observe.Config{}, prometheus.NewRegistry(), log, nil)
	recorder := NewRecorder(deaf{})
	flow, err := handoff.New(handoff.Config{Queue: setting.Default[queue.Config]()}, rooms, recorder)
	require.NoError(t, err)
	_, journal := observe.Journaled(log)
	past := func(_ string, q url.Values) (any, *openai.Error) {
		r, param, err := observe.ParseRange(q, time.Now())
		if err != nil {
			return nil, openai.BadRequest(param, "%s", err)
		}
		return observe.EventsReport{Gateway: "gw", Events: journal.Events(r)}, nil
	}
	return New(Sources{Journal: journal, Past: past, Fleet: observe.NewFleet(rooms, observer), Flow: flow, Rooms: rooms,
		Streams: observer.Streams}, recorder), roster
}

// A worker that leaves its pool is shown as gone for a minute.
func TestGoneWorkers(t *testing.T) {
	c, roster := consoleOf(t, 2)
	now := time.Now()
	c.look(now, false)
	roster.Remove("decode-02")
	find := func(at time.Time) *worker {
		for _, p := range c.look(at, false).Models[0].Pools {
			for i := range p.Workers {
				if p.Workers[i].ID == "decode-02" {
					return &p.Workers[i]
				}
			}
		}
		return nil
	}
	if gone := find(now.Add(time.Second)); gone == nil || gone.Tone() != "bad" || gone.Word() != "gone" {
		t.Errorf("a second later it is %+v", gone)
	}
	assert.Nil(t, find(now.Add(goneFor+time.Second)), "it is shown for longer than a minute")
}

// The Fleet page lists the gateways of a group, and the stream updates them.
func TestOtherGateways(t *testing.T) {
	c, _ := consoleOf(t, 1)
	peers := []replica.Peer{
		{Name: "gw-b", State: "whole", Age: 100 * time.Millisecond, Requests: 12},
		{Name: "gw-c", State: "silent", Age: 900 * time.Millisecond, Requests: 0},
	}
	c.src.Peers, c.src.Name = func() []replica.Peer { return peers }, func() string { return "gw-a" }
	page := string(c.Page("/", "").Body)
	for _, part := range []string{
		"<h2>Gateways</h2>", `<th scope="row">gw-a</th><td data-live="g.gw-a.state">this gateway</td>`, `<th scope="row">gw-b</th><td data-live="g.gw-b.state">whole</td><td class="n" data-live="g.gw-b.age">0.1 s ago</td><td class="n" data-live="g.gw-b.requests">12</td>`,
		`<th scope="row">gw-c</th><td data-live="g.gw-c.state">silent</td>`,
	} {
		assert.Contains(t, page, part)
	}
	next, leave, _ := c.Watch()
	defer leave()
	events := make(chan message)
	go func() {
		for {
			raw, err := next(t.Context())
			var m message
			if data, _ := bytes.CutPrefix(raw, []byte("data: ")); err != nil || json.Unmarshal(data, &m) != nil {
				return
			}
			events <- m
		}
	}()
	c.advance(time.Now(), false)
	whole := <-events
	for key, want := range map[string]string{"g.gw-b.state": "whole", "g.gw-b.age": "0.1 s ago", "g.gw-b.requests": "12",
		"g.gw-c.state": "silent", "g.gw-c.requests": "0"} {
		assert.Equal(t, want, whole.Live[key], key)
	}
	peers = slices.Clone(peers)
	peers[0].Requests, peers[1].State = 15, "whole"
	c.advance(time.Now(), false)
	changed := <-events
	maps.DeleteFunc(changed.Live, func(key, _ string) bool { return !strings.HasPrefix(key, "g.") })
	assert.Equal(t, map[string]string{"g.gw-b.requests": "15", "g.gw-c.state": "whole"}, changed.Live, "what has changed")
	assert.Equal(t, whole.Revision["fleet"], changed.Revision["fleet"])
	peers = peers[:1]
	c.advance(time.Now(), false)
	assert.NotEqual(t, changed.Revision["fleet"], (<-events).Revision["fleet"], "a gateway that has left stays on the page")
	at := time.Now()
	report := problems.Report{At: at, Problems: []problems.Problem{{Kind: problems.PoolLimit, Reason: "3 wait", Since: at.Add(-150 * time.Second)}}}
	c.src.Problems = func() *problems.Report { return &report }
	for _, reason := range []string{"3 wait", "4 wait"} {
		report.Problems[0].Reason = reason
		c.advance(at, false)
		live := (<-events).Live
		assert.Contains(t, live["alarm"], reason)
		assert.Equal(t, "2 min", live["alarm.0"], "a new line comes without ages, so that they follow")
	}
	c.advance(at, false)
	assert.NotContains(t, (<-events).Live, "alarm.0", "neither has changed")
}

// BenchmarkTick is what a second of ten open pages costs, but for the system's part of the ten writes: 500 requests have
// ended since the one before, and 32 are drawn.
func BenchmarkTick(b *testing.B) {
	c, _ := consoleOf(b, 3)
	for range 10 {
		next, leave, _ := c.Watch()
		go func() {
			for {
				if _, err := next(b.Context()); err != nil {
					leave()
					return
				}
			}
		}()
	}
	n := 0
	for b.Loop() {
		b.StopTimer()
		for range 500 {
			n++
			serve(c.recorder, newRecord(n), 0, 0, 0, 0)
		}
		b.StartTimer()
		c.sample(time.Now())
		c.advance(time.Now(), true)
	}
}

// BenchmarkPage is a rendering of each page, which all viewers share.
func BenchmarkPage(b *testing.B) {
	c, _ := consoleOf(b, 3)
	for i := range 12_000 {
		serve(c.recorder, newRecord(i), 0, 0, 0, 0)
	}
	for _, tab := range tabs {
		b.Run(tab.Name, func(b *testing.B) {
			for b.Loop() {
				data, revision := tab.data(c, url.Values{})
				c.render("page-"+tab.Name, frameData{Tab: tab, Title: tab.Title, Revision: revision}, data)
			}
		})
	}
}
