package main

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools"
)

// configured is the gateway's configuration by the arguments.
func configured(args ...string) (stack.GatewayConfig, error) {
	var s serveSettings
	if _, _, err := settings.New(&s).Resolve(args, nil, nil); err != nil {
		return stack.GatewayConfig{}, err
	}
	err := s.Complete()
	return s.GatewayConfig, err
}

// What is set about predictions and the index reaches the routers of the pools
// that compute prompts, and by default both are as they were.
func TestPredictionSettings(t *testing.T) {
	cfg, err := configured()
	if err != nil {
		t.Fatal(err)
	}
	for role, c := range cfg.Router.ByRole() {
		if c.Predictions.LRU || c.PredictedTTL != 0 || c.IndexMaxBlocks != 1<<26 {
			t.Errorf("%s by default: %+v", role, c)
		}
	}
	cfg, err = configured("--router-approximate-cache-policy=lru", "--router-predicted-ttl-secs=2.5", "--kv-index-max-blocks=4096")
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range []pools.Role{pools.Prefill, pools.Both} {
		if c := cfg.Router.ByRole()[role]; !c.Predictions.LRU || c.PredictedTTL != 2500*time.Millisecond || c.IndexMaxBlocks != 4096 {
			t.Errorf("%s: %+v", role, c)
		}
	}
	if c := cfg.Router.ByRole()[pools.Decode]; c.PredictedTTL != 0 || c.Predictions.MaxBlocks != 0 {
		t.Errorf("a decode pool predicts: %+v", c)
	}
}

// Mode direct needs requests that name their workers, and somebody who may.
func TestDirectModeNeedsHints(t *testing.T) {
	for _, c := range []struct {
		args []string
		ok   bool
	}{
		{nil, true},
		{[]string{"--api-key-file=clients"}, false},
		{[]string{"--client-hints=none"}, false},
		{[]string{"--client-hints=priority<=9"}, false},
		{[]string{"--api-key-file=clients", "--client-hints=all"}, true},
		{[]string{"--api-key-file=clients", "--admin-key-file=operators"}, true},
	} {
		for _, mode := range []string{"direct", "kv"} {
			if _, err := configured(append(c.args, "--router-mode="+mode)...); (err == nil) != (c.ok || mode == "kv") {
				t.Errorf("mode %s with %v: %v", mode, c.args, err)
			}
		}
	}
}

