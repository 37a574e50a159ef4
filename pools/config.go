package pools

import (
	"fmt"
	"time"
)

// DefaultDownFor is how long a worker that failed a call is left alone, as Dynamo's
// DYN_RUNTIME_INHIBITED_DURATION_SECS has it. Shorter, and a dead worker costs more requests a first attempt before
// its lease ends; longer, and one dropped connection takes a worker's cache out of use for as long.
const DefaultDownFor = 5 * time.Second

// Config is what an operator sets about pools.
type Config struct {
	// BlockSize in tokens that every worker must have registered (--kv-cache-block-size), 1 to [MaxBlockSize];
	// 0 takes what a model's first worker registered, of each pool where MixesBlocks allows it.
	BlockSize int
	// DownFor is how long a worker stays down after a failure; 0 means [DefaultDownFor].
	DownFor time.Duration
	// HandsOver reports whether KV caches can be handed over between workers of an engine. A worker of role prefill or
	// decode of another engine is refused; nil takes all.
	HandsOver func(engine string) bool
	// MixesBlocks reports whether prefill and decode workers of an engine may have different block sizes; nil: none may.
	MixesBlocks func(engine string) bool
}

// Validate checks the ranges that [Config] gives.
func (c Config) Validate() error {
	if problem := countProblem(c.BlockSize, 0, MaxBlockSize); problem != "" {
		return fmt.Errorf("kv-cache-block-size %s", problem)
	}
	if c.DownFor < 0 {
		return fmt.Errorf("DownFor must not be negative, is %v", c.DownFor)
	}
	return nil
}
