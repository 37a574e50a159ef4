package simulate

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
)

// Variant is one arm at one point of the sweep; it runs once for each seed.
type Variant struct {
	// Arm is the arm's name, Point the values of the sweep in the sweep's order.
	Arm   string
	Point []Value

	plan     Plan
	doc      *document
	fleet    []Group
	routers  map[pools.Role]router.Config
	replicas Replicas
}

// Value is one setting of a sweep.
type Value struct {
	Path string `json:"path"`
	Text string `json:"value"`
}

// Name is the arm and the point.
func (v *Variant) Name() string {
	name := v.Arm
	for _, p := range v.Point {
		name += " " + p.Path[strings.LastIndexByte(p.Path, '.')+1:] + "=" + p.Text
	}
	return name
}

// newVariant reads and checks one variant's document.
func newVariant(doc *document, arm string, point []override) (*Variant, error) {
	p, err := doc.plan()
	if err != nil {
		return nil, err
	}
	v := &Variant{Arm: arm, plan: *p, doc: doc}
	for _, s := range point {
		v.Point = append(v.Point, Value{s.path, s.value.Value})
	}
	if err := v.makeFleet(); err != nil {
		return nil, err
	}
	if err := v.makeRouters(); err != nil {
		return nil, err
	}
	if err := v.makeReplicas(); err != nil {
		return nil, err
	}
	if v.plan.Planner.ITL == 0 {
		v.plan.Planner.ITL = v.plan.SLO.ITL
	}
	if mode := v.plan.Planner.Mode; !slices.Contains([]string{"", "off", "advise", "act"}, mode) {
		return nil, doc.Errorf("planner.mode", "%q is none of off, advise, act", mode)
	}
	if _, err := v.queue(); err != nil {
		return nil, doc.Errorf("queue", "%w", err)
	}
	if err := v.checkWorkload(); err != nil {
		return nil, err
	}
	return v, v.checkSize()
}

// workersText is "8", "6P2D" and the like.
var workersText = regexp.MustCompile(`^(?:(\d+)|(\d+)[Pp](\d+)[Dd])$`)

// makeFleet reads the fleet.
func (v *Variant) makeFleet() error {
	f := &v.plan.Fleet
	groups := f.Groups
	if len(groups) == 0 {
		m := workersText.FindStringSubmatch(f.Workers)
		if m == nil {
			return v.doc.Errorf("fleet.workers", `%q is neither a number of workers, as 8, nor prefill and decode workers, as 6P2D`, f.Workers)
		}
		number := func(s string) int { n, _ := strconv.Atoi(s); return n }
		if m[1] != "" {
			groups = []GroupPlan{{Count: number(m[1]), Role: "both"}}
		} else {
			groups = []GroupPlan{{Count: number(m[2]), Role: "prefill"}, {Count: number(m[3]), Role: "decode"}}
		}
	}
	counts := map[pools.Role]int{}
	for _, g := range groups {
		role := pools.Role(cmp.Or(g.Role, "both"))
		if !slices.Contains([]pools.Role{pools.Both, pools.Prefill, pools.Decode}, role) {
			return v.doc.Errorf("fleet.groups", "role %q is none of both, prefill, decode", g.Role)
		}
		if g.Count < 0 || g.Count > 4096 {
			return v.doc.Errorf("fleet", "%d workers of role %s: from 0 to 4096", g.Count, role)
		}
		cfg, err := v.engine(g.Each.over(f.Each))
		if err != nil {
			return err
		}
		counts[role] += g.Count
		v.fleet = append(v.fleet, Group{Count: g.Count, Role: role, Engine: cfg, DeviceClass: g.DeviceClass})
	}
	for path, share := range map[string]float64{"fleet.kv_event_loss": f.EventLoss, "router.unknown_prompts": v.plan.Router.UnknownPrompts} {
		if !(share >= 0 && share <= 1) {
			return v.doc.Errorf(path, "%v is not a share from 0 to 1", share)
		}
	}
	if counts[pools.Both]+counts[pools.Decode] == 0 {
		return v.doc.Errorf("fleet", "no worker decodes: the fleet needs workers of role both or decode")
	}
	if size := v.fleet[0].Engine.BlockSize; slices.ContainsFunc(v.fleet, func(g Group) bool { return g.Engine.BlockSize != size }) {
		return v.doc.Errorf("fleet.groups", "block_tokens differs between groups: one router needs one block size")
	}
	return nil
}

