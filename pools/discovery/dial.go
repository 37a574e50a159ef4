package discovery

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Dial returns a client of the etcd at endpoints ("http://host:2379", "host:2379", or either with "user:password@" before the
// host, one pair in all). It does not wait for a connection, and looks for one again within 2 s whenever there is none (gRPC's
// own default grows to two minutes). A connection that has gone silent is given up after 13 s. It writes no logs of its own, and
// no password into errors. The caller closes it.
func Dial(endpoints []string) (*clientv3.Client, error) {
	endpoints, user, err := withoutUser(endpoints)
	if err != nil {
		return nil, fmt.Errorf("etcd-endpoints: %w", err)
	}
	cfg := clientv3.Config{
		Endpoints:            endpoints,
		DialKeepAliveTime:    10 * time.Second, // the least that gRPC takes
		DialKeepAliveTimeout: 3 * time.Second,
		Logger:               zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 3 * time.Second,
		})},
	}
	if user != nil {
		// With a name New would wait until etcd has answered. With a token it does not; etcd refuses this one at the first call,
		// and the client then asks for another by name and password.
		cfg.Token = "none"
	}
	c, err := clientv3.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("etcd client: %w", err)
	}
	if user != nil {
		c.Token, c.Username = "", user.Username()
		c.Password, _ = user.Password()
	}
	return c, nil
}

// withoutUser takes the user and password out of endpoints; user is nil for none.
func withoutUser(endpoints []string) (bare []string, user *url.Userinfo, err error) {
	for _, e := range endpoints {
		scheme, rest, found := strings.Cut(e, "://")
		if !found {
			scheme, rest = "", e
		}
		at := strings.LastIndexByte(rest, '@')
		if at < 0 {
			bare = append(bare, e)
			continue
		}
		u, err := url.Parse("etcd://" + rest)
		if err != nil || u.User == nil {
			return nil, nil, errors.New("what stands before the @ must be USER:PASSWORD, with / @ : ? # and % in it written as %2F, %40, …")
		}
		password, _ := u.User.Password()
		switch {
		case u.User.Username() == "" || password == "":
			return nil, nil, errors.New("what stands before the @ must be USER:PASSWORD")
		case user != nil && *user != *u.User:
			return nil, nil, errors.New("the members of one cluster take the same USER:PASSWORD")
		}
		user = u.User
		if found {
			scheme += "://"
		}
		bare = append(bare, scheme+rest[at+1:])
	}
	return bare, user, nil
}
