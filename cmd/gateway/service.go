package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/cmd/gateway/service"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/auth"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/kv/wire"
)

// serviceSettings are the settings common to the standalone services.
type serviceSettings struct {
	Host      string `flag:"service-host" default:"127.0.0.1" form:"host" help:"Address to listen on. For other machines set a token-file."`
	TokenFile string `flag:"token-file" help:"File of bearer tokens that requests need, in the form of api-key-file; /ready and /live need none. Read again on SIGHUP. Empty needs none."`
	service.Config
}

func (s *serviceSettings) config(r *setting.Resolved) (service.Config, error) {
	c := s.Config
	if s.TokenFile == "" {
		return c, nil
	}
	var err error
	if c.Tokens, err = auth.ReadKeys(s.TokenFile); err != nil {
		return c, r.Refuse("token-file", err)
	}
	return c, nil
}

// standalone runs a service, made by build, until SIGTERM.
func standalone(
	ctx context.Context, p process, name string, port int, s serviceSettings, events stack.Discovery, log *slog.Logger,
	build func(bus wire.Bus, scrape http.Handler, own prometheus.Registerer) (*service.Server, error),
) error {
	links, unlink, err := stack.Connect(&events, nil, log, nats.Name("tandem "+name))
	if err != nil {
		return &setting.Error{Err: err}
	}
	defer unlink()
	reg := observe.NewRegistry()
	scrape := observe.Handler(reg, observe.Prefix, observe.ServiceAliases...)
	own := prometheus.WrapRegistererWithPrefix(observe.Prefix, reg)
	links.Certs.Export(own)
	server, err := build(links.Bus, scrape, own)
	if err != nil {
		return &setting.Error{Err: err}
	}
	ln, err := net.Listen("tcp", net.JoinHostPort(s.Host, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	defer onHangup(ctx, p, func() error {
		broken := links.Certs.Reload()
		if s.TokenFile == "" {
			return broken
		}
		tokens, err := auth.ReadKeys(s.TokenFile)
		if err != nil {
			return errors.Join(broken, fmt.Errorf("token-file: %w", err))
		}
		server.SetTokens(tokens)
		return broken
	}, log)()
	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { _ = links.Certs.Run(watching) }) // which ends without an error
	defer watch.Wait()
	defer stop()
	fmt.Fprintf(p.stdout, "%s http://%s\n", name, stack.LocalAddr(ln.Addr()))
	return server.Run(ctx, ln)
}