// The defaults that the documents give, and those of the rooms alone, are one.
func TestDefaults(t *testing.T) {
	got, err := configured("--router-seed=1")
	if err != nil {
		t.Fatal(err)
	}
	e, r := got.Edge, got.Router
	for _, c := range []struct {
		name      string
		got, want any
	}{
		{"edge", []any{e.Host, e.Port, e.MaxBodyBytes, e.BodyBudgetBytes, e.ReadTimeout, e.WriteStall, e.IdleTimeout, e.Heartbeat, e.ClientHints},
			[]any{"127.0.0.1", 8000, 64 << 20, int64(1 << 30), time.Minute, 30 * time.Second, 620 * time.Second, time.Duration(0), "auto"}},
		{"stop", []any{got.Grace, got.Drain}, []any{5 * time.Second, 30 * time.Second}},
		{"router", []any{r.Mode, r.OverlapWeight, r.Temperature, r.GPUWeight, r.KVEvents, r.TrackPrefillTokens, r.TrackActiveBlocks, r.TrackOutputBlocks, r.Room, r.QueueThreshold, r.DefaultMaxBatchedTokens},
			[]any{"kv", 1.0, 0.0, 8.0, true, true, true, true, true, 4.0, 8192}},
		{"credit", []any{r.Cost, r.Credit.Overlap, r.Credit.Decay, r.Credit.Host, r.Credit.Disk, r.Credit.Shared, r.Credit.PrefillScale, r.Credit.ActiveRequests, r.PrefillLoad},
			[]any{"classic", 1.0, 0.0, .75, .25, 0.0, 1.0, 0.0, "none"}},
		{"predictions", []any{r.Predictions.TTL, r.Predictions.MaxBlocks, r.Predictions.PruneRatio, r.Predictions.LRU, r.PredictedTTL, r.IndexMaxBlocks},
			[]any{2 * time.Minute, 1 << 16, .8, false, time.Duration(0), 1 << 26}},
		{"parity", []any{r.Parity.On, r.Parity.Window, r.Parity.Least, r.Parity.Wrong}, []any{true, 32, 8, .25}},
		{"queue", []any{got.Flow.Queue.Policy, got.Flow.Queue.Limit, got.Flow.Queue.Bytes, got.Flow.Queue.Timeout}, []any{"auto", 1024, int64(512 << 20), time.Minute}},
		{"flow", []any{got.Flow.DecodeFallback, got.Observe.Utilization, got.Flow.Seed}, []any{true, .8, uint64(1)}},
		{"legs", []any{got.Prefill.Timeout, got.Decode.FirstTokenTimeout, got.Decode.StreamIdleTimeout}, []any{time.Duration(0), time.Duration(0), time.Duration(0)}},
		{"discovery", []any{got.EtcdEndpoints, got.Prefix, got.LeaseTTL, got.NATSURL}, []any{[]string{}, "/tandem/workers", 10 * time.Second, ""}},
		{"events", []any{got.Events.SilentAfter, got.Events.PredictAfter, got.Events.Relearn, got.Events.Seed, got.Reannounce}, []any{5 * time.Second, time.Minute, 2 * time.Minute, uint64(1), true}},
		{"stream", []any{got.Stream.Durable, got.Stream.MaxAge, got.Stream.MaxBytes}, []any{false, time.Hour, int64(1 << 30)}},
		{"others", []any{got.Workers.Probe.Every, got.Remote.Timeout, got.Logging.Level, got.Logging.Format, got.MetricsPrefix, got.Models.CacheBytes},
			[]any{5 * time.Second, 20 * time.Millisecond, "info", "auto", "tandem_", int64(32 << 20)}},
	} {
		if !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, c.got, c.want)
		}
	}
}

// A flag offers what its room takes, and no more.
func TestKVCacheBlockSizeOffersWhatIsTaken(t *testing.T) {
	if _, err := configured("--kv-cache-block-size=4096"); err != nil {
		t.Error(err)
	}
	if _, err := configured("--kv-cache-block-size=4097"); err == nil || !strings.Contains(err.Error(), "flag --kv-cache-block-size: 4097 is above 4096") {
		t.Errorf("4097: %v", err)
	}
	if pools.MaxBlockSize != 4096 {
		t.Errorf("pools take %d", pools.MaxBlockSize)
	}
}

func TestClientHintsAreChecked(t *testing.T) {
	for text, ok := range map[string]bool{
		"auto": true, "none": true, "all": true, "priority<=0": true, "priority<=2147483647": true,
		"": false, "some": false, "priority<=": false, "priority<=-1": false, "priority<=2147483648": false, "priority<5": false,
	} {
		status, _, stderr := inside(t, nil, "config", "--client-hints="+text)
		if (status == exitOK) != ok || !ok && !strings.Contains(stderr, "client-hints (flag): ") {
			t.Errorf("%q: status %d, %s", text, status, stderr)
		}
	}
}

func TestMetricsPrefix(t *testing.T) {
	for _, tt := range []struct{ text, want, refused string }{
		{"tandem_", "tandem_", ""},
		{"tandem", "tandem_", ""},
		{"dynamo_", "dynamo_", ""},
		{"ns:", "ns:", ""},
		{":_", ":_", ""},
		{"", "", ""},
		{"7up_", "", "not begin with a digit"},
		{"a-b_", "", "letters, digits"},
		{"a b", "", "letters, digits"},
		{"tándem_", "", "letters, digits"},
		{"tandem_\n", "", "letters, digits"},
		{strings.Repeat("a", 65), "", "longer than 64 bytes"},
	} {
		cfg, err := configured("--metrics-prefix=" + tt.text)
		switch {
		case tt.refused != "" && (err == nil || !strings.Contains(err.Error(), tt.refused) || !strings.Contains(err.Error(), "metrics-prefix")):
			t.Errorf("%q: %v, want it refused because %q", tt.text, err, tt.refused)
		case tt.refused == "" && (err != nil || cfg.MetricsPrefix != tt.want):
			t.Errorf("%q goes before names as %q, %v, want %q", tt.text, cfg.MetricsPrefix, err, tt.want)
		}
	}
}

