// Package observe is what an operator sees of the gateway's requests and workers: metrics, one log line a request,
// desired_workers, and the pools as GET /workers shows them. Its observers are called by handoff.Flow; what other
// rooms keep is read when it is asked for.
package observe

// Config is what is observed, and how.
type Config struct {
	// Utilization of 0 means [DefaultUtilization].
	Utilization float64 `default:"0.8" range:"0|0.1..1"`
	LogBlocks   bool    `flag:"log-blocks" default:"false" group:"Request log" help:"On: each request's log line names the 512-token blocks of its prompt, 8 letters a block, for gateway load --from-log. Equal names in one run are equal beginnings, and reveal nothing more: they are made with a key that is drawn at the start. Lines of long prompts grow." when:"you want a trace of real traffic"`
	LogRouting  bool    `flag:"log-routing" default:"false" group:"Request log" help:"On: each request's log line names up to 64 candidates of each role with each term of their cost, and what was predicted to be cached next to what was. Lines grow by about 200 bytes a candidate." when:"a choice of workers is not understood"`
}
