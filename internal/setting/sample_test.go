package setting

import (
	"time"
)

// sample has a setting of each kind and rule, under names of the gateway's.
type sample struct {
	HTTP struct {
		Host         string        `flag:"http-host" default:"127.0.0.1" form:"host" help:"Address to listen on."`
		Port         int           `flag:"http-port" default:"8000" range:"0..65535" help:"TCP port to listen on. 0 picks a free one and prints it."`
		AdminAddress string        `flag:"admin-address" form:"hostport" help:"HOST:PORT of administration."`
		ReadTimeout  time.Duration `flag:"drain-timeout" default:"60s" range:"100ms.." help:"How long a request may take to arrive."`
		IdleTimeout  time.Duration `flag:"sample-timeout" default:"120s" range:"1s.." help:"How long a connection is kept."`
		Heartbeat    time.Duration `flag:"sse-heartbeat" default:"15s" range:"0|100ms.." help:"How long a stream may be silent."`
	} `group:"HTTP"`
	Router    sampleRouter  `group:"Router"`
	Limit     int           `flag:"queue-limit" default:"1024" range:"0.." group:"Queue" help:"Most requests waiting."`
	Bytes     int64         `flag:"max-body-bytes" default:"512MiB" unit:"bytes" range:"1KiB.." group:"Queue" help:"Most bytes waiting."`
	Wait      time.Duration `flag:"queue-timeout" default:"60s" range:"1ms.." group:"Queue" help:"Longest wait."`
	Idle      time.Duration `flag:"stream-silence" default:"0s" range:"0s.." group:"Faults" help:"Longest silence."`
	Fallback  bool          `flag:"decode-fallback" default:"true" group:"Faults" help:"On: decode prefills."`
	Report    bool          `flag:"report-mode" default:"auto" oneof:"off=never|auto=when it helps" group:"Faults" help:"Whether requests ask."`
	Discovery struct {
		Etcd     []string      `flag:"etcd-endpoints" form:"address http https" mask:"user" help:"Members of the cluster."`
		Prefix   string        `flag:"discovery-prefix" default:"/tandem/workers" form:"path" help:"Prefix of keys."`
		LeaseTTL time.Duration `flag:"sample-ttl" default:"10s" range:"2s..1h" help:"How long."`
		NATSURL  string        `flag:"nats-url" form:"address nats tls ws wss" mask:"user" help:"The server."`
	} `group:"Discovery"`
	Workers struct {
		Prefill []string `flag:"prefill-url" sep:"space" form:"url http https" help:"A prefill worker."`
		Decode  []string `flag:"decode-url" sep:"space" form:"url http https" help:"A decode worker."`
		Both    []string `flag:"worker-url,static-endpoint" sep:"space" form:"url http https" help:"A worker."`
	} `group:"Workers by URL"`
	Level string `flag:"log-level" default:"info" oneof:"debug=all|info=some|warn=less|error=least" group:"Logging" help:"Least severe message."`

	_     int // no setting
	Inner int `default:"7"`
}

type sampleRouter struct {
	Mode        string        `flag:"router-mode" default:"kv" oneof:"-" help:"How a worker is chosen."`
	Weight      float64       `flag:"router-kv-overlap-score-weight,kv-overlap-score-weight" default:"1.0" range:"0.." help:"Weight of a hit."`
	Threshold   float64       `flag:"router-queue-threshold" default:"4.0" group:"Queue" help:"Above it requests wait."`
	Temperature float64       `flag:"router-temperature" default:"0.0" range:"0.." help:"Randomness."`
	Seed        uint64        `flag:"gateway-seed" default:"0" range:"0.." help:"Seed."`
	KVEvents    bool          `flag:"router-kv-events,kv-events" default:"true" help:"On: follow events."`
	TTL         time.Duration `flag:"router-ttl-secs" default:"120" unit:"s" range:"0.001..31536000" help:"Seconds."`
}

func (sampleRouter) Choices(string) []Choice {
	return []Choice{
		{Name: "kv", Help: "cost"}, {Name: "random", Help: "by lot"}, {Name: "least-loaded", Help: "fewest"},
		{Name: "round-robin", Help: "in turn, which is a line of help long enough to go on under its own beginning and not under the name"},
	}
}

// another has the settings of another command.
type another struct {
	Role  string `flag:"role" default:"both" group:"Worker" help:"Which role."`
	Count int    `flag:"role-count" default:"1" group:"Worker" help:"How many."`
}

// everything has both.
type everything struct {
	Gateway sample
	Worker  another
}

func gatewaySet() *Set { return NewSet(new(sample), new(another)) }