// No sum or product of a few limits may overflow: one that wraps around has
// passed already.
func TestEveryDurationIsBounded(t *testing.T) {
	for _, command := range everySettings() {
		for _, s := range setting.Of(command) {
			if s.Metavar() != "DURATION" || s.Borrowed() {
				continue
			}
			for _, text := range []string{"2562047h47m16.854775807s", "8761h"} {
				if v, err := s.Parse(text); err == nil {
					t.Errorf("--%s takes %v", s.Name, v)
				}
			}
		}
	}
}

// The names that the project's founding documents give, each set as they say
// it, by flag and by variable.
func TestNamesOfTheDocuments(t *testing.T) {
	tests := []struct{ flag, env, want string }{
		{"--router-mode=round_robin", "DYN_ROUTER_MODE=round_robin", "router-mode: round-robin"},
		{"--router-kv-overlap-score-weight=1.5", "DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT=1.5", "router-kv-overlap-score-weight: 1.5"},
		{"--kv-overlap-score-weight=1.5", "DYN_KV_OVERLAP_SCORE_WEIGHT=1.5", "router-kv-overlap-score-weight: 1.5"},
		{"--no-router-kv-events", "DYN_ROUTER_KV_EVENTS=false", "router-kv-events: false"},
		{"--no-kv-events", "DYN_KV_EVENTS=false", "router-kv-events: false"},
		{"--kv-events", "DYN_KV_EVENTS=true", "router-kv-events: true"},
		{"--router-ttl-secs=60", "DYN_ROUTER_TTL_SECS=60", "router-ttl-secs: 60.0"},
		{"--router-max-tree-size=4096", "DYN_ROUTER_MAX_TREE_SIZE=4096", "router-max-tree-size: 4096"},
		{"--router-prune-target-ratio=0.5", "DYN_ROUTER_PRUNE_TARGET_RATIO=0.5", "router-prune-target-ratio: 0.5"},
		{"--router-approximate-cache-policy=lru", "DYN_ROUTER_APPROXIMATE_CACHE_POLICY=lru", "router-approximate-cache-policy: lru"},
		{"--router-predicted-ttl-secs=2", "DYN_ROUTER_PREDICTED_TTL_SECS=2", "router-predicted-ttl-secs: 2.0"},
		{"--router-queue-threshold=8", "DYN_ROUTER_QUEUE_THRESHOLD=8", "router-queue-threshold: 8.0"},
		{"--router-queue-policy=wspt", "DYN_ROUTER_QUEUE_POLICY=wspt", "router-queue-policy: wspt"},
		{"--no-router-track-prefill-tokens", "DYN_ROUTER_TRACK_PREFILL_TOKENS=false", "router-track-prefill-tokens: false"},
		{"--router-temperature=0.5", "DYN_ROUTER_TEMPERATURE=0.5", "router-temperature: 0.5"},
		{"--kv-cache-block-size=16", "DYN_KV_CACHE_BLOCK_SIZE=16", "kv-cache-block-size: 16"},
		{"--http-port=9000", "DYN_HTTP_PORT=9000", "http-port: 9000"},
	}
	for _, tt := range tests {
		t.Run(tt.flag, func(t *testing.T) {
			variable, _, _ := strings.Cut(tt.env, "=")
			for source, way := range map[string]struct{ args, env []string }{"flag": {args: []string{tt.flag}}, "env " + variable: {env: []string{tt.env}}} {
				_, out, _ := inside(t, way.env, append([]string{"config"}, way.args...)...)
				if want := "\n" + tt.want + "  # " + source + "\n"; !strings.Contains(out, want) {
					t.Errorf("no line%sin the output", want)
				}
			}
		})
	}
}
