package router

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/pools"
)

// Config configures a [Router]. Start from [DefaultConfig] and adapt it to a pool's role with [Config.For].
type Config struct {
	// Mode names the policy.
	Mode string `flag:"router-mode" default:"kv" oneof:"-" help:"How a request's worker is chosen. \"-\" and \"_\" are the same."`
	// OverlapWeight weighs prefill against decode in the classic cost.
	OverlapWeight float64 `flag:"router-kv-overlap-score-weight,kv-overlap-score-weight" default:"1.0" range:"0.." help:"Mode kv: weight of blocks to prefill against blocks in use. Higher improves TTFT, lower ITL. 0 ignores caches."`
	// Cost names the cost function of mode kv.
	Cost   string `flag:"router-cost" default:"classic" oneof:"classic=router-kv-overlap-score-weight times the blocks to prefill, plus the blocks held|credit=blocks to prefill less a credit for cached ones, by tier, plus blocks held and requests" help:"The cost of mode kv. credit also counts caches in host memory and on disk, and a hit against the backlog."`
	Credit Credit
	// TrackOutputBlocks weighs the growing output in the cost, less as an answer nears its expected length. Off, output
	// takes room but no weight.
	TrackOutputBlocks bool `flag:"router-track-output-blocks" default:"true" help:"On: the growing blocks of answers count as load, less towards the end given by nvext.agent_hints.osl."`
	// PrefillLoad names how booked prefill tokens decay: none, or by Forecast.
	PrefillLoad string `flag:"router-prefill-load-model" default:"none" help:"none counts a prompt whole until its first token; online lets it shrink over its expected prefill time. aic is refused."`
	// Slice is the length of prompt slices in mode eft, in tokens.
	Slice      int        `default:"4096" range:"0..1048576"`
	Thresholds Thresholds // take loaded workers out of the choice
	// Temperature of mode kv. 0 takes the lowest cost.
	Temperature float64 `flag:"router-temperature" default:"0.0" range:"0.." help:"Mode kv: randomness of the choice. 0 takes the cheapest; higher spreads one popular prefix."`
	// GPUWeight is how many requests a worker on a GPU takes for each that one on a CPU takes.
	GPUWeight float64 `flag:"encoder-cuda-to-cpu-ratio" default:"8" range:"0.001.." help:"Mode device-aware-weighted: requests of a GPU worker for each of a worker of device class cpu."`
	// Seed of all random choices. The same seed, pool, request and attempt, over
	// the same workers and loads, make the same choice.
	Seed uint64 `default:"0" range:"0.."`
	// KVEvents says that what workers publish of their KV caches reaches the
	// router's index. Those that publish nothing are predicted; without it, all.
	KVEvents bool `flag:"router-kv-events,kv-events" default:"true" help:"On: follow workers' KV events. Off: predict every cache; needs no NATS. Off with remote-index-url, unless set."`
	// Predictions bounds predicted caches. If MaxBlocks is 0, or the pool computes no prompts, nothing is predicted and
	// workers without events count as empty.
	Predictions index.PredictorConfig
	// PredictedTTL is how long a sent prompt counts as cached on a worker that publishes KV events, besides those
	// events. Prompts with the same prefix then follow it before the first event.
	PredictedTTL time.Duration `flag:"router-predicted-ttl-secs" default:"0" unit:"s" range:"0..31536000" help:"Seconds for which a sent prompt counts as cached before an event reports it; 2 suits bursts of one prompt. 0 is off."`
	// TrackPrefillTokens books prompt tokens yet to be computed, and weighs those of other requests.
	TrackPrefillTokens bool `flag:"router-track-prefill-tokens" default:"true" help:"On: prompt tokens yet to prefill count as a worker's load."`
	// TrackActiveBlocks books the blocks of prompts and of output, and weighs them.
	TrackActiveBlocks bool `default:"true"`
	// QueueThreshold times a worker's max_num_batched_tokens is the booked prefill tokens above which it is busy;
	// requests wait while all eligible workers are. Below 0: no worker is ever busy.
	QueueThreshold float64 `flag:"router-queue-threshold" default:"4.0" group:"Queue" help:"Requests wait while every prefill worker has more than this many times its max_num_batched_tokens to prefill. Below 0 never waits."`
	// Room demands that a worker has blocks and a sequence left for the request.
	Room bool `default:"true"`
	// RestOnly counts overlap only for workers that fetch just the missing blocks of a prompt
	// ([pools.Worker.FetchesRest]), as blocks not to transfer.
	RestOnly bool
	// EngineBlock, OnMarking: see [overlap.Config].
	EngineBlock func(w *pools.Worker, rank int) int
	OnMarking   func(overlap.Marking)
	// OnChoice runs with each candidate's terms after each choice of Reserve and [ReservePair]. It must not retain its
	// arguments and must be safe for concurrent use. It may be nil.
	OnChoice func(p *pools.Pool, req *Request, terms []Term)
	// Peers are the other gateways that book on the pool's workers, nil for none.
	Peers Peers
	// OnMode runs when mode auto chooses a policy for a pool. It must be safe for concurrent use and may be nil.
	OnMode func(p *pools.Pool, m Mode)
	// RemoteIndex: requests have a [Request.RemoteOverlap]. Recent sends count besides it, whatever KVEvents is.
	RemoteIndex bool
	// Forecast predicts times for mode min-ttft and the online prefill load model. It may be nil.
	Forecast Forecast
	// Occupies is how long a prompt keeps a worker from the next one, without what prompts of one step share; nil is
	// Forecast. Booked tokens do not matter.
	Occupies Forecast
	// OnBooking runs after each change of the bookings; made is set for a new one. It must be safe for concurrent use
	// and return at once. If nil, [Router.Changes] has nothing to report.
	OnBooking func(made bool)
	// SessionTTL is how long a session stays bound after its latest request, in whole milliseconds; 0 binds none.
	// Prefill and decode pools bind separately.
	SessionTTL time.Duration
	// Transfer predicts the time from a prompt's end on a prefill worker to the first token. It may be nil.
	Transfer func(w *pools.Worker, tokens int) time.Duration
}

