package feed

import (
	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/view"
)

// Into has a subscriber to KV events write into the indexes of pools, which of gives by the pool's name ("model/role").
func Into(of func(pool string) *index.Index) func(pool string) follow.Index {
	return func(pool string) follow.Index { return writable{of(pool)} }
}

// writable is an index as a subscriber writes to it.
type writable struct{ *index.Index }

func (w writable) Part(worker string, rank int) view.Part { return w.Index.Part(worker, rank) }
