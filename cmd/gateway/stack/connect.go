package stack

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/pools/discovery"
	"github.com/tandem-pd/tandem/router/events"
)

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
		if links.Etcd, err = discovery.Dial(etcd); err != nil {
			unlink()
			return Links{}, func() {}, fmt.Errorf("etcd-endpoints %s: %w", strings.Join(etcd, ","), err)
		}
	}
	return links, unlink, nil
}

// folder ends a prefix of keys in a slash, so that /tandem/workers does not
// take in what lies under /tandem/workers-of-others. Empty stays empty, which
// is discovery's default.
func folder(prefix string) string {
	if prefix == "" || strings.HasSuffix(prefix, "/") {
		return prefix
	}
	return prefix + "/"
}
