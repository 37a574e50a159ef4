package discovery

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/tandem-pd/tandem/pools"
)

// DefaultPrefix is where workers are registered: <prefix><model>/<role>/<id>, with model and id escaped as in the
// path of a URL.
const DefaultPrefix = "/tandem/workers/"

// folder returns the prefix with a slash at its end, so that /tandem/workers
// does not match what lies under /tandem/workers-of-others.
func folder(prefix string) string {
	if prefix == "" {
		return DefaultPrefix
	}
	return strings.TrimSuffix(prefix, "/") + "/"
}

// Key is the etcd key of a worker's record.
func Key(prefix string, w *pools.Worker) string {
	return prefix + url.PathEscape(w.Model) + "/" + url.PathEscape(string(w.Role)) + "/" + url.PathEscape(w.ID)
}

// parseRecord reads the record at key. Its fields must agree with its key.
func parseRecord(prefix, key string, value []byte) (pools.Worker, error) {
	w, err := pools.ParseWorker(value)
	if err != nil {
		return pools.Worker{}, err
	}
	if want := Key(prefix, &w); want != key {
		return pools.Worker{}, fmt.Errorf("it belongs at %s", want)
	}
	return w, nil
}

// idOf is the worker's id in a key, "" when it has none.
func idOf(prefix, key string) string {
	rest, ok := strings.CutPrefix(key, prefix)
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 3 {
		return ""
	}
	id, err := url.PathUnescape(parts[2])
	if err != nil {
		return ""
	}
	return id
}
