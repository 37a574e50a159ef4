package fleet

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/kv/overlap"
)

// Idle waits until nothing is held: the gateway's bookings and the engines' own books. In virtual time it waits for
// less than an engine's lease of 30 s, which must not be what frees it.
func (f *Fleet) Idle() {
	f.T.Helper()
	limit := time.Minute
	if NetworkOf(f.T) != nil {
		limit = 10 * time.Second
	}
	f.within(limit, "all books are zero", func() bool { return f.Books() == "" })
}

// inHand returns what the gateway's own metrics report as held by requests, or empty. Open connections count once it
// has ended.
func (f *Fleet) inHand() string {
	families, err := f.Reg.Gather()
	assert.NoError(f.T, err)
	var held []string
	for _, family := range families {
		switch name := strings.TrimPrefix(family.GetName(), "tandem_frontend_"); name {
		case "body_bytes", "open_connections", "inflight_requests", "active_requests", "queued_requests", "stage_requests",
			"retry_slots", "router_queue_pending_requests", "router_queue_pending_isl_tokens", "router_queue_pending_cached_tokens":
			for _, m := range family.GetMetric() {
				if v := m.GetGauge().GetValue(); v != 0 && !strings.Contains(m.String(), `"limit"`) {
					held = append(held, fmt.Sprintf("%s %v", name, v))
				}
			}
		}
	}
	return strings.Join(held, "; ")
}

// Books lists what is still held, or is empty.
func (f *Fleet) Books() string {
	var held []string
	for _, p := range f.Gateway.Fleet.Report() {
		for _, w := range p.Workers {
			if w.ActiveBlocks+w.PrefillTokens+w.Requests != 0 {
				held = append(held, fmt.Sprintf("%s: %d blocks, %d tokens, %d requests booked", w.ID, w.ActiveBlocks,
					w.PrefillTokens, w.Requests))
			}
		}
	}
	for id, w := range f.Workers {
		select {
		case <-w.Done:
			continue
		default:
		}
		b := w.Engine.Books()
		if b.Running+b.Waiting+b.Transferring+len(b.Pinned)+b.Blocks.Active != 0 {
			held = append(held, fmt.Sprintf("%s: %d running, %d waiting, %d transferring, %d pinned, %d blocks",
				id, b.Running, b.Waiting, b.Transferring, len(b.Pinned), b.Blocks.Active))
		}
	}
	return strings.Join(held, "; ")
}

// keptLog is how many bytes of a log are kept: more than any test reads, and not the 255 MB of half an hour under load.
const keptLog = 4 << 20

// LogBuffer is the latest keptLog of a log that several goroutines write to.
type LogBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *LogBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.buf.Len() > keptLog {
		b.buf.Next(keptLog / 2)
	}
	return b.buf.Write(p)
}

func (b *LogBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Take returns the log so far, and clears it.
func (b *LogBuffer) Take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.buf.Reset()
	return b.buf.String()
}

// Value sums a metric's series whose labels' values include all of with.
func (f *Fleet) Value(name string, with ...string) float64 {
	f.T.Helper()
	families, err := f.Reg.Gather()
	require.NoError(f.T, err)
	sum := 0.
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			have := []string{}
			for _, l := range m.GetLabel() {
				have = append(have, l.GetValue())
			}
			if !slices.ContainsFunc(with, func(w string) bool { return !slices.Contains(have, w) }) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

// WithoutEvents makes the gateway predict all its workers.
func WithoutEvents(c *stack.GatewayConfig) {
	c.Router.KVEvents = false
}

// OverlapOf is a request's predicted overlap in its log line.
func (f *Fleet) OverlapOf(id string) string { return f.Logged("request_id="+id, "overlap_blocks") }

// Logged is a field of the log line of the request that has so, as in request_id=x.
func (f *Fleet) Logged(so, field string) string {
	for line := range strings.Lines(f.Logs.String()) {
		if strings.Contains(line, so+" ") {
			_, after, _ := strings.Cut(line, field+"=")
			n, _, _ := strings.Cut(after, " ")
			return n
		}
	}
	return ""
}

// eventSource is a row of kv_events in GET /workers.
type eventSource struct {
	Worker, Transport, State, Reason string
	Seq, Losses                      uint64
	Repaired                         map[string]uint64 `json:"healed"`
	Blocks                           int
	Parity                           *overlap.RankParity
}

func (f *Fleet) Sources() map[string]eventSource {
	var report struct {
		Events map[string][]eventSource `json:"kv_events"`
	}
	f.Get("/workers", &report)
	out := map[string]eventSource{}
	for _, pool := range report.Events {
		for _, s := range pool {
			out[s.Worker] = s
		}
	}
	return out
}
