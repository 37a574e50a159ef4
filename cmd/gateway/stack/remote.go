package stack

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/remote"
)

// addRemote makes what asks an index elsewhere, where one is named.
func (g *Gateway) addRemote(reg prometheus.Registerer) error {
	if len(g.cfg.Remote.URLs) == 0 {
		return nil
	}
	var err error
	if g.remote, err = remote.New(g.cfg.Remote, g.Roster, g.log, reg); err == nil {
		g.OnReload(g.remote.Reload)
	}
	return err
}

// askRemote is how the flow asks it, nil without one.
func (g *Gateway) askRemote() func(ctx context.Context, model string, blockSize int, hashes []uint64) (*router.Told, string) {
	if g.remote == nil {
		return nil
	}
	return func(ctx context.Context, model string, blockSize int, hashes []uint64) (*router.Told, string) {
		told, out := g.remote.Lookup(ctx, model, blockSize, hashes)
		return told, string(out)
	}
}
