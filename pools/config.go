package pools

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/internal/setting"
)

// defaultDownFor is how long a worker that failed a call is left alone, as Dynamo's
// DYN_RUNTIME_INHIBITED_DURATION_SECS has it. Shorter, and a dead worker costs more requests a first attempt before
// its lease ends; longer, and one dropped connection takes a worker's cache out of use for as long.
const defaultDownFor = 5 * time.Second

// lastDownFor is the same for the last worker of a pool: without it no request of its model is served, so that it is tried
// again as soon as a circuit would.
const lastDownFor = 500 * time.Millisecond

// Config is what an operator sets about pools.
type Config struct {
	// BlockSize in tokens that every worker must have registered, at most [MaxBlockSize]; 0 takes what a model's first
	// worker registered, of each pool where MixesBlocks allows it.
	BlockSize int `flag:"kv-cache-block-size" default:"0" range:"0..4096" group:"Router" help:"Tokens in a KV block; workers with another are refused. 0 uses the first worker's of a model."`
	// Aliases are other names for models, each as ALIAS=MODEL.
	Aliases []string `flag:"model-alias" sep:"space" group:"Models" help:"Another name of a model, as ALIAS=MODEL. Repeat it. A model of that name wins."`
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
	_, err := c.aliases()
	return errors.Join(setting.Check(&c), err)
}

// aliases are the models by alias.
func (c Config) aliases() (map[string]string, error) {
	models := map[string]string{}
	for _, pair := range c.Aliases {
		alias, model, ok := strings.Cut(pair, "=")
		for _, name := range []string{alias, model} {
			if problem := textProblem(name, 1, MaxModelBytes); !ok || problem != "" || alias == model {
				return nil, setting.Errorf("model-alias", "%q is not ALIAS=MODEL, of 1 to %d printable bytes each", pair, MaxModelBytes)
			}
		}
		if _, twice := models[alias]; twice {
			return nil, setting.Errorf("model-alias", "the alias %q is given twice", alias)
		}
		models[alias] = model
	}
	for alias, model := range models {
		if _, chained := models[model]; chained {
			return nil, setting.Errorf("model-alias", "%q stands for the alias %q; name its model", alias, model)
		}
	}
	return models, nil
}
