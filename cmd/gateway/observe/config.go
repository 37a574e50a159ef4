// Package observe is the operator's view of requests and workers: metrics, a log line per request, desired_workers,
// and the pools of GET /workers. It makes the logger and
// the registry of metrics, which other packages take. handoff.Flow notifies its observers; other state is read on request.
package observe

// Config is the settings of logs and desired_workers.
type Config struct {
	// Utilization of 0 means [planner.DefaultUtilization].
	Utilization float64 `default:"0.8" range:"0|0.1..1"`
	// Ejection is the share of a pool's workers that may get no new requests because they are outliers.
	Ejection float64 `flag:"outlier-ejection" default:"0" range:"0..0.5" group:"Router" help:"Largest share of a pool's workers that get no new requests while they are outliers: slower than the others, or failing. At least one is left out, and two others stay. 0 leaves out none."`
	// Log is what the log line of a request has in addition.
	Log string `flag:"log-requests" default:"plain" oneof:"plain=nothing more|blocks=keyed names of its prompt's 512-token blocks, which reveal no text, for gateway load --from-log|routing=up to 64 candidates of each role with their costs, and the cache predicted and found|all=both" group:"Logging" help:"What a request's log line has in addition."`
}

// Blocks reports whether log lines name the prompt's blocks.
func (c *Config) Blocks() bool { return c.Log == "blocks" || c.Log == "all" }

// Routing reports whether log lines have the candidates.
func (c *Config) Routing() bool { return c.Log == "routing" || c.Log == "all" }
