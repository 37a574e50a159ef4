// Package problems decides what is wrong with a gateway and its workers, since when, and what to do. [Find] is pure: it
// lists the problems of one moment's [Facts], causes before what follows from them. A [Tracker] adds what takes time.
package problems

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/pools"
)

// Severity orders problems by urgency.
type Severity string

// The severities.
const (
	Critical Severity = "critical" // clients get errors now
	Warning  Severity = "warning"  // clients are served slower, or the next failure reaches them
	Info     Severity = "info"
)

// severities lists them, the most urgent first.
var severities = []Severity{Critical, Warning, Info}

// Kind names what is wrong. Each has a page of that name in docs/runbooks.
type Kind string

// The kinds.
const (
	NoWorkers           Kind = "no_workers"
	PoolDead            Kind = "pool_dead"
	NATSLost            Kind = "nats_lost"
	EtcdLost            Kind = "etcd_lost"
	RolloutSlow         Kind = "rollout_slow"
	WorkerFlapping      Kind = "worker_flapping"
	WorkerLost          Kind = "worker_lost"
	WorkerDisagrees     Kind = "worker_disagrees"
	CircuitOpen         Kind = "circuit_open"
	WorkerRefused       Kind = "worker_refused"
	WorkerSlow          Kind = "worker_slow"
	ClassOverload       Kind = "class_overload"
	KVFull              Kind = "kv_full"
	PoolLimit           Kind = "pool_limit"
	RequestsFail        Kind = "requests_fail"
	RetriesRefused      Kind = "retries_refused"
	FirstTokenSlow      Kind = "first_token_slow"
	TokenizerDistrusted Kind = "tokenizer_distrusted"
	KVEventsLost        Kind = "kv_events_lost"
	IndexLost           Kind = "index_lost"
	PodsUnwatched       Kind = "pods_unwatched"
	PeerMissing         Kind = "peer_missing"
	PairsShut           Kind = "pairs_shut"
	CertificateEnds     Kind = "certificate_ends"
	TooFewWorkers       Kind = "too_few_workers"
)

// Problem is one thing that is wrong.
type Problem struct {
	Kind     Kind     `json:"kind"`
	Severity Severity `json:"severity"`
	// Subject is a pool as MODEL/ROLE, a model, or "gateway".
	Subject string `json:"subject"`
	// Workers are the affected workers, if some.
	Workers []string  `json:"workers,omitempty"`
	Since   time.Time `json:"since"`
	// Reason describes the problem in a sentence, Remedy what to do; Help is the URL of a page with more.
	Reason string `json:"reason"`
	Remedy string `json:"remedy"`
	Help   string `json:"help"`
	// Because is the kind of the problem that this one follows from, empty for none.
	Because Kind `json:"because,omitempty"`

	model string
	role  pools.Role
	part  float64 // of the pool's workers that is affected, 0 for all
}

// Report is the problems of one moment, as GET /problems answers them.
type Report struct {
	At       time.Time `json:"at"`
	Problems []Problem `json:"problems"`
}

// Age returns how long the problem has lasted, in whole seconds.
func (p *Problem) Age(now time.Time) time.Duration { return now.Sub(p.Since).Truncate(time.Second) }

// row is what is known of a kind. The table's order is the order of problems of one severity.
type row struct {
	kind     Kind
	severity Severity
	remedy   string
	// causes are the kinds that it may follow from, at the same model.
	causes []Kind
}

// lessCapacity are the kinds that leave a model with less capacity.
var lessCapacity = []Kind{PoolDead, RolloutSlow, WorkerFlapping, WorkerLost, CircuitOpen, WorkerSlow}

