package discovery

import (
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools"
)

// refusal is a record that was not admitted.
type refusal struct {
	key    string
	worker pools.Worker
	err    error
}

// admit looks at what a valid record would have this process do. A record does not open a
// listener here: a worker whose engine is to connect is taken without its KV events.
func (w *Watcher) admit(worker *pools.Worker) error {
	if pools.Listens(worker.KVEndpoint) {
		w.log.Warn("record may not open a listener; predicting the worker's cache",
			"worker", worker.ID, "kv_events_endpoint", worker.KVEndpoint, "to_change",
			"name the engine's host in it, or give the worker by --worker-url with kv-events=")
		worker.KVEvents, worker.KVEndpoint, worker.KVReplay, worker.KVTopic = "none", "", "", ""
	}
	if w.cfg.Allow == nil {
		return nil
	}
	type named struct{ field, at string }
	all := []named{
		{"address", worker.Address},
		{"transfer_endpoint", worker.Transfer},
		{"kv_events_endpoint", worker.KVEndpoint},
		{"kv_events_replay_endpoint", worker.KVReplay},
	}
	for _, at := range worker.TransferIDs {
		// Decode workers connect to it, but that an engine's loopback or * stands for its address.
		if host, ok := hostOf(at); ok && strings.Contains(at, "://") && !onLoopback(host) && !pools.Listens(at) {
			all = append(all, named{"transfer_ids", at})
		}
	}
	for _, named := range all {
		if named.at == "" {
			continue
		}
		if host, ok := hostOf(named.at); !ok || !w.cfg.Allow.Has(host) {
			return fmt.Errorf("worker %q refused: the host %s of its %s is not in --worker-allow", worker.ID, setting.Quote(host), named.field)
		}
	}
	return nil
}

// hostOf is the host of a URL, or of HOST:PORT.
func hostOf(at string) (host string, ok bool) {
	if !strings.Contains(at, "://") {
		host, _, err := net.SplitHostPort(at)
		return host, err == nil
	}
	u, err := url.Parse(at)
	if err != nil {
		return "", false
	}
	return u.Hostname(), true
}
