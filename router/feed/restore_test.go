package feed

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/testkit"
	"github.com/tandem-pd/tandem/pools"
)

// weighed is a bus that counts the bytes of the answers to its requests.
type weighed struct {
	wire.Bus
	bytes *atomic.Int64
}

func (w weighed) Request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	answer, err := w.Bus.Request(ctx, m)
	if err == nil {
		w.bytes.Add(int64(answer.Size()))
	}
	return answer, err
}

// site is a NATS server, publishers of workers, and feeds that follow them.
type site struct {
	t       testing.TB
	url     string
	workers []pools.Worker
	sends   []*view.Publisher
	bytes   atomic.Int64 // of answers to feeds' requests of each other
}

func (s *site) bus() wire.Bus {
	conn, err := nats.Connect(s.url)
	require.NoError(s.t, err)
	s.t.Cleanup(conn.Close)
	return natsbus.OverNATS(conn, natsbus.PendingLimits{}, slog.New(slog.DiscardHandler))
}

// newSite has so many workers publish so many blocks, in prompts of 100.
func newSite(t testing.TB, workers, blocks int) *site {
	server, err := natsbus.StartServer(natsbus.ServerConfig{})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	s := &site{t: t, url: server.URL()}
	bus := s.bus()
	for i := range workers {
		w := vllm(fmt.Sprintf("w%d", i))
		p, _ := publisher(t, bus, w.ID)
		for j := range blocks / 100 {
			require.NoError(t, p.Publish([]wire.Event{testkit.Chain(uint32(i*blocks/100+j), 100)}))
		}
		s.workers, s.sends = append(s.workers, w), append(s.sends, p)
	}
	return s
}

// feed starts one, which asks the others.
func (s *site) feed(own string, others ...string) (f *Feed, at *index.Index, stop func()) {
	group := &follow.Group{Bus: weighed{s.bus(), &s.bytes}, Join: func(context.Context) (string, string, []string) { return own, own, others }}
	f, _, routers := newFeed(s.t, Config{Events: follow.Config{Group: group}}, s.bus(), slog.DiscardHandler, s.workers...)
	return f, routers.Index("m", pools.Both), run(s.t, f.Run)
}

// knows reports whether a feed knows every publisher's last message.
func (s *site) knows(f *Feed) bool {
	all := f.Sources()
	return len(all) == len(s.sends) && !slices.ContainsFunc(all, func(is follow.SourceStatus) bool {
		return is.State != follow.Live || !slices.ContainsFunc(s.sends,
			func(p *view.Publisher) bool { return p.Epoch() == is.Epoch && p.Stats().Seq == is.Seq })
	})
}

// snapshots is how many the publishers were asked for.
func (s *site) snapshots() (n uint64) {
	for _, p := range s.sends {
		n += p.Stats().Snapshots
	}
	return n
}

// TestRestoredIndexAnswersAlike: a gateway's index that was restored from another's answers prompts as the other's, at the
// same speed, though no publisher was asked for a snapshot; and when blocks go, it answers alike again.
func TestRestoredIndexAnswersAlike(t *testing.T) {
	s := newSite(t, 4, 1000)
	first, from, _ := s.feed("first")
	within(t, "the first knows all", func() bool { return s.knows(first) })
	before := s.snapshots()
	second, to, _ := s.feed("second", "first")
	within(t, "the second knows all", func() bool { return s.knows(second) })
	assert.Zero(t, s.snapshots()-before, "publishers were asked for N snapshots")
	alike := func() {
		t.Helper()
		a, b := from.Stats(), to.Stats()
		assert.True(t, a.Held == b.Held && a.Blocks == b.Blocks && a.Holed == b.Holed, "restored %+v, of %+v", b, a)
		for base := range uint32(40) {
			prompt := tokens.SequenceHashes(nil, testkit.Chain(base, 100).Tokens, 16, tokens.Seed("", ""))
			var a, b index.Matches
			from.Match(prompt, &a)
			to.Match(prompt, &b)
			for _, w := range s.workers {
				assert.Equal(t, b.Tier(to.Owner(w.ID, 0), index.Device), a.Tier(from.Owner(w.ID, 0), index.Device),
					"prompt %d: %s blocks, restored", base, w.ID)
			}
		}
	}
	alike()
	for i, p := range s.sends {
		chain := testkit.Chain(uint32(i*10), 100)
		gone := wire.Event{Kind: wire.Removed, Medium: "GPU", Hashes: chain.Hashes[40:]}
		more := testkit.Chain(uint32(100+i), 7)
		more.Parent, more.HasParent = chain.Hashes[39], true
		require.NoError(t, p.Publish([]wire.Event{gone, more}))
	}
	within(t, "both go on", func() bool { return s.knows(first) && s.knows(second) })
	alike()
}

// BenchmarkRestore is a gateway's start among 64 workers with 10,000 blocks each: from another gateway, and from the workers.
func BenchmarkRestore(b *testing.B) {
	s := newSite(b, 64, 10_000)
	first, _, _ := s.feed("first")
	within(b, "the first knows all", func() bool { return s.knows(first) })
	for name, others := range map[string][]string{"gateway": {"first"}, "workers": nil} {
		b.Run(name, func(b *testing.B) {
			asked := s.snapshots()
			s.bytes.Store(0)
			for b.Loop() {
				second, _, stop := s.feed("second", others...)
				within(b, "it knows all", func() bool { return s.knows(second) })
				stop()
			}
			b.ReportMetric(float64(s.bytes.Load())/float64(b.N)/1e6, "MB/op")
			b.ReportMetric(float64(s.snapshots()-asked)/float64(b.N), "snapshots/op")
		})
	}
}
