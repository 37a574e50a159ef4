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
	"github.com/tandem-pd/tandem/cmd/gateway/service/remote"
	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/natsbus"
	"github.com/tandem-pd/tandem/internal/loop"
	"github.com/tandem-pd/tandem/internal/otlp"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/internal/telemetry"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
	"github.com/tandem-pd/tandem/pools/discovery/kubernetes"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/replica/member"
)

// GatewayConfig is what a gateway is made of: each room's own Config, and what
// lies between rooms. The fields with tags are the settings of `gateway serve`.
type GatewayConfig struct {
	Edge edge.Config
	// Grace and Drain are the two parts of a stop.
	Grace time.Duration `flag:"shutdown-grace" default:"5s" range:"0s.." group:"HTTP" help:"On SIGTERM, how long requests are still accepted while /health answers 503, so that a load balancer stops sending here first. Keep it above the balancer's probe interval; longer makes every restart slower. 0 stops accepting requests at once." when:"requests are lost at restarts"`
	Drain time.Duration `flag:"drain-timeout" default:"30s" range:"0s..24h" group:"HTTP" help:"After the grace, how long running requests may take before they are cut off. Longer loses fewer long answers. Keep grace and drain together, and 5s more, below the time after which the supervisor kills." when:"answers are longer than that"`
	// Relay is who moves a stream's chunks.
	Relay string `flag:"relay" default:"auto" oneof:"auto=loop where the system has it|loop=an event loop of the gateway's own keeps the connections (Linux)|goroutine=a goroutine a connection, through Go's network poller" group:"HTTP" help:"Who moves the chunks of answers. The loop takes less CPU a chunk and less memory a stream. Connections with TLS are always the goroutines'." when:"the loop is suspected of a fault"`
	// Router is made into what each role's router needs by [router.Config.For].
	Router router.Config `group:"Router"`
	// SessionTTL is [router.Config.SessionTTL] of all pools.
	SessionTTL time.Duration `flag:"router-session-affinity-ttl-secs" default:"0" unit:"s" group:"Router" range:"0..31536000" help:"Seconds for which a session stays with the worker that served it, from its latest request on: on one prefill and one decode worker each, whatever their load and caches, while the worker can be chosen and is neither full nor busy. Gateways of one group share the bindings. 0 binds no session: where only load tells workers apart, each still has a worker of its own." when:"engines keep more of a session than the gateway sees"`
	Pools      pools.Config
	Models     models.Config `group:"Models"`
	Prefill    prefill.Config
	Decode     decode.Config
	Faults
	Discovery `group:"Discovery"`
	// Events is how KV events are followed.
	Events follow.Config `group:"KV events"`
	// Reannounce has requests ask engines whose events were lost to announce again what of their caches they use.
	Reannounce bool              `flag:"kv-cache-report-mode" default:"auto" oneof:"off=no request asks|auto=requests to a vLLM rank whose events were lost ask" group:"KV events" help:"Whether requests ask their engine to announce the whole cached prefix that they use (vllm_xargs.kv_cache_report_mode full, vLLM from 0.26.0), which repairs a view that lost events. Each such announcement is as long as the prompt. A client's own value stands." when:"an engine refuses the field"`
	Stream     KVStream          `group:"KV stream"`
	Workers    WorkersConfig     `group:"Workers by URL"`
	Remote     remote.Config     `group:"Remote index"` // without URLs there is none
	Logging    telemetry.Logging `group:"Logging"`
	Flow       handoff.Config
	Observe    observe.Config
	// Replicas is the group of gateways that share their bookings.
	Replicas member.Config `group:"Replicas"`
	// Traces is where the spans of requests go.
	Traces otlp.Config `group:"Traces"`
	// MetricsPrefix goes before the names of the gateway's own metrics.
	MetricsPrefix string `flag:"metrics-prefix" default:"tandem_" group:"Metrics" help:"What the names of the gateway's metrics begin with: letters, digits, _ and :, no digit first. A prefix that ends in neither _ nor : gets an _; empty is no prefix. Metrics of the Go runtime and the process keep their names." when:"dashboards were made for Dynamo: dynamo_"`

	// InForce is the settings as the console shows them; nil shows none.
	InForce []console.Setting
	// Build is what build_info says of the program.
	Build    telemetry.Build
	Upstream upstream.Config
	// Breakers is when a worker that fails is left alone, and for how long.
	Breakers fault.BreakerConfig
	// WrapTransport puts something between the rooms and the workers, such as
	// fault.Inject; nil for nothing. Clean-up calls pass through it too.
	WrapTransport func(upstream.Transport) upstream.Transport
}

