package discovery

import (
	"context"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tandem-pd/tandem/internal/guard"
)

// calls is how a [Registrar] or a [Watcher] calls etcd.
type calls struct {
	client  *clientv3.Client
	timeout time.Duration // of one call
	retry   guard.Backoff
	rng     *rand.Rand
	failed  int // attempts, one after another
}

func newCalls(client *clientv3.Client, retryMax time.Duration) calls {
	retry := guard.Backoff{Min: 100 * time.Millisecond, Max: retryMax}
	return calls{client, 3 * time.Second, retry, rand.New(rand.NewPCG(rand.Uint64(), 0)), 0}
}

// persist retries calls until it returns nil or ctx ends. warn gets the first error after a success.
func (c *calls) persist(ctx context.Context, try func(ctx context.Context) error, warn func(err error)) {
	for {
		err := try(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		if c.failed == 0 {
			warn(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(c.retry.Delay(c.failed, c.rng)):
		}
		c.failed++
	}
}