// ByRole returns c for each role.
func (c Config) ByRole() map[pools.Role]Config {
	roles := map[pools.Role]Config{}
	for _, role := range []pools.Role{pools.Prefill, pools.Decode, pools.Both} {
		roles[role] = c.For(role)
	}
	return roles
}

// Choices are the registered policies.
func (Config) Choices(string) (all []setting.Choice) {
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		all = append(all, setting.Choice{Name: name, Help: policies[name].help})
	}
	return all
}

// online is the prefill load model that learns from what prefill took.
const online = "online"

// DefaultConfig returns the settings for a pool whose workers serve requests alone.
func DefaultConfig() Config { return setting.Default[Config]() }

// For returns c for a pool of the given role. Prefill workers are chosen for overlap and hold a request only until
// their answer: neither blocks nor room count. Decode workers are chosen for load: prompt tokens do not count, and
// overlap only if it saves transferred blocks. A pool of both uses all of it.
func (c Config) For(role pools.Role) Config {
	switch role {
	case pools.Prefill:
		c.TrackActiveBlocks = false
		c.Credit.ActiveRequests = 0
		c.Room = false
	case pools.Decode:
		c.RestOnly, c.OverlapWeight = c.OverlapWeight > 0, 0
		c.TrackPrefillTokens = false
		c.QueueThreshold = -1
		c.Predictions, c.PredictedTTL = index.PredictorConfig{}, 0
	}
	return c
}

// BindsLate reports whether prompts wait in the queue for their worker: only in pools that do not generate, since
// answers make the end of a prompt unpredictable.
func (c *Config) BindsLate() bool {
	mode := Canonical(c.Mode)
	return (mode == "eft" || mode == "auto") && !c.ignoresOverlap() && !c.TrackActiveBlocks
}

// QueuePolicy returns the order of waiting requests that queue policy auto uses for the mode.
func (c *Config) QueuePolicy() string {
	if mode := Canonical(c.Mode); mode == "eft" || mode == "auto" {
		return "hrrn"
	}
	return "fcfs"
}

// ignoresOverlap reports whether cached blocks affect no choice and no booking.
func (c *Config) ignoresOverlap() bool { return c.OverlapWeight == 0 && !c.TrackPrefillTokens }

func (c *Config) sources() overlap.Config {
	o := overlap.Config{
		Ignored: c.ignoresOverlap() && !c.RestOnly, RestOnly: c.RestOnly, Events: c.KVEvents, RemoteIndex: c.RemoteIndex,
		Predictions: c.Predictions, OnMarking: c.OnMarking, EngineBlock: c.EngineBlock,
	}
	if c.PredictedTTL > 0 {
		o.Recent = c.Predictions
		if o.Recent.MaxBlocks == 0 {
			o.Recent = DefaultConfig().Predictions
		}
		o.Recent.TTL, o.Recent.LRU = c.PredictedTTL, false
	}
	return o
}

// Validate returns every setting that is out of range.
func (c Config) Validate() error {
	var problems []error
	switch {
	case c.PrefillLoad == "aic":
		problems = append(problems, setting.Errorf("router-prefill-load-model",
			"aic is Dynamo's table of measured engines, which Tandem does not have; "+
				"online learns the same from what prefill took"))
	case c.PrefillLoad != "none" && c.PrefillLoad != online:
		problems = append(problems, setting.Errorf("router-prefill-load-model", "%q is none of none, %s", c.PrefillLoad, online))
	}
	return errors.Join(append(problems, setting.Check(&c))...)
}
