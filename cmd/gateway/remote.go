package main

import (
	"errors"
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
		switch {
		case token == "":
			return "", fmt.Errorf("%s: there is no token in it", path)
		case checkToken(token) != nil:
			return "", fmt.Errorf("%s: %w", path, checkToken(token))
		}
		return token, nil
	}
}

// checkToken finds what is wrong with a token of a service.
func checkToken(token string) error {
	for i := range len(token) {
		if token[i] <= ' ' || token[i] > '~' {
			return errBadToken
		}
	}
	if len(token) < 8 || len(token) > 1024 {
		return errBadToken
	}
	return nil
}

var errBadToken = errors.New("a token is 8 to 1024 visible ASCII bytes")
