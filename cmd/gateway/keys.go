package main

import (
	"context"
	"log/slog"

	"github.com/tandem-pd/tandem/internal/auth"
	"github.com/tandem-pd/tandem/internal/setting"
)

// workerKey reads the workers' API key, empty without a file.
func workerKey(r *setting.Resolved, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	key, err := auth.ReadOne(path)
	if err != nil {
		return "", r.Refuse("worker-api-key-file", err)
	}
	return key, nil
}

// onHangup calls reload at every SIGHUP, until ctx ends or stop is called, which waits for it.
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
					log.Error("reload incomplete: files that failed keep their previous contents", "error", err)
					continue
				}
				log.Info("files reloaded")
			}
		}
	}()
	return func() {
		release()
		cancel()
		<-ended
	}
}

// remoteToken returns a func that reads the remote index's token; nil without a file.
func remoteToken(path string) func() (string, error) {
	if path == "" {
		return nil
	}
	return func() (string, error) { return auth.ReadFirst(path) }
}
