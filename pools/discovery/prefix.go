package discovery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// prefixWatch follows the keys below a prefix of etcd.
type prefixWatch struct {
	calls
	prefix     string
	probeEvery time.Duration // between two questions whether etcd is there and still the same one
	probeLimit time.Duration // of one such question
}

// Why a watch is begun again although etcd did not end it.
var (
	errClosed  = errors.New("the watch was closed")
	errAnother = errors.New("this is not the etcd that was followed before")
)

// follow calls list, and then changed with each batch of changes since, until something is wrong. The first batch is empty:
// the watch has begun.
func (p *prefixWatch) follow(ctx context.Context, list func(context.Context) (*etcdserverpb.ResponseHeader, error),
	changed func(context.Context, []*clientv3.Event) error) error {
	// A watch whose server has lost its leader is to end, and so are the goroutines when this returns.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	listed, err := list(ctx)
	if err != nil {
		return err
	}
	var latest atomic.Int64 // the highest revision received
	latest.Store(listed.Revision)
	failed := make(chan error, 1)
	var probing sync.WaitGroup
	defer probing.Wait()
	defer cancel()
	probing.Go(func() {
		failed <- p.probe(ctx, listed, &latest)
		cancel() // Watch itself may be waiting for an answer
	})

	events := p.client.Watch(ctx, p.prefix, clientv3.WithPrefix(), clientv3.WithRev(listed.Revision+1),
		clientv3.WithCreatedNotify(), clientv3.WithProgressNotify())
	for {
		select {
		case err := <-failed:
			return err
		case r, ok := <-events:
			switch err := r.Err(); {
			case ctx.Err() != nil: // the probe ended it, or the caller did
				return <-failed
			case !ok:
				return errClosed
			case err != nil:
				return err
			}
			if err := changed(ctx, r.Events); err != nil {
				return err
			}
			latest.Store(max(latest.Load(), r.Header.Revision))
		}
	}
}

// probe asks etcd for something small now and then, until ctx ends, etcd does not answer, or it is another one than
// that listed is of. A connection that goes silent, or an etcd that starts again with an empty or an older data
// directory, breaks no watch: it would wait for what never comes, the second for the old revision to come round.
func (p *prefixWatch) probe(ctx context.Context, listed *etcdserverpb.ResponseHeader, latest *atomic.Int64) error {
	tick := time.NewTicker(p.probeEvery)
	defer tick.Stop()
	term := listed.RaftTerm
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		last := latest.Load()
		r, err := p.ask(ctx)
		if err != nil {
			return fmt.Errorf("etcd does not answer: %w", err)
		}
		if h := r.Header; h.ClusterId != listed.ClusterId || h.RaftTerm < term || h.Revision < last {
			return errAnother
		}
		term = r.Header.RaftTerm
	}
}

func (p *prefixWatch) ask(ctx context.Context) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, p.probeLimit)
	defer cancel()
	return p.client.Get(ctx, p.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
}
