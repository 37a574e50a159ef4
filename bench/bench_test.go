package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/testkit"
)

// The bare minimum is this binary itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == bareCommand {
		fmt.Fprintln(os.Stderr, runBare(os.Args[2:], os.Stdout))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// tiny is a plan of a few requests each.
func tiny() plan {
	p := quickPlan()
	p.Rounds, p.Streams, p.IdleConnections, p.Connections, p.PacedStreams = 1, 20, 50, 4, []int{5}
	p.Rates, p.AtOnce = []rate{{400, 25 * time.Millisecond}}, rate{500, 20 * time.Millisecond}
	p.Prompts = []promptStep{{20_000, rate{400, 10 * time.Millisecond}}}
	p.ChunkPace, p.ChunksFor, p.Saturation, p.Soak = 5*time.Millisecond, 20*time.Millisecond, 20*time.Millisecond, 50*time.Millisecond
	p.Idle, p.WarmUp, p.Settled = 10*time.Millisecond, 5*time.Millisecond, 15*time.Millisecond
	return p
}

// The whole bench with real processes: every figure is there, the ways that
// requests took were checked on the way, and nothing is left behind.
func TestMeasure(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Setenv("CGO_ENABLED", os.Getenv("CGO_ENABLED")) // built as the tests are, so that nothing is compiled twice
	o, err := parse([]string{"-against-flags", "--log-level=warn"}, io.Discard)
	require.NoError(t, err)
	o.plan = tiny()
	// The machine's proxies would make the test another one elsewhere.
	o.nginx, o.haproxy = "no-nginx-of-this-name", "no-haproxy-of-this-name"
	var progress bytes.Buffer
	r, err := measure(t.Context(), o, &progress)
	require.NoError(t, err, "X\n%s", progress.String())
	assert.Equal(t, 2, strings.Count(progress.String(), "apt-get install"),
		"it does not say how to install nginx and HAProxy:\n%s", progress.String())
	short := []string{"short_us", "saturated_us", "saturated_per_second"}
	ttft := []string{"ttft_p50_us@400", "ttft_p99_us@400"}
	added := []string{"added_ttft_p50_us@400", "added_ttft_p99_us@400"}
	chunk := []string{"chunk@1000_us"}
	prompt := []string{"prompt_20kB_new_us"}
	seen := []string{"prompt_20kB_seen_us", "prompt_20kB_new_no_tokenizer_us", "prompt_20kB_seen_no_tokenizer_us"}
	space := []string{"connection_mib", "connection_kib", "connection_stack_kib", "soak_max_mib", "soak_mib_a_minute"}
	open := []string{"stream_mib", "stream_kib", "stream_heap_kib"}
	for key, want := range map[string][]string{
		direct2Key: ttft, direct1Key: ttft,
		gateway2Key: slices.Concat(ttft, added, short, chunk, prompt, seen, space, open),
		againstKey:  slices.Concat(ttft, added, short, chunk, prompt, seen, space, open),
		gateway1Key: slices.Concat(ttft, added, short, open),
		bareKey:     slices.Concat(ttft, added, short, chunk, prompt, []string{"prompt_20kB_new_no_tokenizer_us"}),
	} {
		f := r.find(key)
		if f == nil {
			t.Errorf("there is no arm %s", key)
			continue
		}
		for _, name := range want {
			if _, ok := f.Of[name]; !ok {
				t.Errorf("%s has no %s, only %v", key, name, slices.Sorted(maps.Keys(f.Of)))
			}
		}
		// In milliseconds of lone chunks a busy machine may not have run the process at all.
		for _, name := range []string{"short_us", "saturated_us", "prompt_20kB_new_us", "ttft_p50_us@400", "soak_max_mib"} {
			if s, ok := f.Of[name]; ok && s.Median == 0 {
				t.Errorf("%s: %s was not measured", key, name)
			}
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "tandem-bench-*"))
	assert.True(t, err == nil && len(left) <= 0, "left behind: %q, %v", left, err)
}

