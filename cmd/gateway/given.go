package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// workersConfig is what is set about workers by URL. Files are not read: that
// is for the command that runs.
func workersConfig(s settings.Workers, r settings.Router, seed uint64) (stack.WorkersConfig, error) {
	c := stack.WorkersConfig{
		File: s.File, MinInitial: s.MinInitial,
		Probe: discovery.ProberConfig{Every: s.HealthInterval, BlockSize: min(r.KVCacheBlockSize, pools.MaxBlockSize), Seed: seed},
	}
	if len(s.Allow) > 0 {
		var err error
		if c.Allow, err = discovery.ParseHosts(s.Allow); err != nil {
			return stack.WorkersConfig{}, fmt.Errorf("worker-allow: %w", err)
		}
	}
	for _, list := range []struct {
		name string
		role pools.Role
		urls []string
	}{
		{"prefill-url", pools.Prefill, s.PrefillURLs},
		{"decode-url", pools.Decode, s.DecodeURLs},
		{"worker-url", "", s.URLs},
	} {
		for _, text := range list.urls {
			e, err := discovery.ParseEndpoint(list.role, text)
			if err == nil {
				c.Static = append(c.Static, e)
				err = discovery.CheckEndpoints(c.Static)
			}
			if err != nil {
				return stack.WorkersConfig{}, fmt.Errorf("%s: %w", list.name, err)
			}
		}
	}
	return c, nil
}

// maxKeyBytes is how long the workers' API key may be.
const maxKeyBytes = 4096

// workerKey reads the workers' API key: one line. Errors never hold it.
func workerKey(r *settings.Resolved, path string, readFile func(string) ([]byte, error)) (string, error) {
	if path == "" {
		return "", nil
	}
	data, err := readFile(path)
	if err != nil {
		return "", r.Refuse("worker-api-key-file", err)
	}
	key := strings.TrimSpace(string(data))
	if key == "" || len(key) > maxKeyBytes || strings.ContainsFunc(key, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return "", r.Refuse("worker-api-key-file", fmt.Errorf("the file must hold one line of at most %d printable ASCII characters", maxKeyBytes))
	}
	return key, nil
}

// onHangup calls reload at every SIGHUP, until ctx ends or stop is called, which
// waits for it.
func onHangup(ctx context.Context, p process, reload func() error, log *slog.Logger) (stop func()) {
	if p.hangups == nil {
		return func() {}
	}
	got, release := p.hangups()
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-ctx.Done():
				return
			case <-got:
				if err := reload(); err != nil {
					log.Error("not everything could be read again; what could not is as it was", "error", err)
					continue
				}
				log.Info("files read again")
			}
		}
	}()
	return func() {
		release()
		cancel()
		<-ended
	}
}
