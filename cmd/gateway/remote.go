package main

import (
	"fmt"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/internal/edge"
)

// remoteAlone leaves KV events to the remote index, where there is one and nobody
// said that the gateway is to follow them too.
func remoteAlone(s *settings.Gateway, r *settings.Resolved) (alone bool) {
	if len(s.Remote.URLs) == 0 || r.IsSet("router-kv-events") {
		return false
	}
	s.Router.KVEvents = false
	return true
}

// remoteToken reads the token that the remote index asks for, again at each call;
// nil without a file. Errors never hold it.
func remoteToken(path string, readFile func(string) ([]byte, error)) func() (string, error) {
	if path == "" {
		return nil
	}
	return func() (string, error) {
		data, err := readFile(path)
		if err != nil {
			return "", err
		}
		token := edge.FirstKey(data)
		if token == "" {
			return "", fmt.Errorf("%s: there is no token in it", path)
		}
		if err := checkToken(token); err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
		return token, nil
	}
}
