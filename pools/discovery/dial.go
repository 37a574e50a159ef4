package discovery

import (
	"fmt"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Dial returns a client of the etcd at endpoints ("http://host:2379", or "host:2379"). It does not wait for a
// connection, and looks for one again within 2 s whenever there is none (gRPC's own default grows to two minutes). A
// connection that has gone silent is given up after 13 s. It writes no logs of its own. The caller closes it.
func Dial(endpoints []string) (*clientv3.Client, error) {
	c, err := clientv3.New(clientv3.Config{
		Endpoints:            endpoints,
		DialKeepAliveTime:    10 * time.Second, // the least that gRPC takes
		DialKeepAliveTimeout: 3 * time.Second,
		Logger:               zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 3 * time.Second,
		})},
	})
	if err != nil {
		return nil, fmt.Errorf("etcd client: %w", err)
	}
	return c, nil
}

// pause is how long to wait before the next attempt after attempts in vain: twice as long each time, between lo and
// hi, and up to half less by chance.
func pause(attempts int, lo, hi time.Duration, rng *rand.Rand) time.Duration {
	wait := hi
	if attempts < 16 {
		wait = min(hi, lo<<attempts)
	}
	return wait - time.Duration(rng.Int64N(int64(wait)/2+1))
}