// over fills a group's unset fields from the fleet's.
func (e Each) over(f Each) Each {
	if e.Fit == "" && e.Latency == nil {
		e.Fit, e.Latency = f.Fit, f.Latency
	}
	e.KVTokens, e.KVBytesPerToken = cmp.Or(e.KVTokens, f.KVTokens), cmp.Or(e.KVBytesPerToken, f.KVBytesPerToken)
	e.BlockTokens = cmp.Or(e.BlockTokens, f.BlockTokens)
	e.MaxNumSeqs, e.MaxNumBatchedTokens = cmp.Or(e.MaxNumSeqs, f.MaxNumSeqs), cmp.Or(e.MaxNumBatchedTokens, f.MaxNumBatchedTokens)
	e.ContextLength = cmp.Or(e.ContextLength, f.ContextLength)
	e.Slowdown = cmp.Or(e.Slowdown, f.Slowdown)
	e.BandwidthGB, e.TransferSetup = cmp.Or(e.BandwidthGB, f.BandwidthGB), cmp.Or(e.TransferSetup, f.TransferSetup)
	return e
}

// engine is the engine that a worker's settings make.
func (v *Variant) engine(e Each) (engine.Config, error) {
	var fit Fit
	if name := cmp.Or(e.Fit, "qwen3-32b-h200-tp2"); e.Latency == nil {
		var ok bool
		if fit, ok = FitNamed(name); !ok {
			return engine.Config{}, v.doc.Errorf("fleet.fit", "%q is none of %s", name, FitNames())
		}
	} else {
		fit.Latency = *e.Latency
	}
	tokens := cmp.Or(e.KVTokens, fit.KVTokens)
	switch {
	case e.BlockTokens < 0 || e.BlockTokens > 1<<16:
		return engine.Config{}, v.doc.Errorf("fleet.block_tokens", "%d is not between 1 and 65536", e.BlockTokens)
	case tokens == 0:
		return engine.Config{}, v.doc.Errorf("fleet.kv_tokens", "is needed: no source publishes the KV capacity of this fit's workers")
	case tokens < 0 || tokens > 1<<31:
		return engine.Config{}, v.doc.Errorf("fleet.kv_tokens", "%d is not between 1 and 2^31", tokens)
	case !(e.Slowdown >= 0) || e.Slowdown > 1000:
		return engine.Config{}, v.doc.Errorf("fleet.slowdown", "%v is not a factor from 0.001 to 1000", e.Slowdown)
	case !(e.BandwidthGB >= 0):
		return engine.Config{}, v.doc.Errorf("fleet.bandwidth_gb", "%v is not a number above 0", e.BandwidthGB)
	}
	block := cmp.Or(e.BlockTokens, 64)
	cfg := engine.Config{
		BlockSize: block, TotalKVBlocks: tokens / block, MaxNumSeqs: e.MaxNumSeqs, MaxNumBatchedTokens: e.MaxNumBatchedTokens,
		ContextLength: cmp.Or(e.ContextLength, min(262_144, tokens/block*block)), Latency: fit.Latency,
		BandwidthBytesPerSecond: e.BandwidthGB * 1e9, BytesPerToken: cmp.Or(e.KVBytesPerToken, fit.BytesPerToken), TransferSetup: e.TransferSetup,
		// The protocol's leases protect from deaths; there are none here.
		Lease: 24 * time.Hour,
	}
	if e.Slowdown > 0 {
		cfg.Speedup = 1 / e.Slowdown
	}
	if err := cfg.Validate(); err != nil {
		return cfg, v.doc.Errorf("fleet", "%s", strings.TrimPrefix(err.Error(), "engine: "))
	}
	return cfg, nil
}

