package service

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"

	"github.com/tandem-pd/tandem/internal/http1"
)

// Sidecar is the state of a process next to an engine, for its HTTP server.
type Sidecar interface {
	// Registered reports whether gateways see the engine's worker; if not, awaits is what is missing.
	Registered() (ok bool, awaits string)
}

// NewSidecar returns the HTTP handler of `gateway attach`: /live, /ready (200 while the worker is registered, else
// 503 with what is missing) and /metrics. It is read-only.
func NewSidecar(of Sidecar, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /live", func(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, status{"live", ""}) })
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if ok, awaits := of.Registered(); !ok {
			write(w, http.StatusServiceUnavailable, status{"waiting", awaits})
			return
		}
		write(w, http.StatusOK, status{"registered", ""})
	})
	mux.Handle("GET /metrics", metrics)
	return mux
}

// ServeSidecar serves h on ln until ctx ends, and then returns nil.
func ServeSidecar(ctx context.Context, ln net.Listener, h http.Handler, log *slog.Logger) error {
	server := httpServer(h, log)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := http1.ListenHTTP(server, ln, log); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
