package e2e

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
)

// In mode eft many requests at once wait in the gateway and not in engines, and every answer is what it would have been.
func TestEFTWaitsInTheGateway(t *testing.T) {
	const clients = 60
	f := newFleet(t, options{speedup: 4, gateway: func(c *stack.GatewayConfig) {
		c.Router.Mode, c.Flow.Queue.Policy = "eft", "hrrn"
	}})
	for i := range 4 { // the workers' speeds are known
		q := ithQuestion(1000 + i)
		f.post(q.path, q.body)
	}
	most := 0
	watched := make(chan struct{})
	over, stop := context.WithCancel(context.Background())
	go func() {
		defer close(watched)
		for over.Err() == nil {
			for id, w := range f.workers {
				if b := w.Engine.Books(); id[0] == 'p' {
					most = max(most, b.Running+b.Waiting)
				}
			}
			<-time.After(time.Millisecond)
		}
	}()
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() {
			q := ithQuestion(i)
			if whole, err := f.verdict(q, f.post(q.path, q.body)); err != nil || !whole {
				t.Errorf("request %d: whole %v, %v", i, whole, err)
			}
		})
	}
	group.Wait()
	stop()
	<-watched
	if most > clients/4 {
		t.Errorf("up to %d prompts were at one prefill engine", most)
	}
	t.Logf("up to %d prompts were at one prefill engine", most)
	f.idle()
}