// makeRouters reads the routers' settings.
func (v *Variant) makeRouters() error {
	all := v.plan.Router.PoolPlan
	v.routers = map[pools.Role]router.Config{}
	for _, pool := range []struct {
		role pools.Role
		own  PoolPlan
		path string
	}{{pools.Both, PoolPlan{}, "router"}, {pools.Prefill, v.plan.Router.Prefill, "router.prefill"},
		{pools.Decode, v.plan.Router.Decode, "router.decode"}} {
		cfg := router.DefaultConfig()
		cfg.Mode = cmp.Or(pool.own.Mode, all.Mode, cfg.Mode)
		either(&cfg.OverlapWeight, pool.own.OverlapWeight, all.OverlapWeight)
		cfg.Cost = cmp.Or(pool.own.Cost, all.Cost, cfg.Cost)
		either(&cfg.Credit.Overlap, pool.own.Credit, all.Credit)
		either(&cfg.Credit.Decay, pool.own.CreditDecay, all.CreditDecay)
		either(&cfg.Credit.PrefillScale, pool.own.PrefillScale, all.PrefillScale)
		either(&cfg.Credit.ActiveRequests, pool.own.RequestWeight, all.RequestWeight)
		cfg.PrefillLoad = cmp.Or(pool.own.PrefillLoad, all.PrefillLoad, cfg.PrefillLoad)
		either(&cfg.Temperature, pool.own.Temperature, all.Temperature)
		either(&cfg.Slice, pool.own.Slice, all.Slice)
		either(&cfg.QueueThreshold, pool.own.QueueThreshold, all.QueueThreshold)
		either(&cfg.SessionTTL, pool.own.SessionTTL, all.SessionTTL)
		either(&cfg.TrackPrefillTokens, pool.own.Track, all.Track)
		either(&cfg.Room, pool.own.Room, all.Room)
		cfg = cfg.For(pool.role)
		if err := cfg.Validate(); err != nil {
			path := pool.path
			if flag, _, ok := strings.Cut(err.Error(), ":"); ok && flag == "router-mode" && pool.own.Mode == "" {
				path = "router.mode"
			}
			return v.doc.Errorf(path, "%w", err)
		}
		v.routers[pool.role] = cfg
	}
	return nil
}

// either takes the first value that is set.
func either[T any](dst *T, values ...*T) {
	for _, v := range values {
		if v != nil {
			*dst = *v
			return
		}
	}
}

// queue reads the waiting room's settings. Without limits no request is refused.
func (v *Variant) queue() (queue.Config, error) {
	q := v.plan.Queue
	if q.Policy == "" || q.Policy == queue.Auto {
		routers := v.routers[pools.Prefill]
		q.Policy = routers.QueuePolicy()
	}
	cfg := queue.Config{
		Policy: q.Policy, Limit: cmp.Or(q.Limit, 1<<30),
		Timeout: cmp.Or(q.Timeout, 10*365*24*time.Hour), Bytes: 1 << 60, Target: q.Target, Classes: q.Classes,
	}
	return cfg, cfg.Validate()
}

