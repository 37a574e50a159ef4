package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/edge"
	"github.com/tandem-pd/tandem/internal/service"
	"github.com/tandem-pd/tandem/internal/telemetry"
)

// serviceSettings is what the standalone services have in common.
type serviceSettings struct {
	Host           string        `setting:"service-host"`
	TokenFile      string        `setting:"token-file"`
	RestoreFrom    []string      `setting:"restore-from"`
	RestoreTimeout time.Duration `setting:"restore-timeout"`
	MaxBodyBytes   int64         `setting:"service-max-body-bytes"`
	Drain          time.Duration `setting:"service-drain"`
}

func serviceGroup() settings.Group {
	return settings.Group{Title: "Service", Settings: []settings.Setting{
		{Name: "service-host", Kind: settings.String, Default: "127.0.0.1", Help: "Address to listen on. With 0.0.0.0, whoever reaches the port may book and unregister workers: give it a token-file."},
		{
			Name: "token-file", Kind: settings.String, Default: "",
			Help: "File of the tokens of which a request must bear one, one a line, as Authorization: Bearer TOKEN; blank lines and lines that begin with # do not " +
				"count. A token is 8 to 1024 visible ASCII bytes. Siblings are asked with the first one. /ready and /live never ask. It is read again on SIGHUP; one with a mistake leaves the tokens " +
				"as they were. Empty asks for none.",
		},
		{
			Name: "restore-from", Kind: settings.List, Default: "", Validate: siblings,
			Help: "Siblings of the same kind, as http://HOST:PORT: before /ready says 200, the first of them that answers is asked for its /dump, and what it " +
				"knows is taken over. One that cannot be reached is skipped with a warning. The flag may be given several times.",
		},
		{Name: "restore-timeout", Kind: settings.Duration, Default: "30s", Min: "1ms", Max: "1h", Help: "How long one sibling's dump may take in all. Shorter is ready sooner without it, and starts cold then."},
		{Name: "service-max-body-bytes", Kind: settings.Bytes, Default: "16MiB", Min: "1KiB", Max: "1GiB", Help: "Largest body of a request. A token of a prompt takes about 7 bytes of it."},
		{Name: "service-drain", Kind: settings.Duration, Default: "10s", Min: "0s", Help: "On SIGTERM, how long requests under way may take to end."},
	}}
}

// siblings accepts base URLs.
func siblings(value any) error {
	for _, text := range value.([]string) {
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
			return errors.New("each must be a URL, as http://HOST:PORT")
		}
	}
	return nil
}

// config is the service's part of the settings.
func (s *serviceSettings) config(r *settings.Resolved, p process) (service.Config, error) {
	c := service.Config{MaxBodyBytes: s.MaxBodyBytes, Drain: max(s.Drain, time.Nanosecond), RestoreFrom: s.RestoreFrom, RestoreTimeout: s.RestoreTimeout}
	if s.TokenFile == "" {
		return c, nil
	}
	var err error
	if c.Tokens, err = readTokens(s.TokenFile, p.readFile); err != nil {
		return c, r.Refuse("token-file", err)
	}
	c.RestoreToken = c.Tokens[0]
	return c, nil
}

// readTokens reads a file of tokens, at least one. Errors never hold one.
func readTokens(path string, readFile func(string) ([]byte, error)) ([]string, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	var tokens []string
	number := 0
	for line := range bytes.Lines(data) {
		number++
		token := edge.FirstKey(line)
		if token == "" {
			continue
		}
		if err := checkToken(token); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		tokens = append(tokens, token)
	}
	if len(tokens) == 0 {
		return nil, errors.New("there is no token in it; it takes one a line")
	}
	return tokens, nil
}

// errBadToken says what a token must look like.
var errBadToken = errors.New("a token is 8 to 1024 visible ASCII bytes")

// checkToken finds what is wrong with a token of a service.
func checkToken(token string) error {
	if len(token) < 8 || len(token) > 1024 || bytes.ContainsFunc([]byte(token), func(c rune) bool { return c <= ' ' || c > '~' }) {
		return errBadToken
	}
	return nil
}

// standalone runs a service, made by build, until SIGTERM.
func standalone(
	ctx context.Context, p process, name string, port int, s serviceSettings, natsURL string, log *slog.Logger,
	build func(links stack.Links, log *slog.Logger, reg *prometheus.Registry) (*service.Server, error),
) error {
	links, unlink, err := stack.Connect(nil, natsURL, log, nats.Name("tandem "+name))
	if err != nil {
		return err
	}
	defer unlink()
	server, err := build(links, log, telemetry.NewRegistry())
	if err != nil {
		return usageError{err}
	}
	ln, err := net.Listen("tcp", net.JoinHostPort(s.Host, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	defer onHangup(ctx, p, func() error {
		if s.TokenFile == "" {
			return nil
		}
		tokens, err := readTokens(s.TokenFile, p.readFile)
		if err != nil {
			return fmt.Errorf("token-file: %w", err)
		}
		server.SetTokens(tokens)
		return nil
	}, log)()
	fmt.Fprintf(p.stdout, "%s http://%s\n", name, stack.LocalAddr(ln.Addr()))
	return server.Run(ctx, ln)
}

// natsAlone is the discovery group's row of NATS: services have no registry.
func natsAlone() settings.Group {
	g := settings.DiscoveryGroup()
	kept := g.Settings[:0:0]
	for _, s := range g.Settings {
		if s.Name == "nats-url" {
			kept = append(kept, s)
		}
	}
	return settings.Group{Title: "Events", Settings: kept}
}