// Faults is which faults are injected into calls to workers.
type Faults struct {
	Scenario    string `flag:"fault-scenario" group:"Faults" help:"YAML file of faults to inject into calls to workers, to see what clients would see: seed, and rules of fault, at, for, where, probability. The calls that are hit depend on the seed and the request, and on the clock only where a rule has a time. Refused unless allow-faults is on." when:"testing"`
	AllowFaults bool   `flag:"allow-faults" default:"false" group:"Faults" help:"On: a fault-scenario may be used. It is a separate switch so that no file alone can break a fleet." when:"testing"`
}

// Discovery is where workers register and where their KV events pass.
type Discovery struct {
	EtcdEndpoints []string `flag:"etcd-endpoints" form:"address http https" mask:"user" help:"Members of the etcd cluster in which workers register, as http://HOST:PORT, https://HOST:PORT or HOST:PORT, with USER:PASSWORD@ before the host where etcd asks for them. One that answers is enough; name them all." when:"workers register"`
	Prefix        string   `flag:"discovery-prefix" default:"/tandem/workers" form:"path" help:"Prefix of the workers' keys in etcd. Gateways and workers that share it find each other; give every deployment on one etcd its own." when:"two deployments share an etcd"`
	// LeaseTTL is also how long a missing worker may take to come back after etcd was away.
	LeaseTTL time.Duration `flag:"lease-ttl" default:"10s" range:"2s..1h" help:"How long a silent worker stays registered. Shorter forgets a dead machine sooner; longer keeps workers through pauses of the network or of etcd. A worker whose connections are refused is avoided at once either way." when:"etcd takes longer to restart"`
	EtcdAccess
	NATSURL string `flag:"nats-url" form:"address nats tls ws wss" mask:"user" help:"NATS server through which workers publish KV events, as nats://HOST:4222; several separated by commas. Not needed with --no-router-kv-events." when:"workers register and publish KV events"`
	NATSAccess

	inside *Embedded // where both are this process's own
}

// KVStream is whether, and how, KV events are kept in JetStream.
type KVStream struct {
	Durable bool `flag:"durable-kv-events,router-durable-kv-events" default:"false" help:"On: keep KV events in a JetStream stream, TANDEM_KV. A reconnecting gateway resumes where it stopped; a starting one requests no snapshot from workers whose events are all in the stream. Costs disk and some latency of events. NATS needs JetStream; set it on gateways and workers alike." when:"gateways or NATS restart often"`
	natsbus.StreamConfig
}

// Config is the stream's; nil for none.
func (s *KVStream) Config() *natsbus.StreamConfig {
	if !s.Durable {
		return nil
	}
	return &s.StreamConfig
}

// WorkersConfig is which workers the gateway is given, instead of finding them
// in a registry, and how many it waits for.
type WorkersConfig struct {
	PrefillURLs []string `flag:"prefill-url" sep:"space" form:"url http https" help:"A prefill worker that does not register in etcd, as http://HOST:PORT. Repeat the flag for each; in a variable blanks separate workers, in a file a list does. Model and limits are asked of the worker, or given behind the URL: http://HOST:PORT,model=NAME with model, id, engine (vllm, sglang, trtllm, sim), block-size, kv-blocks, max-num-seqs, max-num-batched-tokens, context-length, ranks, device, taints (semicolons between them), model-input, transfer, kv-events, kv-replay, kv-topic. With model= it is used at once, else as soon as it answers." when:"there is no etcd"`
	DecodeURLs  []string `flag:"decode-url" sep:"space" form:"url http https" help:"A decode worker, in the form of prefill-url." when:"there is no etcd"`
	URLs        []string `flag:"worker-url,static-endpoint" sep:"space" form:"url http https" help:"A worker that serves requests alone, prefill and decode, in the form of prefill-url. role=prefill or role=decode may stand behind it." when:"there is no etcd"`
	File        string   `flag:"workers-file" help:"YAML file with a list of workers, each with url, role (prefill, decode, both) and the keys that may stand behind a prefill-url. It is read again within two seconds of a change, and at once on SIGHUP; a file with a mistake leaves the workers as they were." when:"workers come and go without etcd"`
	Probe       discovery.ProberConfig
	APIKeyFile  string   `flag:"worker-api-key-file" help:"File with one line: the API key that the workers ask for, sent as Authorization: Bearer to workers given by URL and to registered ones whose host worker-allow names. It is read once, at the start." when:"engines run with an API key"`
	AllowHosts  []string `flag:"worker-allow" help:"Hosts of which workers may register in etcd, each as NAME, *.DOMAIN, ADDRESS, a network such as 10.0.0.0/8, or * for any. A record that names another host, for requests or for KV events, is refused: it gets neither prompts nor the workers' key. Empty allows every host, or with worker-api-key-file this machine alone." when:"registered workers have an API key, or others can write to etcd"`
	TLS         WorkerTLS
	MinInitial  int `flag:"router-min-initial-workers" default:"0" range:"0..4096" help:"Workers that must have been ready at once before the first request is accepted; until then /health and requests are answered 503. It keeps a starting fleet from sending everything to its first worker. 0 accepts requests at once." when:"a starting fleet sends everything to its first worker"`

	// Static are the workers by URL, and Allow the hosts of AllowHosts: see Parse. A
	// nil Allow is every host, or, where the workers are sent a key, this machine
	// alone: every client that writes to etcd could have the key sent to it.
	Static []discovery.Endpoint
	Allow  *discovery.Hosts

	// Kubernetes is which pods are workers.
	Kubernetes kubernetes.Config
}

