package main

import (
	"os"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/pools"
)

// What is set about predictions and the index reaches the routers of the pools
// that compute prompts, and by default both are as they were.
func TestPredictionSettings(t *testing.T) {
	configured := func(args ...string) (s settings.Gateway) {
		r, _, err := settings.NewSet(gatewayGroups()...).Resolve(args, nil, os.ReadFile)
		if err != nil {
			t.Fatal(err)
		}
		r.Fill(&s)
		return s
	}
	cfg, err := gatewayConfig(configured())
	if err != nil {
		t.Fatal(err)
	}
	for role, c := range cfg.Routers {
		if c.Predictions.LRU || c.PredictedTTL != 0 || c.IndexMaxBlocks != 1<<26 {
			t.Errorf("%s by default: %+v", role, c)
		}
	}
	cfg, err = gatewayConfig(configured("--router-approximate-cache-policy=lru", "--router-predicted-ttl-secs=2.5", "--kv-index-max-blocks=4096"))
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range []pools.Role{pools.Prefill, pools.Both} {
		if c := cfg.Routers[role]; !c.Predictions.LRU || c.PredictedTTL != 2500*time.Millisecond || c.IndexMaxBlocks != 4096 {
			t.Errorf("%s: %+v", role, c)
		}
	}
	if c := cfg.Routers[pools.Decode]; c.PredictedTTL != 0 || c.Predictions.MaxBlocks != 0 {
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
			r, _, err := settings.NewSet(gatewayGroups()...).Resolve(append(c.args, "--router-mode="+mode), nil, os.ReadFile)
			if err != nil {
				t.Fatal(err)
			}
			var s settings.Gateway
			r.Fill(&s)
			if _, err := gatewayConfig(s); (err == nil) != (c.ok || mode == "kv") {
				t.Errorf("mode %s with %v: %v", mode, c.args, err)
			}
		}
	}
}
