package e2e

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
)

// A whole request of two legs and a short prompt, eight events streamed, over
// real sockets; client and engines run in the same process, so that only the
// difference between two versions means anything.
func BenchmarkTwoLegs(b *testing.B) {
	f := newFleet(b, options{speedup: 10_000})
	http.DefaultTransport.(*http.Transport).MaxIdleConnsPerHost = 256
	var n atomic.Int64
	b.ReportAllocs()
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			a, err := f.try(context.Background(), completionPath, ask(fmt.Sprintf("request %d says hello", n.Add(1)), 8), nil)
			if err != nil || a.status != http.StatusOK || a.events[len(a.events)-1] != "[DONE]" {
				b.Errorf("status %d, error %v, events %q", a.status, err, a.events)
				return
			}
		}
	})
}
