// Package observe is the operator's view of requests and workers: metrics, a log line per request, desired_workers,
// and the pools of GET /workers. handoff.Flow notifies its observers; other state is read on request.
package observe

// Config is the settings of logs and desired_workers.
type Config struct {
	// Utilization of 0 means [DefaultUtilization].
	Utilization float64 `default:"0.8" range:"0|0.1..1"`
	LogBlocks   bool    `flag:"log-blocks" default:"false" group:"Request log" help:"On: the request's log line names its prompt's 512-token blocks, for gateway load --from-log. Names are keyed and reveal no text."`
	LogRouting  bool    `flag:"log-routing" default:"false" group:"Request log" help:"On: the request's log line has up to 64 candidates of each role with their costs, and the cache predicted and found."`
}
