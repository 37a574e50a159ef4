package problems

import (
	"slices"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router/replica"
)

// Facts are what is known of a gateway and its workers at one moment.
type Facts struct {
	Now    time.Time
	Pools  []Pool
	Models []Model
	Totals
	// NATS, Etcd and Pods are why the server cannot be reached, empty while it can or is not used.
	NATS, Etcd, Pods string
	Peers            []replica.Peer
	CutOff           bool                 // no other gateway's bookings arrive
	Certificates     map[string]time.Time // when they end, by use
	Indexes          []string             // remote indexes that fail, each with its error
	Refused          []pools.Refusal
	// Fallback reports that decode workers may compute prompts.
	Fallback bool

	before Totals // at the begin of [lately]; of [Tracker]
}

// Totals have counters since the start.
type Totals struct {
	Queues         map[string]queue.Stats // by model; not changed later
	RetriesRefused uint64

	at time.Time // of [Tracker]
}

// queue returns a model's queue, its totals counted lately. Expired requests count as refused.
func (f *Facts) queue(model string) queue.Stats {
	q, was := f.Queues[model], f.before.Queues[model]
	q.GrantedTotal -= was.GrantedTotal
	q.RefusedTotal += q.ExpiredTotal - was.RefusedTotal - was.ExpiredTotal
	q.Classes = slices.Clone(q.Classes)
	for i := range was.Classes {
		q.Classes[i].RefusedTotal -= was.Classes[i].RefusedTotal
	}
	return q
}

// serves reports whether a model has workers of a role that serve.
func (f *Facts) serves(model string, role pools.Role) bool {
	return slices.ContainsFunc(f.Pools, func(p Pool) bool { return p.Model == model && p.Role == role && p.serving() > 0 })
}

// Pool is the workers of a model in one role.
type Pool struct {
	Model   string
	Role    pools.Role
	Desired int // workers that the load needs
	Workers []Worker

	usual   float64 // speed of the processes before the young ones, 0 unknown; of [Tracker]
	rollout float64 // the young workers' share of it, if that is too low
	context int     // that most workers have
}

// Worker is one worker of a pool, as GET /workers has it.
type Worker struct {
	observe.WorkerReport
	Process string // changes with a restart
	Failure string // of its latest failed call, while its circuit is not closed
	Context int    // longest prompt and answer in tokens, 0 unknown
	Events  string // why its KV events are not followed, empty if they are

	returns int  // in the last [flapWindow]; of [Tracker]
	young   bool // its process began after the gateway's, at most [rolloutWindow] ago; of [Tracker]
}

// serves reports whether the worker gets requests.
func (w *Worker) serves() bool {
	return w.State == pools.Up.String() && (w.Circuit == "" || w.Circuit == fault.Closed)
}

// worker names a worker of the pool by its role.
func (p *Pool) worker() string { return strings.TrimPrefix(string(p.Role)+" worker", "both ") }

// Model is a model's outcomes and tokenizer.
type Model struct {
	Name string
	// Ended requests of about the last minute, and those that failed or were refused; TTFT is their p99.
	Ended, Failed int
	TTFT          time.Duration
	Trust         models.TrustState
	ShutPairs     int // pairs of workers that hand over no prompts
}
