package router

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/index"
)

// Config of a [Router]. Start from [DefaultConfig], and let [Config.For] make
// of it what a pool's role needs.
type Config struct {
	// Mode names the policy: see [Policies]. "-" and "_" mean the same.
	Mode string
	// OverlapWeight weighs prefill against decode in mode kv, ≥ 0. A higher one
	// favours the worker that has most of the prompt cached (TTFT), a lower one
	// the worker with the fewest active blocks (ITL). 0: overlap does not count.
	OverlapWeight float64
	// Cost is what mode kv compares workers by: "classic", which OverlapWeight
	// weighs, or "credit", which Credit does.
	Cost   string
	Credit Credit
	// Temperature of mode kv, ≥ 0. 0 takes the lowest cost; a higher one spreads
	// requests over workers of higher cost as well.
	Temperature float64
	// GPUWeight is how many requests a worker on a GPU takes for each that one on
	// a CPU takes, in mode device-aware-weighted; above 0.
	GPUWeight float64
	// TrackPrefillTokens books prompt tokens yet to be computed, and weighs those
	// of other requests.
	TrackPrefillTokens bool
	// TrackActiveBlocks books the blocks of prompts and of output, and weighs
	// them.
	TrackActiveBlocks bool
	// TrackOutputBlocks counts blocks of output in the cost as they grow, less as
	// the end comes near that a request said to expect. Without it they take room
	// and weigh nothing.
	TrackOutputBlocks bool
	// PrefillLoad is the model by which booked prefill tokens decay: "none", or
	// "online", by what Forecast says a prompt takes.
	PrefillLoad string
	// Thresholds take loaded workers out of the choice.
	Thresholds Thresholds
	// QueueThreshold times a worker's max_num_batched_tokens is the booked
	// prefill tokens above which it is busy; requests wait while all eligible
	// workers are. Below 0: no worker is ever busy.
	QueueThreshold float64
	// DefaultMaxBatchedTokens stands for max_num_batched_tokens where a worker
	// did not say, ≥ 1.
	DefaultMaxBatchedTokens int
	// Room demands that a worker has blocks and a sequence left for the request.
	Room bool
	// KVEvents says that what workers publish of their KV caches reaches the
	// router's index. Those that publish nothing are predicted; without it, all.
	KVEvents bool
	// Predictions is how long and how much is predicted. With a MaxBlocks of 0,
	// and in a pool that computes no prompts, nothing is, and workers without
	// events count as holding nothing.
	Predictions index.PredictorConfig
	// Parity is when events that answers contradict are not believed; its zero value
	// compares nothing. It needs Predictions to fall back to.
	Parity ParityConfig
	// EngineBlock is the tokens in a block of a rank's engine where they are told
	// from those of the pool, 0 unknown; nil knows none. It is called where an answer
	// differs from what was believed.
	EngineBlock func(w *pools.Worker, rank int) int
	// IndexMaxBlocks bounds the index that a [Set] makes for a pool, as
	// [index.Config] has it: 0 means 2^26 pairs of block and rank.
	IndexMaxBlocks int
	// Told says that an index elsewhere is asked: what was sent to a worker that
	// publishes counts beside what is told of it too, KVEvents or not.
	Told bool
	// PredictedTTL is how long a prompt counts as cached on a worker that publishes
	// KV events, from when it was last sent there, beside what the worker says: so
	// that siblings of a prompt that come before the first event go where it is
	// being computed. 0: not at all.
	PredictedTTL time.Duration
	// Forecast is what mode min-ttft and the prefill load model online predict
	// times by; nil knows nothing.
	Forecast Forecast
	// Seed of all random choices. The same seed, pool, request and attempt, over
	// the same workers and loads, make the same choice.
	Seed uint64
}

// Online is the prefill load model that learns from what prefill took.
const Online = "online"

