// Package kubernetes finds workers among the pods of one namespace, by their labels. It lists and watches them at the
// API server over HTTPS, with the service account that is mounted into the gateway's own pod.
//
// A pod's worker is listed from when the pod is first ready until it is gone. While the pod is not ready or is being
// deleted, the worker is cordoned. A [discovery.Prober] queries the rest from the worker. DESIGN.md, next to package
// discovery, has what may go wrong.
package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/internal/metrics"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// Config selects the pods that are workers; without a Selector none. A zero field means its default.
type Config struct {
	// Selector may have a namespace in front, with a colon.
	Selector string `flag:"kubernetes-selector" group:"Discovery" help:"Label selector of worker pods, as tandem.dev/pool=qwen; of another namespace than the gateway's as NAMESPACE:SELECTOR. Needs get, list and watch of pods. Roles: label tandem.dev/role, llm-d's or AIBrix's. Empty is off."`

	// Server is the https URL of the API server; by default that of the pod's environment.
	Server string
	// Account is the folder of the service account's token, ca.crt and namespace; by default where Kubernetes mounts it.
	Account string
	// Timeout is how long one answer may take, by default 30 s.
	Timeout time.Duration
	// Length is how long one watch lasts, plus up to half at random; by default 60 s. A dead connection is noticed by
	// then.
	Length time.Duration
	// Retry is the backoff of failed attempts, by default 500 ms to 30 s.
	Retry guard.Backoff
	// Seed of pauses.
	Seed uint64
}

const defaultAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// Bounds of what goes into a URL.
const (
	maxSelectorBytes  = 1024
	maxNamespaceBytes = 63
)

// pods returns the namespace, empty for the gateway's own, and the label selector of the pods.
func (c *Config) pods() (namespace, selector string) {
	if namespace, selector, ok := strings.Cut(c.Selector, ":"); ok { // which no selector has
		return namespace, selector
	}
	return "", c.Selector
}

// Validate names the first setting that is wrong.
func (c *Config) Validate() error {
	namespace, selector := c.pods()
	control := func(r rune) bool { return r < ' ' || r > '~' }
	switch {
	case len(c.Selector) > maxSelectorBytes || strings.ContainsFunc(c.Selector, control):
		return setting.Errorf("kubernetes-selector", "want LABEL=VALUE, separated by commas, at most %d printable characters", maxSelectorBytes)
	case len(namespace) > maxNamespaceBytes ||
		strings.ContainsFunc(namespace, func(r rune) bool { return r != '-' && (r < 'a' || r > 'z') && (r < '0' || r > '9') }):
		return setting.Errorf("kubernetes-selector", "the namespace: want lower-case letters, digits and -, at most %d", maxNamespaceBytes)
	case namespace != "" && selector == "":
		return setting.Errorf("kubernetes-selector", "the namespace needs a selector behind it")
	}
	return nil
}

// Finder watches pods and passes the workers among them to a [discovery.Prober]. While the API server is unreachable the
// workers stay as they were.
type Finder struct {
	cfg  Config
	api  *api
	set  func([]discovery.Endpoint)
	sink Sink
	log  *slog.Logger
	rng  *rand.Rand

	strange guard.LogLimiter

	// Run's own.
	pods    pods
	version string // to resume a watch from; empty: list first
	applied applied
	failed  int  // consecutive attempts
	stuck   int  // consecutive watches without progress
	down    bool // logged: the API server is unusable
	overran bool // logged: too many pods

	away   atomic.Pointer[string]
	up     prometheus.Gauge
	counts *prometheus.GaugeVec
}

// New returns a Finder that passes all workers to set at each change, and cordons and refusals to sink: a Prober's Set
// and its sink. The error names what the service account lacks.
func New(cfg Config, set func([]discovery.Endpoint), sink Sink, log *slog.Logger, reg prometheus.Registerer) (*Finder, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Timeout, cfg.Length = cmp.Or(cfg.Timeout, 30*time.Second), cmp.Or(cfg.Length, time.Minute)
	cfg.Retry = cmp.Or(cfg.Retry, guard.Backoff{Min: 500 * time.Millisecond, Max: 30 * time.Second})
	server, err := newAPI(cfg)
	if err != nil {
		return nil, fmt.Errorf("kubernetes-selector: %w", err)
	}
	m := metrics.In(reg)
	return &Finder{
		cfg: cfg, api: server, set: set, sink: sink, log: log, rng: rand.New(rand.NewPCG(cfg.Seed, 0)),
		strange: guard.LogLimiter{Burst: 10, Window: time.Minute},
		up:      m.Gauge("kubernetes_up", "1 while workers' pods are watched at the API server.").WithLabelValues(),
		counts:  m.Gauge("kubernetes_pods", "Pods of kubernetes-selector: taken, cordoned, waiting, refused, ignored.", "state"),
	}, nil
}