var table = []row{
	{NoWorkers, Critical, "Start workers, or correct where the gateway looks for them.", []Kind{EtcdLost, PodsUnwatched}},
	{PoolDead, Critical, "Start workers of this role, or bring back those that are named.", nil},
	{NATSLost, Warning, "Restart NATS, or restore the network to it.", nil},
	{EtcdLost, Warning, "Restart etcd, or restore the network to it.", nil},
	{RolloutSlow, Warning, "Roll the workers back to their previous version or settings.", nil},
	{WorkerFlapping, Warning, "Cordon the worker, then read its log for why it ends.", nil},
	{WorkerLost, Warning, "Restart the workers; forget those that will not return.", nil},
	{WorkerDisagrees, Warning, "Restart the workers with the settings of the others.", nil},
	{CircuitOpen, Warning, "Read the workers' logs, then restart or cordon them.", nil},
	{WorkerRefused, Warning, "Correct the setting that the reason names.", nil},
	{WorkerSlow, Warning, "Cordon the workers, then compare their machines with the others'.", nil},
	{ClassOverload, Warning, "Slow the clients of this class down, or give the class a larger quantum.", lessCapacity},
	{KVFull, Warning, "Add decode workers, or lower the clients' max_tokens.", lessCapacity},
	{PoolLimit, Warning, "Add workers of this role, or slow clients down.", append(lessCapacity, KVFull, ClassOverload)},
	{RequestsFail, Critical, "Read the lines \"leg failed\" of the log: they name the worker and the error.",
		append(lessCapacity, ClassOverload, KVFull, PoolLimit)},
	{RetriesRefused, Warning, "Find the one cause of many failures in the lines \"leg failed\" of the log.",
		append(lessCapacity, RequestsFail)},
	{FirstTokenSlow, Warning, "Open the slowest requests in the console and see which part takes longest.",
		append(lessCapacity, ClassOverload, KVFull, PoolLimit, PairsShut)},
	{TokenizerDistrusted, Warning, "Give the gateway the engines' tokenizer and chat template, then send SIGHUP.", []Kind{WorkerDisagrees}},
	{KVEventsLost, Warning, "Check the workers' publisher of KV events.", []Kind{NATSLost, PoolDead}},
	{IndexLost, Warning, "Restart the remote index, or correct its URL.", nil},
	{PodsUnwatched, Warning, "Restore access to the API server.", nil},
	{PeerMissing, Warning, "Restart that gateway, or restore its connection to NATS.", []Kind{NATSLost}},
	{PairsShut, Warning, "Check the network between the pairs that the log names.", lessCapacity},
	{CertificateEnds, Warning, "Renew the certificate's files; the gateway reads them within 10 s.", nil},
	{TooFewWorkers, Info, "Add workers of this role.", append(lessCapacity, ClassOverload, KVFull, PoolLimit)},
}

// Kinds lists every kind with its least severity, in the order of urgency.
func Kinds() (all []Problem) {
	for _, r := range table {
		all = append(all, Problem{Kind: r.kind, Severity: r.severity, Remedy: r.remedy, Help: HelpURL + string(r.kind) + ".md"})
	}
	return all
}

// HelpURL is the folder of the kinds' pages.
const HelpURL = "https://github.com/tandem-pd/tandem/blob/main/docs/runbooks/"

// rank is a kind's place in the table.
func rank(k Kind) int { return slices.IndexFunc(table, func(r row) bool { return r.kind == k }) }

// list collects problems, at most one of a kind and subject.
type list []Problem

// add adds a problem with what the table has of its kind, and returns it until the next call.
func (l *list) add(k Kind, model string, role pools.Role, reason string, workers ...string) *Problem {
	r, subject := table[rank(k)], cmp.Or(model, "gateway")
	if role != "" {
		subject += "/" + string(role)
	}
	*l = append(*l, Problem{
		Kind: k, Severity: r.severity, Subject: subject, Workers: workers, Reason: reason, Remedy: r.remedy,
		Help: HelpURL + string(k) + ".md", model: model, role: role,
	})
	return &(*l)[len(*l)-1]
}

// when adds a problem of a model or, without one, of the gateway, if there is one.
func (l *list) when(is bool, k Kind, model, reason string, workers ...string) {
	if is {
		l.add(k, model, "", reason, workers...)
	}
}

// criticalIf makes the problem critical or a warning.
func (p *Problem) criticalIf(critical bool) {
	if p.Severity = Warning; critical {
		p.Severity = Critical
	}
}

// leastPart is the part of a pool's workers that must be affected before the pool's problems are put down to them.
const leastPart = .1

// explains reports whether p is a cause of q, of one of the kinds that q may follow from.
func (p *Problem) explains(q *Problem) bool {
	if p.model != "" && q.model != "" && p.model != q.model {
		return false
	}
	return p.part == 0 || p.part >= leastPart && (q.role == "" || p.role == q.role)
}

// ordered names causes, has them inherit the severity of what follows from them, and sorts: causes first, by severity
// and kind.
func (l list) ordered() []Problem {
	slices.SortFunc(l, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(rank(a.Kind), rank(b.Kind)), strings.Compare(a.Subject, b.Subject))
	})
	for i := range l {
		q := &l[i]
		causes := table[rank(q.Kind)].causes
		root := slices.IndexFunc(l, func(p Problem) bool {
			return p.Because == "" && slices.Contains(causes, p.Kind) && p.explains(q)
		})
		if root >= 0 {
			q.Because = l[root].Kind
			l[root].Severity = severities[min(urgency(q), urgency(&l[root]))]
		}
	}
	slices.SortStableFunc(l, func(a, b Problem) int {
		return cmp.Or(min(len(a.Because), 1)-min(len(b.Because), 1), urgency(&a)-urgency(&b))
	})
	return l
}

// urgency is the place of the problem's severity.
func urgency(p *Problem) int { return slices.Index(severities, p.Severity) }
