// Package discovery is where workers come from. In etcd each worker keeps one
// key alive under a lease: a [Registrar] writes it and writes it again whenever
// the lease was lost, a [Watcher] follows the prefix and tells a [Sink]. Neither
// takes etcd's absence for the workers': who was known stays known until etcd
// is back and has said otherwise.
package discovery

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/pools"
)

// Defaults of both sides.
const (
	// DefaultPrefix is where workers register.
	DefaultPrefix = "/tandem/workers"
	// DefaultTTL is how long a worker that stops renewing its lease stays
	// registered. Shorter finds a dead host sooner; longer rides out a pause of
	// the worker or of etcd. A dead process is found at the first refused
	// connection, long before.
	DefaultTTL = 10 * time.Second
)

// Backoff bounds between attempts at an etcd that does not answer.
const (
	backoffMin = 100 * time.Millisecond
	backoffMax = 2 * time.Second
)

// key is where a worker registers: prefix/model/role/id, the model escaped so
// that it is one path element.
func key(prefix string, w *pools.Worker) string {
	return strings.Join([]string{strings.TrimSuffix(prefix, "/"), url.PathEscape(w.Model), string(w.Role), w.ID}, "/")
}

// idOf is the worker id that a key ends in.
func idOf(key string) string { return key[strings.LastIndexByte(key, '/')+1:] }

// backoff is the time before the next attempt after n in vain, from 1: doubling
// with up to a half taken off by chance, so that a fleet does not come back in
// step.
func backoff(n int) time.Duration {
	d := min(backoffMin<<min(n-1, 8), backoffMax)
	return d - rand.N(d/2)
}

// checkTTL refuses what etcd cannot grant: it counts whole seconds.
func checkTTL(ttl time.Duration) error {
	if ttl < time.Second || ttl > time.Hour {
		return fmt.Errorf("lease-ttl: %v is not between 1s and 1h", ttl)
	}
	return nil
}
