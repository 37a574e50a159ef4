package stack

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tandem-pd/tandem/router/events"
)

// quiet keeps etcd's client from logging by itself: what matters of its
// failures comes back as errors.
var quiet = zap.NewNop()

// Connect makes the links that were named, and a func that ends them. Neither
// server need be there yet: both clients go on trying.
func Connect(etcd []string, natsURL string, log *slog.Logger, name nats.Option) (Links, func(), error) {
	var links Links
	var conn *nats.Conn
	unlink := func() {
		if conn != nil {
			conn.Close()
		}
		if links.Etcd != nil {
			_ = links.Etcd.Close()
		}
	}
	var err error
	if natsURL != "" {
		conn, err = nats.Connect(natsURL, name, nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true), nats.ReconnectWait(time.Second))
		if err != nil {
			return links, unlink, fmt.Errorf("nats-url: %w", err)
		}
		links.Bus = events.OverNATS(conn, events.PendingLimits{}, log)
	}
	if len(etcd) > 0 {
		if links.Etcd, err = etcdClient(etcd); err != nil {
			unlink()
			return Links{}, func() {}, fmt.Errorf("etcd-endpoints %s: %w", strings.Join(etcd, ","), errors.Unwrap(err))
		}
	}
	return links, unlink, nil
}

// etcdClient makes a client that notices a dead connection within seconds.
func etcdClient(endpoints []string) (*clientv3.Client, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints, DialTimeout: 3 * time.Second,
		DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		Logger: quiet,
	})
	if err != nil {
		return nil, fmt.Errorf("etcd client: %w", err)
	}
	return client, nil
}