// Run follows pods until ctx ends, when it returns nil. It may be called once.
func (f *Finder) Run(ctx context.Context) error {
	defer f.api.close()
	for ctx.Err() == nil {
		err := f.step(ctx)
		if err == nil || ctx.Err() != nil {
			continue
		}
		pause := f.cfg.Retry.Delay(f.failed, f.rng)
		f.failed++
		switch {
		case errors.Is(err, errGone):
			f.version = ""
			f.log.Info("listing the workers' pods again", "reason", err)
		case f.failed == 1 && f.version != "": // it usually resumes
			f.log.Debug("watch of the workers' pods ended", "error", err)
		default:
			f.unusable(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

// Away returns why the API server cannot be used, empty while it can.
func (f *Finder) Away() string {
	if why := f.away.Load(); why != nil {
		return *why
	}
	return ""
}

// unusable reports once that the API server cannot be used.
func (f *Finder) unusable(err error) {
	f.up.Set(0)
	f.away.Store(new(err.Error()))
	if !f.down {
		f.down = true
		f.log.Warn("workers' pods cannot be watched; keeping those known", "namespace", f.api.namespace, "selector", f.cfg.Selector, "error", err)
	}
}

// usable reports that the pods are watched.
func (f *Finder) usable() {
	f.up.Set(1)
	f.away.Store(nil)
	if f.down {
		f.down = false
		f.log.Info("workers' pods are watched again", "namespace", f.api.namespace, "selector", f.cfg.Selector)
	}
}

// step lists the pods if necessary and watches them once. It returns nil if the watch ended on schedule.
func (f *Finder) step(ctx context.Context) error {
	if f.version == "" || f.pods.over { // ignored pods may fit now
		all, version, err := f.api.list(ctx, maxPods, f.odd)
		if err != nil {
			return err
		}
		f.version = version
		f.pods.replace(all)
		f.apply()
	}
	length := f.cfg.Length + time.Duration(f.rng.Int64N(int64(f.cfg.Length)/2+1))
	from := f.version
	var began time.Time
	err := f.api.watch(ctx, from, length, func() { began = time.Now(); f.usable() }, f.take, f.odd)
	if began.IsZero() {
		return err
	}
	lasted := time.Since(began)
	switch {
	case lasted >= length/4:
		f.failed = 0
	case err == nil:
		err = fmt.Errorf("the API server ended the watch after %v", lasted.Round(time.Millisecond))
	}
	if f.stuck++; err == nil || f.version != from {
		f.stuck = 0
	}
	if f.stuck > 1 { // the next entry of the history may break the watch
		f.stuck, f.version = 0, ""
	}
	return err
}

// take applies one change.
func (f *Finder) take(e event) {
	f.version = e.version
	changed := false
	switch e.kind {
	case "ADDED", "MODIFIED":
		changed = f.pods.put(&e.pod)
	case "DELETED":
		changed = f.pods.remove(e.pod.Metadata.Name)
	}
	if changed {
		f.apply()
	}
	f.bounded()
}

// apply passes changes to the sink. A worker that leaves is cordoned until it is gone.
func (f *Finder) apply() {
	t := f.pods.next(f.applied)
	for _, id := range t.hold {
		f.sink.Hold(id, true)
		f.log.Info("worker cordoned", "worker", id, "reason", t.reasons[id])
	}
	for _, id := range t.gone {
		f.sink.Remove(id)
	}
	for _, id := range t.forgive {
		f.sink.Remove(id)
	}
	f.set(f.pods.endpoints())
	for _, id := range t.gone {
		f.sink.Hold(id, false)
	}
	for _, id := range t.lift {
		f.sink.Hold(id, false)
		f.log.Info("worker uncordoned: its pod is ready", "worker", id)
	}
	for _, id := range t.refuse {
		f.sink.Refuse(pools.Worker{ID: id}, errors.New(t.reasons[id]))
	}
	f.applied = t.next
	counts := f.pods.count()
	for _, s := range states {
		f.counts.WithLabelValues(string(s)).Set(float64(counts[s]))
	}
	f.bounded()
}

// bounded logs once that there are more than maxPods pods.
func (f *Finder) bounded() {
	if f.pods.over && !f.overran {
		f.log.Warn("too many pods; some are ignored", "selector", f.cfg.Selector, "limit", maxPods)
	}
	f.overran = f.pods.over
}

// odd logs an object that is no Pod.
func (f *Finder) odd(err error) {
	if suppressed, ok := f.strange.Allow("odd", time.Now()); ok {
		f.log.Warn("object of the API server ignored", "error", err, "suppressed", suppressed)
	}
}
