package stack

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"regexp"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/console"
	"github.com/tandem-pd/tandem/cmd/gateway/edge"
	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/cmd/gateway/service"
	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/internal/trace"
	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
	"github.com/tandem-pd/tandem/pools/discovery/kubernetes"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/replica"
)

// GatewayConfig is each room's Config, and what lies between rooms. Tagged fields are the settings of `gateway
// serve`.
type GatewayConfig struct {
	Edge edge.Config
	// Grace and Drain are the two parts of a stop.
	Grace time.Duration `flag:"shutdown-grace" default:"5s" range:"0s.." group:"HTTP" help:"On SIGTERM, how long requests are still accepted while /health answers 503. Keep it above the balancer's probe interval."`
	Drain time.Duration `flag:"drain-timeout" default:"30s" range:"0s..24h" group:"HTTP" help:"After the grace, how long running requests may take. Keep both and 5s more below the supervisor's limit."`
	// Goroutines has a goroutine keep each connection where a loop could, for tests.
	Goroutines bool
	// Router is made into what each role's router needs by [router.Config.For].
	Router router.Config `group:"Router"`
	// SessionTTL is [router.Config.SessionTTL] of all pools.
	SessionTTL time.Duration `flag:"router-session-affinity-ttl-secs" default:"0" unit:"s" group:"Router" range:"0..31536000" help:"Seconds for which a session stays with the workers that served it last, whatever load and caches, while they have room. 0 binds no session."`
	Pools      pools.Config
	Models     models.Config `group:"Models"`
	Prefill    prefill.Config
	Decode     decode.Config
	Faults
	Discovery `group:"Discovery"`
	// Events configures how KV events are followed.
	Events follow.Config `group:"KV events"`
	// Reannounce has requests ask engines whose events were lost to announce again what of their caches they use.
	Reannounce bool                 `default:"true"`
	Stream     KVStream             `group:"KV stream"`
	Workers    WorkersConfig        `group:"Workers by URL"`
	Remote     service.ClientConfig `group:"Remote index"` // off without URLs
	Logging    observe.Logging      `group:"Logging"`
	Flow       handoff.Config
	Observe    observe.Config
	// Replicas is the group of gateways that share bookings.
	Replicas replica.MemberConfig `group:"Replicas"`
	// Traces is where the spans of requests go.
	Traces trace.ExporterConfig
	// LeaseTTL is how long a missing worker may take to come back after etcd was away.
	LeaseTTL time.Duration `default:"10s" range:"2s..1h"`
	// MetricsPrefix goes before the names of the gateway's own metrics.
	MetricsPrefix string `flag:"metrics-prefix" default:"tandem_" group:"Metrics" help:"Prefix of the gateway's metrics; dynamo_ keeps Dynamo's dashboards. An _ is added where it ends in neither _ nor :. Empty is none."`

	// InForce is the settings for the console; nil shows none.
	InForce []console.Setting
	// Build is for the metric build_info.
	Build    observe.Build
	Upstream http1.ClientConfig
	// Breakers configures the circuits of failing workers.
	Breakers fault.BreakerConfig
	// WrapTransport wraps all calls to workers, clean-up included, such as by fault.Inject; it may be nil.
	WrapTransport func(http1.Transport) http1.Transport
}

// Faults configures injected faults.
type Faults struct {
	Scenario string `flag:"fault-scenario" group:"Faults" help:"YAML file of faults to inject into calls to workers, for tests; see docs/operating.md."`
}

// Discovery is where workers register and publish KV events.
type Discovery struct {
	EtcdEndpoints []string `flag:"etcd-endpoints" form:"address http https" mask:"user" help:"etcd members, as http://HOST:PORT, https://HOST:PORT or HOST:PORT, with USER:PASSWORD@ before the host where needed. One that answers is enough."`
	Prefix        string   `flag:"discovery-prefix" default:"/tandem/workers" form:"path" help:"Prefix of workers' keys in etcd. Gateways and workers that share it find each other."`
	EtcdAccess
	NATSURL string `flag:"nats-url" form:"address nats tls ws wss" mask:"user" help:"NATS for KV events, as nats://HOST:4222; several separated by commas. Not needed with --no-router-kv-events."`
	NATSAccess

	inside *Embedded // set if both are embedded
}

// KVStream configures KV events in JetStream.
type KVStream struct {
	Durable bool `flag:"durable-kv-events,router-durable-kv-events" default:"false" help:"On: keep KV events in the JetStream stream TANDEM_KV, so that gateways resume without snapshots. Set it on gateways and workers."`
	natsbus.StreamConfig
}

// Config returns the stream's config; nil for none.
func (s *KVStream) Config() *natsbus.StreamConfig {
	if !s.Durable {
		return nil
	}
	return &s.StreamConfig
}

