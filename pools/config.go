package pools

import (
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/internal/setting"
)

// defaultDownFor is how long a worker that failed a call is left alone, as Dynamo's
// DYN_RUNTIME_INHIBITED_DURATION_SECS has it. Shorter, and a dead worker costs more requests a first attempt before
// its lease ends; longer, and one dropped connection takes a worker's cache out of use for as long.
const defaultDownFor = 5 * time.Second

// Config is what an operator sets about pools.
type Config struct {
	// BlockSize in tokens that every worker must have registered, at most [MaxBlockSize]; 0 takes what a model's first
	// worker registered, of each pool where MixesBlocks allows it.
	BlockSize int `flag:"kv-cache-block-size" default:"0" range:"0..4096" group:"Router" help:"Tokens in a KV cache block. 0 takes what the first worker of a model registers; of vLLM's prefill and decode workers, the first of each role. Any other number refuses workers that registered another. Larger blocks make events fewer and the prefixes that can be shared coarser." when:"a worker with the wrong block size came first"`
	// DownFor is how long a worker stays down after a failure; 0 means [defaultDownFor].
	DownFor time.Duration
	// HandsOver reports why a worker's KV cache cannot be handed over at all. Such a worker of role prefill or decode is
	// refused; nil takes all.
	HandsOver func(w *Worker) error
	// MixesBlocks reports whether prefill and decode workers like this one may have different block sizes; nil: none may.
	MixesBlocks func(w *Worker) bool
}

// Validate returns what is out of range.
func (c Config) Validate() error {
	if c.DownFor < 0 {
		return fmt.Errorf("DownFor must not be negative, is %v", c.DownFor)
	}
	return setting.Check(&c)
}
