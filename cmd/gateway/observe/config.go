// Package observe is what an operator sees of the gateway's requests and workers: metrics, one log line a request,
// desired_workers, and the pools as GET /workers shows them. Its observers are called by handoff.Flow; what other
// rooms keep is read when it is asked for.
package observe

// Config is what is observed, and how.
type Config struct {
	// Utilization of 0 means [DefaultUtilization].
	Utilization float64 `default:"0.8" range:"0|0.1..1"`
	LogBlocks   bool    `flag:"log-blocks" default:"false" group:"Request log" help:"On: the request's log line names its prompt's 512-token blocks, for gateway load --from-log. Names are keyed and reveal no text."`
	LogRouting  bool    `flag:"log-routing" default:"false" group:"Request log" help:"On: the request's log line has up to 64 candidates of each role with their costs, and the cache predicted and found."`
}