// WorkersConfig is the workers given to the gateway instead of a registry, and how many it waits for.
type WorkersConfig struct {
	PrefillURLs []string `flag:"prefill-url" sep:"space" form:"url http https" help:"A prefill worker by URL: http://HOST:PORT,model=NAME,…. Repeat it. Keys: model, id, engine, block-size, kv-blocks, max-num-seqs, max-num-batched-tokens, context-length, ranks, device, taints, model-input, transfer, kv-events, kv-replay, kv-topic."`
	DecodeURLs  []string `flag:"decode-url" sep:"space" form:"url http https" help:"A decode worker, in the form of prefill-url."`
	URLs        []string `flag:"worker-url,static-endpoint" sep:"space" form:"url http https" help:"A worker that serves alone, in the form of prefill-url, or with role=prefill or role=decode."`
	File        string   `flag:"workers-file" help:"YAML list of workers: url, role and the keys of prefill-url. Read again within 2 s of a change; a mistake keeps the old ones."`
	Probe       discovery.ProberConfig
	APIKeyFile  string   `flag:"worker-api-key-file" help:"File with the API key of workers by URL and of those in worker-allow. Read once."`
	AllowHosts  []string `flag:"worker-allow" help:"Hosts that may register in etcd: NAME, *.DOMAIN, ADDRESS, 10.0.0.0/8 or *. Empty allows all, with worker-api-key-file only this machine."`
	TLS         WorkerTLS
	MinInitial  int `flag:"router-min-initial-workers" default:"0" range:"0..4096" help:"Ready workers before requests are accepted."`

	// Static are the workers by URL, and Allow the hosts of AllowHosts: see Parse. A nil Allow is every host or, if
	// workers get a key, this machine only: any client that writes to etcd could have the key sent to it.
	Static []discovery.Endpoint
	Allow  *discovery.Hosts

	// Kubernetes selects the pods that are workers.
	Kubernetes kubernetes.Config
}

// Given reports whether workers may come from URLs, a file or pods.
func (c *WorkersConfig) Given() bool {
	return len(c.PrefillURLs)+len(c.DecodeURLs)+len(c.URLs) > 0 || c.File != "" || c.Kubernetes.Selector != ""
}

// Parse parses the URLs and hosts. It reads no files.
func (c *WorkersConfig) Parse() error {
	if len(c.AllowHosts) > 0 {
		var err error
		if c.Allow, err = discovery.ParseHosts(c.AllowHosts); err != nil {
			return setting.Errorf("worker-allow", "%w", err)
		}
	}
	c.Static = nil
	for _, list := range []struct {
		name string
		role pools.Role
		urls []string
	}{
		{"prefill-url", pools.Prefill, c.PrefillURLs},
		{"decode-url", pools.Decode, c.DecodeURLs},
		{"worker-url", "", c.URLs},
	} {
		for _, text := range list.urls {
			e, err := discovery.ParseEndpoint(list.role, text)
			if err == nil {
				c.Static = append(c.Static, e)
				err = discovery.CheckEndpoints(c.Static)
			}
			if err != nil {
				return setting.Errorf(list.name, "%w", err)
			}
		}
	}
	return nil
}

// Complete derives dependent settings, and draws the seed if there is none.
func (c *GatewayConfig) Complete() error {
	c.Flow.Seed = c.Router.Seed // 0: names that are unique everywhere
	c.Router.Seed = cmp.Or(c.Router.Seed, rand.Uint64())
	c.Events.Seed, c.Workers.Probe.Seed, c.Workers.Kubernetes.Seed = c.Router.Seed, c.Router.Seed, c.Router.Seed
	c.Events.Relearn = c.Router.Predictions.TTL
	c.Workers.Probe.BlockSize = c.Pools.BlockSize
	c.Prefill.Timeout = cmp.Or(c.Prefill.Timeout, c.Decode.FirstTokenTimeout)
	c.Replicas.Complete(c.Prefix)
	if p := c.MetricsPrefix; p != "" && !strings.HasSuffix(p, "_") && !strings.HasSuffix(p, ":") {
		c.MetricsPrefix = p + "_"
	}
	return errors.Join(c.Workers.Parse(), c.Validate())
}

// maxPrefixBytes bounds the metrics prefix.
const maxPrefixBytes = 64

// metricName is the form of a Prometheus metric's name.
var metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)

// Validate validates each room, and settings across rooms.
func (c *GatewayConfig) Validate() error {
	problems := []error{
		c.Edge.Validate(), c.Router.Validate(), c.Pools.Validate(), c.Models.Validate(), c.Flow.Queue.Validate(),
		c.Prefill.Validate(), c.Decode.Validate(),
		c.Remote.Validate(), c.Upstream.Validate(), c.Workers.Kubernetes.Validate(), c.Replicas.Validate(),
	}
	switch {
	case c.MetricsPrefix == "":
	case len(c.MetricsPrefix) > maxPrefixBytes:
		problems = append(problems, setting.Errorf("metrics-prefix", "it is longer than %d bytes", maxPrefixBytes))
	case !metricName.MatchString(c.MetricsPrefix):
		problems = append(problems, setting.Errorf("metrics-prefix",
			"a metric's name may hold letters, digits, _ and :, and not begin with a digit"))
	}
	hints, err := edge.ParseHints(c.Edge.ClientHints, c.Edge.APIKeyFile != "")
	if err == nil && !hints.All && c.Edge.AdminKeyFile == "" && router.Canonical(c.Router.Mode) == "direct" {
		problems = append(problems, setting.Errorf("router-mode",
			"direct serves only requests that name a worker, and client-hints keeps clients from it: "+
				"set client-hints to all, or admin-key-file for the keys of those who may"))
	}
	return errors.Join(problems...)
}

// routers returns a router's Config for each role, with the stack's additions.
func (c *GatewayConfig) routers(forecast, occupies router.Forecast, engineBlock func(*pools.Worker, int) int) map[pools.Role]router.Config {
	base := c.Router
	base.Forecast, base.Occupies, base.EngineBlock, base.RemoteIndex, base.SessionTTL = forecast, occupies, engineBlock, len(c.Remote.URLs) > 0, c.SessionTTL
	return base.ByRole()
}