// DefaultConfig returns the settings for a pool whose workers serve requests
// alone.
func DefaultConfig() Config {
	return Config{
		Mode:                    "kv",
		OverlapWeight:           1,
		Cost:                    Classic,
		Credit:                  DefaultCredit(),
		TrackOutputBlocks:       true,
		PrefillLoad:             "none",
		GPUWeight:               8,
		TrackPrefillTokens:      true,
		TrackActiveBlocks:       true,
		QueueThreshold:          4,
		DefaultMaxBatchedTokens: 8192,
		Room:                    true,
		KVEvents:                true,
		Predictions:             index.PredictorConfig{TTL: 2 * time.Minute, MaxBlocks: 1 << 20, PruneRatio: 0.8},
		Parity:                  DefaultParity(),
	}
}

// For returns c for a pool of the given role. Prefill workers are chosen for
// overlap and hold a request only until their answer, so their blocks are not
// tracked and room is not demanded. Decode workers are chosen for load: prompt
// tokens are not tracked and overlap does not count, which leaves the active
// blocks as the cost. A pool of both keeps all of it.
func (c Config) For(role pools.Role) Config {
	switch role {
	case pools.Prefill:
		c.TrackActiveBlocks = false
		c.Credit.ActiveRequests = 0
		c.Room = false
	case pools.Decode:
		c.OverlapWeight = 0
		c.TrackPrefillTokens = false
		c.QueueThreshold = -1
		c.Predictions, c.PredictedTTL = index.PredictorConfig{}, 0
	}
	return c
}

// blind reports whether what is cached changes no choice and no booking.
func (c *Config) blind() bool { return c.OverlapWeight == 0 && !c.TrackPrefillTokens }

// Validate reports the first setting that is out of range, by the name of its
// flag.
func (c Config) Validate() error {
	if _, ok := policies[Canonical(c.Mode)]; !ok {
		return fmt.Errorf("router-mode: %q is none of %s", c.Mode, names(Policies()))
	}
	switch {
	case c.Cost != Classic && c.Cost != Credited:
		return fmt.Errorf("router-cost: %q is none of %s, %s", c.Cost, Classic, Credited)
	case c.PrefillLoad == "aic":
		return errors.New("router-prefill-load-model: aic is Dynamo's table of measured engines, which Tandem does not have; " +
			"online learns the same from what prefill took")
	case c.PrefillLoad != "none" && c.PrefillLoad != Online:
		return fmt.Errorf("router-prefill-load-model: %q is none of none, %s", c.PrefillLoad, Online)
	}
	if err := c.Credit.check(); err != nil {
		return err
	}
	if err := c.Thresholds.Validate(); err != nil {
		return err
	}
	if err := c.Parity.validate(); err != nil {
		return err
	}
	for _, s := range []struct {
		flag  string
		value float64
	}{
		{"router-kv-overlap-score-weight", c.OverlapWeight},
		{"router-temperature", c.Temperature},
	} {
		if !(s.value >= 0) || math.IsInf(s.value, 0) {
			return fmt.Errorf("%s: %v is not a number from 0", s.flag, s.value)
		}
	}
	if math.IsNaN(c.QueueThreshold) || math.IsInf(c.QueueThreshold, 0) {
		return fmt.Errorf("router-queue-threshold: %v is not a number", c.QueueThreshold)
	}
	if !(c.GPUWeight > 0) || math.IsInf(c.GPUWeight, 0) {
		return fmt.Errorf("encoder-cuda-to-cpu-ratio: %v is not a number above 0", c.GPUWeight)
	}
	if c.DefaultMaxBatchedTokens < 1 {
		return fmt.Errorf("router: DefaultMaxBatchedTokens is %d, must be at least 1", c.DefaultMaxBatchedTokens)
	}
	if c.IndexMaxBlocks < 0 {
		return fmt.Errorf("kv-index-max-blocks: %d is below 0", c.IndexMaxBlocks)
	}
	if c.PredictedTTL < 0 {
		return fmt.Errorf("router-predicted-ttl-secs: %v is below 0", c.PredictedTTL)
	}
	if c.Predictions.MaxBlocks != 0 {
		return c.Predictions.Validate()
	}
	return nil
}
