package events

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// EmbeddedNATS is a NATS server within the process, for `gateway dev` and tests: NATS Core only, on a port of the
// loopback address, without authentication and without logs.
type EmbeddedNATS struct {
	server *server.Server
}

// startTimeout is more than enough: a start takes some milliseconds.
const startTimeout = 10 * time.Second

// StartNATS starts a server on 127.0.0.1. A port of 0 picks a free one.
func StartNATS(port int) (*EmbeddedNATS, error) {
	if port == 0 {
		port = server.RANDOM_PORT
	}
	s, err := server.NewServer(&server.Options{
		ServerName: fmt.Sprintf("tandem-%d", os.Getpid()), Host: "127.0.0.1", Port: port,
		NoLog: true, NoSigs: true, MaxPayload: 1 << 20,
	})
	if err != nil {
		return nil, fmt.Errorf("embedded NATS: %w", err)
	}
	s.Start()
	if !s.ReadyForConnections(startTimeout) {
		s.Shutdown()
		return nil, errors.New("embedded NATS: not ready in time")
	}
	return &EmbeddedNATS{s}, nil
}

// URL is where clients connect.
func (e *EmbeddedNATS) URL() string { return e.server.ClientURL() }

// InProcess is an option for nats.Connect that does without a socket.
func (e *EmbeddedNATS) InProcess() nats.Option { return nats.InProcessServer(e.server) }

// Close ends the server and waits for it. Clients see their connection go.
func (e *EmbeddedNATS) Close() {
	e.server.Shutdown()
	e.server.WaitForShutdown()
}
