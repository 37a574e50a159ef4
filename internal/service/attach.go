package service

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/tandem-pd/tandem/internal/listen"
)

// Beside is what stands beside an engine, as its HTTP face shows it.
type Beside interface {
	// Registered reports whether gateways see the engine's worker now; if not, awaits says what is missing.
	Registered() (ok bool, awaits string)
}

// besideStatus is the answer of /live and /ready.
type besideStatus struct {
	Status string `json:"status"`
	Awaits string `json:"awaits,omitempty"`
}

// NewBeside is the HTTP face of `gateway attach`: /live, /ready (200 while the worker is registered, else 503 with what is
// missing) and /metrics. Nothing of it changes anything.
func NewBeside(of Beside, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /live", func(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, besideStatus{Status: "live"}) })
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if ok, awaits := of.Registered(); !ok {
			write(w, http.StatusServiceUnavailable, besideStatus{"waiting", awaits})
			return
		}
		write(w, http.StatusOK, besideStatus{Status: "registered"})
	})
	mux.Handle("GET /metrics", metrics)
	return mux
}

// ServeBeside serves h on ln until ctx ends, when it returns nil.
func ServeBeside(ctx context.Context, ln net.Listener, h http.Handler, log *slog.Logger) error {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := listen.HTTP(server, ln, log); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
