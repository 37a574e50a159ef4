package settings

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// tags collects every tag of a struct as Fill reads them.
func tags(t reflect.Type) []string {
	var found []string
	for f := range t.Fields() {
		name := f.Tag.Get(Tag)
		switch {
		case name != "":
			found = append(found, name)
		case f.Type.Kind() == reflect.Struct:
			found = append(found, tags(f.Type)...)
		}
	}
	return found
}

func TestEveryRowHasAFieldAndEveryFieldARow(t *testing.T) {
	fields := tags(reflect.TypeFor[Gateway]())
	var rows []string
	for _, row := range gatewaySet().Settings() {
		rows = append(rows, row.Name)
	}
	slices.Sort(fields)
	slices.Sort(rows)
	if !slices.Equal(fields, rows) {
		t.Errorf("fields and rows differ:\n%q\n%q", fields, rows)
	}
}

func TestFillGivesEveryFieldItsDefault(t *testing.T) {
	r, _, err := gatewaySet().Resolve(nil, nil, files{}.read)
	if err != nil {
		t.Fatal(err)
	}
	var got Gateway
	r.Fill(&got)
	want := Gateway{
		HTTP: HTTP{
			Host: "127.0.0.1", Port: 8000, MaxBodyBytes: 64 << 20, BodyBudgetBytes: 1 << 30, ReadTimeout: time.Minute, WriteStallTimeout: 30 * time.Second,
			IdleTimeout: 2 * time.Minute, SSEHeartbeat: 15 * time.Second, ShutdownGrace: 5 * time.Second, DrainTimeout: 30 * time.Second,
			ForwardHeaders: []string{}, AllowedHosts: []string{},
		},
		Admin: Admin{ClientHints: "auto"},
		Router: Router{
			Mode: "kv", OverlapScoreWeight: 1, Temperature: 0, CUDAToCPURatio: 8, Seed: 0, KVEvents: true, TrackPrefillTokens: true,
			TTLSeconds: 120, MaxTreeSize: 1 << 20, PruneTargetRatio: 0.8, ApproximatePolicy: "ttl", IndexMaxBlocks: 1 << 26,
			KVCacheBlockSize: 0, TokenizerCacheBytes: 64 << 20,
			Cost: "classic", Credit: 1, HostWeight: 0.75, DiskWeight: 0.25, PrefillScale: 1, TrackOutputBlocks: true, PrefillLoadModel: "none",
		},
		Queue:     Queue{Policy: "fcfs", Threshold: 4, Limit: 1024, Bytes: 512 << 20, Timeout: time.Minute},
		Faults:    Faults{PrefillTimeout: 0, DecodeFallback: true},
		Discovery: Discovery{EtcdEndpoints: []string{}, Prefix: "/tandem/workers", LeaseTTL: 10 * time.Second, NATSURL: ""},
		KVEvents:  KVEvents{SilentAfter: 5 * time.Second, PredictAfter: time.Minute, Parity: true, ReportMode: "auto"},
		KVStream:  KVStream{MaxAge: time.Hour, MaxBytes: 1 << 30},
		Workers:   Workers{PrefillURLs: []string{}, DecodeURLs: []string{}, URLs: []string{}, Allow: []string{}, HealthInterval: 5 * time.Second},
		Remote:    RemoteIndex{URLs: []string{}, Timeout: 20 * time.Millisecond},
		Logging:   Logging{Level: "info", Format: "text"},
		Metrics:   Metrics{Prefix: "tandem_", DesiredUtilization: 0.8},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
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
			name, _, _ := strings.Cut(tt.want, ":")
			variable, _, _ := strings.Cut(tt.env, "=")
			byFlag, _, err := gatewaySet().Resolve([]string{tt.flag}, nil, files{}.read)
			if err != nil {
				t.Fatal(err)
			}
			byEnv, _, err := gatewaySet().Resolve(nil, []string{tt.env}, files{}.read)
			if err != nil {
				t.Fatal(err)
			}
			if got := printed(t, byFlag, name); got != tt.want+"  # flag" {
				t.Error(got)
			}
			if got := printed(t, byEnv, name); got != tt.want+"  # env "+variable {
				t.Error(got)
			}
		})
	}
}

func TestFillRefusesAStructThatDoesNotFit(t *testing.T) {
	r, _, err := gatewaySet().Resolve(nil, nil, files{}.read)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		dst  any
		want string
	}{
		{"no such row", &struct {
			Mode string `setting:"router-mood"`
		}{}, `Mode wants "router-mood"`},
		{"another type", &struct {
			Port string `setting:"http-port"`
		}{}, `Port is a string, but "http-port" is a int`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := panicOf(func() { r.Fill(tt.dst) }); !strings.Contains(got, tt.want) {
				t.Errorf("panicked with %q, want %q", got, tt.want)
			}
		})
	}
}

func TestFillHandsOutListsOfTheirOwn(t *testing.T) {
	r, _, err := gatewaySet().Resolve([]string{"--etcd-endpoints=a:1"}, nil, files{}.read)
	if err != nil {
		t.Fatal(err)
	}
	var first, second Gateway
	r.Fill(&first)
	first.Discovery.EtcdEndpoints[0] = "changed"
	r.Fill(&second)
	if got := second.Discovery.EtcdEndpoints[0]; got != "a:1" {
		t.Errorf("a caller changed what was resolved to %s", got)
	}
}

func TestResolvedKnowsWhoSetWhat(t *testing.T) {
	r, _, err := gatewaySet().Resolve([]string{"--http-port=1"}, nil, files{}.read)
	if err != nil {
		t.Fatal(err)
	}
	if !r.IsSet("http-port") || r.IsSet("http-host") || r.IsSet("nobody") {
		t.Error("IsSet is not whether somebody set it")
	}
	if got := r.Refuse("http-port", errTaken).Error(); got != "http-port (flag): taken" {
		t.Error(got)
	}
}

// panicOf is what f panics with, as text; empty when it does not.
func panicOf(f func()) (text string) {
	defer func() {
		if p := recover(); p != nil {
			text, _ = p.(string)
		}
	}()
	f()
	return ""
}