// A run that is stopped stops waiting for its next request, and no process outlives its fleet.
func TestStopped(t *testing.T) {
	itself, err := os.Executable()
	require.NoError(t, err)
	f, err := newFleet(t.Context(), fleetConfig{dir: t.TempDir(), itself: itself,
		wants: func(key string) bool { return strings.HasPrefix(key, "bare") }})
	require.NoError(t, err)
	a := f.arm(bareKey)
	p, err := newPrompts(1, 8)
	require.NoError(t, err)
	jobs := p.short(a, 2, 8)
	for i := range jobs {
		jobs[i].due = time.Duration(i) * time.Minute
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- a.client.open(ctx, jobs) }()
	cancel()
	assert.ErrorIs(t, <-over, context.Canceled, "want that it was cancelled")
	f.close()
	for _, a := range f.arms {
		if a.process == nil {
			continue
		}
		select {
		case <-a.process.ended:
		default:
			t.Errorf("%s still runs", a.name)
		}
		if c, err := net.Dial("tcp", a.process.address); err == nil {
			_ = c.Close()
			t.Errorf("%s still listens", a.name)
		}
	}
}

// The bare minimum's legs are as long as the gateway's: a long chat gets token ids, where the tokenizer is known.
func TestBareAsk(t *testing.T) {
	for _, c := range []struct {
		model string
		bytes int
		ids   bool
	}{{testkit.InstantModel, 100, false}, {testkit.TextModel, 40_000, false}, {testkit.InstantModel, 40_000, true},
		{testkit.InstantModel, 2 << 20, true}} {
		asked := append(body(c.model, bytes.Repeat([]byte("a"), c.bytes)), '}')
		asks := append(bareAsk(nil, asked), '}')
		var got struct {
			IDs []int `json:"prompt_token_ids"`
		}
		if err := json.Unmarshal(asks, &got); err != nil || len(got.IDs) > 0 != c.ids {
			t.Errorf("%s, %d bytes: %d ids, %v", c.model, c.bytes, len(got.IDs), err)
		}
		if want := c.bytes * 10 / bytesPerID10; c.ids && c.bytes < 1<<20 && (len(got.IDs) < want || len(got.IDs) > want+want/10) {
			t.Errorf("%d bytes: %d ids, want about %d", c.bytes, len(got.IDs), want)
		}
	}
}

func TestParse(t *testing.T) {
	o, err := parse([]string{"-only", "chunks, soak", "-arms", "gateway,nginx", "-soak", "10m", "-rounds", "3"}, io.Discard)
	if err != nil || scenarioNames(o.only) != "chunks, soak" || o.Soak != 10*time.Minute || o.Rounds != 3 || o.compares() {
		t.Errorf("got %+v and %v", o, err)
	}
	for key, want := range map[string]bool{gateway2Key: true, gateway1Key: false, nginxKey: true, haproxyKey: false, bareKey: false} {
		assert.Equal(t, want, o.only[0].wants(key, o.arms), "chunks of %s", key)
	}
	if o, err = parse([]string{"-quick"}, io.Discard); err != nil || len(o.only) != len(scenarios()) || o.Rounds != 2 ||
		o.Soak != 3*time.Second {
		t.Errorf("got %+v and %v", o, err)
	}
	var help bytes.Buffer
	if _, err := parse([]string{"--help"}, &help); !errors.Is(err, flag.ErrHelp) || !strings.Contains(help.String(), bareKey) {
		t.Errorf("%v: %s", err, help.String())
	}
	for _, bad := range [][]string{{"-only", "nothing"}, {"-arms", "nothing"}, {"-rounds", "-1"}, {"-soak", "-1s"}, {"x"}} {
		if _, err := parse(bad, io.Discard); err == nil {
			t.Errorf("%v is no error", bad)
		}
	}
}

// arm finds one by its key; nil when it was left out.
func (f *fleet) arm(key string) *arm {
	for _, a := range f.arms {
		if a.key == key {
			return a
		}
	}
	return nil
}
