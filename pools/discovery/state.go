package discovery

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// State is entries in etcd that outlive the processes that write them. The entry KIND/NAME has the key
// PREFIX-state/KIND/NAME, NAME escaped as in the path of a URL. It is a replica.Store.
type State struct {
	prefixWatch
	log *slog.Logger
}

// maxState bounds how many entries are listed.
const maxState = 16_384

// NewState returns the entries that go with a registry's prefix. client stays the caller's to close.
func NewState(client *clientv3.Client, prefix string, log *slog.Logger) *State {
	prefix = strings.TrimSuffix(folder(prefix), "/") + "-state/"
	return &State{prefixWatch{newCalls(client, 2*time.Second), prefix, 2 * time.Second, 2 * time.Second}, log}
}

// Follow calls all with every entry and the name of the etcd, and then one with each change, nil for an entry that is
// gone, until something is wrong.
func (s *State) Follow(ctx context.Context, all func(store string, entries map[string][]byte), one func(name string, value []byte)) error {
	list := func(ctx context.Context) (*etcdserverpb.ResponseHeader, error) {
		ctx, cancel := context.WithTimeout(ctx, s.timeout)
		defer cancel()
		r, err := s.client.Get(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithLimit(maxState))
		if err != nil {
			return nil, err
		}
		entries := map[string][]byte{}
		for _, kv := range r.Kvs {
			if name, ok := s.name(kv.Key); ok {
				entries[name] = kv.Value
			}
		}
		all(strconv.FormatUint(r.Header.ClusterId, 16), entries)
		return r.Header, nil
	}
	return s.follow(ctx, list, func(_ context.Context, events []*clientv3.Event) error {
		for _, e := range events {
			name, ok := s.name(e.Kv.Key)
			switch {
			case !ok:
			case e.Type == clientv3.EventTypeDelete:
				one(name, nil)
			default:
				one(name, e.Kv.Value)
			}
		}
		return nil
	})
}

// Put writes an entry.
func (s *State) Put(ctx context.Context, name string, value []byte) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	_, err := s.client.Put(ctx, s.key(name), string(value))
	return err
}

// Delete removes an entry, if it is there.
func (s *State) Delete(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	_, err := s.client.Delete(ctx, s.key(name))
	return err
}

// Where names the store in logs.
func (s *State) Where() string { return fmt.Sprintf("etcd, below %s", s.prefix) }

func (s *State) key(name string) string {
	kind, rest, _ := strings.Cut(name, "/")
	return s.prefix + kind + "/" + url.PathEscape(rest)
}

// name is the entry's of a key.
func (s *State) name(key []byte) (string, bool) {
	kind, rest, ok := strings.Cut(strings.TrimPrefix(string(key), s.prefix), "/")
	if ok {
		if rest, err := url.PathUnescape(rest); err == nil && s.key(kind+"/"+rest) == string(key) {
			return kind + "/" + rest, true
		}
	}
	s.log.Warn("operator's change in etcd ignored: its key has no name", "key", string(key))
	return "", false
}