// checkWorkload rejects what cannot be sent.
func (v *Variant) checkWorkload() error {
	w := &v.plan.Workload
	switch {
	case w.Trace != "" && w.made():
		return v.doc.Errorf("workload", "names a trace and makes requests up; it must be one of the two")
	case w.builtIn() && w.BlockTokens != 0:
		return v.doc.Errorf("workload.block_tokens", "is of a trace, and the plan names none: the built-in one has 512")
	case w.Speed < 0 || w.Speed != w.Speed || w.Speed > 1e6:
		return v.doc.Errorf("workload.speed", "%v is not a factor above 0", w.Speed)
	case w.Jitter < 0 || w.Jitter > time.Hour || w.Jitter > 0 && w.made():
		return v.doc.Errorf("workload.jitter", "%v is not from 0 to 1h, of a trace", w.Jitter)
	case w.BlockTokens < 0 || w.Limit < 0:
		return v.doc.Errorf("workload", "a negative number")
	}
	if err := v.checkClasses(); err != nil {
		return err
	}
	switch {
	case len(w.Families) > 0 && len(w.Stages) > 0:
		return v.doc.Errorf("workload", "has stages and families; it must be one of the two")
	case len(w.Families) > 0:
		return v.checkFamilies()
	case !w.made():
		return nil
	}
	const most = 1 << 24
	for _, f := range []struct {
		name        string
		n, from, to int
	}{
		{"input_tokens", w.InputTokens, 1, most}, {"output_tokens", w.OutputTokens, 1, most}, {"shared_tokens", w.SharedTokens, 0, most},
		{"groups", w.Groups, 0, 1 << 20}, {"prompts", w.Prompts, 0, 1 << 20}, {"turns", w.Turns, 0, 1000},
	} {
		if f.n < f.from || f.n > f.to {
			return v.doc.Errorf("workload."+f.name, "%d is not between %d and %d", f.n, f.from, f.to)
		}
	}
	if !(w.InputSigma >= 0 && w.InputSigma <= 3) {
		return v.doc.Errorf("workload.input_sigma", "%v is not between 0 and 3", w.InputSigma)
	}
	if len(w.Stages) == 0 {
		return v.doc.Errorf("workload.stages", "is needed: a list of rate and duration or requests")
	}
	for i, s := range w.Stages {
		if !(s.Rate > 0) || s.Rate > 1e6 || s.Duration < 0 || s.Requests < 0 || s.Duration == 0 && s.Requests == 0 {
			return v.doc.Errorf("workload.stages", "the stage number %d needs a rate above 0, and a duration or a number of requests", i+1)
		}
	}
	return nil
}

// blockTokens is the fleet's block size.
func (v *Variant) blockTokens() int { return v.fleet[0].Engine.BlockSize }

// fits refuses a fleet that could not hold the workload's longest request.
func (v *Variant) fits(where string, longest, answer int) error {
	for _, g := range v.fleet {
		if g.Count == 0 {
			continue
		}
		need := longest
		if g.Role != pools.Prefill {
			need += answer
		}
		if need > g.Engine.ContextLength || (need+g.Engine.BlockSize-1)/g.Engine.BlockSize+1 > g.Engine.TotalKVBlocks {
			return v.doc.Errorf("fleet.kv_tokens", "%s has a request of %d prompt and %d answer tokens, and a %s worker holds %d",
				where, longest, answer, g.Role, min(g.Engine.ContextLength, (g.Engine.TotalKVBlocks-1)*g.Engine.BlockSize))
		}
	}
	return nil
}

// title returns the fleet's name in a report.
func (v *Variant) title() string {
	var parts []string
	for _, g := range v.fleet {
		parts = append(parts, fmt.Sprintf("%d %s", g.Count, g.Role))
	}
	if v.plan.Planner.Mode == "act" {
		parts = append(parts, "moved by the planner")
	}
	return strings.Join(parts, ", ")
}

// decoders returns which workers decode, and how many do.
func (v *Variant) decoders() (each []bool, n float64) {
	for _, g := range v.fleet {
		for range g.Count {
			each = append(each, g.Role != pools.Prefill)
			if g.Role != pools.Prefill {
				n++
			}
		}
	}
	return each, n
}

// legs returns how many workers only prefill, and how many decode.
func (v *Variant) legs() [2]int {
	each, n := v.decoders()
	return [2]int{len(each) - int(n), int(n)}
}

// asked describes the variant's workload and limits.
func (v *Variant) asked() string { return fmt.Sprintf("%+v %+v", v.plan.Workload, v.plan.SLO) }

// serving is how many workers a leg is sent to: those of its role and of both. Without any, decode workers prefill.
func (v *Variant) serving(leg string) (n int) {
	spare := 0
	for _, g := range v.fleet {
		switch {
		case g.Role == pools.Both || string(g.Role) == leg:
			n += g.Count
		case g.Role == pools.Decode:
			spare += g.Count
		}
	}
	if n == 0 {
		return spare
	}
	return n
}

// workers is how many the fleet has.
func (v *Variant) workers() (n int) {
	for _, g := range v.fleet {
		n += g.Count
	}
	return n
}
