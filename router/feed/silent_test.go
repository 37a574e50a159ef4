package feed

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// lines is a log that may be read meanwhile.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) { l.mu.Lock(); defer l.mu.Unlock(); return l.b.Write(p) }
func (l *lines) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), s)
}

// TestSilentSources: a worker that computes prompts and publishes nothing, as a vLLM with the endpoint tcp://127.0.0.1:PORT does
// (it connects there), is one warning; one that is idle, or publishes, is none.
func TestSilentSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lines
		log := slog.New(slog.NewTextHandler(&out, nil))
		bus := eventstest.NewBus()
		t.Cleanup(bus.Close)
		roster := pools.NewRoster(pools.Config{}, log)
		routers, err := router.NewSet(map[pools.Role]router.Config{pools.Both: router.DefaultConfig()}, log)
		require.NoError(t, err)
		computing := map[string]bool{"mute": true, "speaks": true}
		f, err := New(Config{Computed: func(id string) time.Time {
			if computing[id] {
				return time.Now()
			}
			return time.Time{}
		}}, bus, roster, routers, log, prometheus.NewRegistry())
		require.NoError(t, err)
		for _, id := range []string{"mute", "idle", "speaks"} {
			roster.From("test").Put(vllm(id))
		}
		run(t, f.Run)
		publisher(t, bus, "speaks")
		const warning = "publishes no KV events"
		time.Sleep(silentAfter - time.Second)
		assert.Zero(t, out.count(warning), "warnings too early")
		time.Sleep(time.Hour)
		if n := out.count(warning); n != 1 || out.count("worker=mute")+out.count("mute/0") == 0 {
			t.Errorf("%d warnings, want one of the silent worker:\n%s", n, out.b.String())
		}
		for id, want := range map[string]bool{"mute": true, "idle": false, "speaks": false} {
			assert.Equal(t, want, f.Silent(wire.Source{Pool: "m/both", Worker: id}), "%s is silent; %+v", id, f.Sources())
		}
		assert.NotEqual(t, follow.Live, f.Sources()[0].State, "a source that brought nothing is live")
	})
}