// Given reports whether any worker is given by its URL, or may be, or is a pod.
func (c *WorkersConfig) Given() bool {
	return len(c.PrefillURLs)+len(c.DecodeURLs)+len(c.URLs) > 0 || c.File != "" || c.Kubernetes.Selector != ""
}

// Parse reads the URLs and the hosts. Files are not read.
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

// Complete derives what follows from the settings, and draws the seed where none was given.
func (c *GatewayConfig) Complete() error {
	c.Flow.Seed = c.Router.Seed // 0: names that are unique everywhere
	c.Router.Seed = cmp.Or(c.Router.Seed, rand.Uint64())
	c.Events.Seed, c.Workers.Probe.Seed, c.Workers.Kubernetes.Seed = c.Router.Seed, c.Router.Seed, c.Router.Seed
	c.Events.Relearn = c.Router.Predictions.TTL
	c.Workers.Probe.BlockSize = c.Pools.BlockSize
	c.Replicas.Complete(c.Prefix)
	if p := c.MetricsPrefix; p != "" && !strings.HasSuffix(p, "_") && !strings.HasSuffix(p, ":") {
		c.MetricsPrefix = p + "_"
	}
	return errors.Join(c.Workers.Parse(), c.Validate())
}

// maxPrefixBytes keeps a prefix from being a text.
const maxPrefixBytes = 64

// metricName is the form of a Prometheus metric's name.
var metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)

// Validate asks each room, and checks what crosses rooms.
func (c *GatewayConfig) Validate() error {
	problems := []error{
		c.Edge.Validate(), c.Router.Validate(), c.Pools.Validate(), c.Models.Validate(), c.Flow.Queue.Validate(), c.Prefill.Validate(), c.Decode.Validate(),
		c.Events.Validate(), c.Remote.Validate(), c.Upstream.Validate(), c.Workers.Kubernetes.Validate(), c.Replicas.Validate(),
	}
	if c.Relay == "loop" && loop.New() == nil {
		problems = append(problems, setting.Errorf("relay", "this system has no loop: auto or goroutine"))
	}
	switch {
	case c.MetricsPrefix == "":
	case len(c.MetricsPrefix) > maxPrefixBytes:
		problems = append(problems, setting.Errorf("metrics-prefix", "it is longer than %d bytes", maxPrefixBytes))
	case !metricName.MatchString(c.MetricsPrefix):
		problems = append(problems, setting.Errorf("metrics-prefix", "a metric's name may hold letters, digits, _ and :, and not begin with a digit"))
	}
	if hints, err := edge.ParseHints(c.Edge.ClientHints, c.Edge.APIKeyFile != ""); err == nil && !hints.All && c.Edge.AdminKeyFile == "" &&
		router.Canonical(c.Router.Mode) == "direct" {
		problems = append(problems, setting.Errorf("router-mode", "direct serves only requests that name a worker, and client-hints keeps clients from it: "+
			"set client-hints to all, or admin-key-file for the keys of those who may"))
	}
	return errors.Join(problems...)
}

// routers is a router's Config for each role, with what only the stack has.
func (c *GatewayConfig) routers(forecast router.Forecast, engineBlock func(*pools.Worker, int) int) map[pools.Role]router.Config {
	base := c.Router
	base.Forecast, base.EngineBlock, base.RemoteIndex, base.SessionTTL = forecast, engineBlock, len(c.Remote.URLs) > 0, c.SessionTTL
	return base.ByRole()
}
