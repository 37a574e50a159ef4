package real

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/tandem-pd/tandem/lab/fleet"
)

// A whole request of two legs and a short prompt, eight events streamed, over real sockets; client and engines run in
// the same process, so that only the difference between two versions means anything.
func BenchmarkTwoLegs(b *testing.B) {
	f := fleet.New(b, fleet.Options{Speedup: 10_000})
	http.DefaultTransport.(*http.Transport).MaxIdleConnsPerHost = 256
	var n atomic.Int64
	b.ReportAllocs()
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			a, err := f.Try(context.Background(), fleet.CompletionPath, fleet.Ask(fmt.Sprintf("request %d says hello", n.Add(1)), 8), nil)
			if err != nil || a.Status != http.StatusOK || a.Events[len(a.Events)-1] != "[DONE]" {
				b.Errorf("status %d, error %v, events %q", a.Status, err, a.Events)
				return
			}
		}
	})
}
