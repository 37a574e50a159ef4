package feed

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/testkit"
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
		bus := testkit.NewBus()
		t.Cleanup(bus.Close)
		computed := func(id string) (at time.Time) {
			if id != "idle" {
				at = time.Now()
			}
			return at
		}
		f, _, _ := newFeed(t, Config{Computed: computed}, bus, slog.NewTextHandler(&out, nil), vllm("mute"), vllm("idle"), vllm("speaks"))
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
