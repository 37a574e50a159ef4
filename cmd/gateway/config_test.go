package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools"
)

// configured is the gateway's configuration by the arguments.
func configured(args ...string) (stack.GatewayConfig, error) {
	var s serveSettings
	if _, _, err := setting.NewSet(&s).Resolve(args, nil, nil); err != nil {
		return stack.GatewayConfig{}, err
	}
	err := s.Complete()
	return s.GatewayConfig, err
}

// What is set about predictions and the index reaches the routers of the pools
// that compute prompts, and by default both are as they were.
func TestPredictionSettings(t *testing.T) {
	cfg, err := configured()
	require.NoError(t, err)
	for role, c := range cfg.Router.ByRole() {
		assert.True(t, !c.Predictions.LRU && c.PredictedTTL == 0, "%s by default: %+v", role, c)
	}
	cfg, err = configured("--router-approximate-cache-policy=lru", "--router-predicted-ttl-secs=2.5")
	require.NoError(t, err)
	for _, role := range []pools.Role{pools.Prefill, pools.Both} {
		if c := cfg.Router.ByRole()[role]; !c.Predictions.LRU || c.PredictedTTL != 2500*time.Millisecond {
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

// A flag offers exactly what its room accepts.
func TestSettingsAreChecked(t *testing.T) {
	for arg, refused := range map[string]string{
		"--kv-cache-block-size=4096": "", "--kv-cache-block-size=4097": "flag --kv-cache-block-size: 4097 is above 4096",
		"--client-hints=none": "", "--client-hints=all": "", "--client-hints=priority<=0": "", "--client-hints=priority<=2147483647": "",
		"--client-hints=": "client-hints", "--client-hints=some": "client-hints", "--client-hints=priority<=": "client-hints",
		"--client-hints=priority<=-1": "client-hints", "--client-hints=priority<=2147483648": "client-hints",
		"--client-hints=priority<5": "client-hints",
		"--metrics-prefix=7up_":     "not begin with a digit", "--metrics-prefix=a-b_": "letters, digits",
		"--metrics-prefix=tándem_":   "letters, digits",
		"--metrics-prefix=tandem_\n": "letters, digits", "--metrics-prefix=" + strings.Repeat("a", 65): "longer than 64 bytes",
	} {
		_, err := configured(arg)
		assert.True(t, (err == nil) == (refused == "") && (err == nil || strings.Contains(err.Error(), refused)),
			"%q: %v, want %q", arg, err, refused)
	}
	assert.Equal(t, 4096, pools.MaxBlockSize)
	for text, want := range map[string]string{"tandem_": "tandem_", "tandem": "tandem_", "ns:": "ns:", ":_": ":_", "": ""} {
		cfg, err := configured("--metrics-prefix=" + text)
		require.NoError(t, err)
		assert.Equal(t, want, cfg.MetricsPrefix)
	}
}

// The names that the project's founding documents give, each set as they say
// it, by flag and by variable.
func TestNamesOfTheDocuments(t *testing.T) {
	t.Parallel()
	tests := []struct{ flag, env, want string }{
		{"--router-mode=round_robin", "DYN_ROUTER_MODE=round_robin", "router-mode: round-robin"},
		{"--router-kv-overlap-score-weight=1.5", "DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT=1.5", "router-kv-overlap-score-weight: 1.5"},
		{"--kv-overlap-score-weight=1.5", "DYN_KV_OVERLAP_SCORE_WEIGHT=1.5", "router-kv-overlap-score-weight: 1.5"},
		{"--no-router-kv-events", "DYN_ROUTER_KV_EVENTS=false", "router-kv-events: false"},
		{"--no-kv-events", "DYN_KV_EVENTS=false", "router-kv-events: false"},
		{"--kv-events", "DYN_KV_EVENTS=true", "router-kv-events: true"},
		{"--router-ttl-secs=60", "DYN_ROUTER_TTL_SECS=60", "router-ttl-secs: 60.0"},
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
		variable, _, _ := strings.Cut(tt.env, "=")
		lines(t, nil, "config", []line{{tt.flag, exitOK, "\n" + tt.want + "  # flag\n"}})
		lines(t, []string{tt.env}, "config", []line{{"", exitOK, "\n" + tt.want + "  # env " + variable + "\n"}})
	}
}
